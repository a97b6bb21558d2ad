// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

func running(c *api.Container, env ...string) *api.Container {
	c.State = api.ContainerState_CONTAINER_RUNNING
	c.Env = append(c.Env, env...)
	return c
}

// Invariant 4: an agent that comes back finds the containers that it had started,
// touches none of them, and knows what holds them.
func TestSynchronizeAfterRestart(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	pod, plain := podOf("a", share30), podOf("plain", "")
	n.ledger.grant(gpu0, slice30(pod))
	c := running(containerOf(pod, "main"), v1alpha1.EnvSlice+"="+pod.Uid)
	n.gpus.limits[gpu0+"/cgroup/"+c.Id] = 20480
	given := &api.ContainerAdjustment{}
	held := mode.Container{Pod: uid(pod), Owner: owner(pod), Name: "main", ID: c.Id, Grants: n.ledger.Index().Grants(ledger.Key{Pod: uid(pod), Container: "main"})}
	must.Do(t, n.limiter.Inject(held, given))
	c.Mounts = given.GetMounts()
	stopped := containerOf(pod, "done", v1alpha1.EnvSlice+"="+pod.Uid)
	stopped.State = api.ContainerState_CONTAINER_STOPPED
	r.Lists([]*api.PodSandbox{pod, plain}, []*api.Container{c, stopped, running(containerOf(plain, "main"))})
	first := connect(t, r, n.Plugin)

	want := []v1alpha1.SliceStatus{{
		Pod: uid(pod), Ctr: "main", UUID: gpu0, Container: c.Id, Mode: v1alpha1.ModeLimiter,
		Memory: v1alpha1.GuaranteeDriver, Compute: v1alpha1.GuaranteeCooperative,
	}}
	if got := n.Table.Slices(); !reflect.DeepEqual(got, want) {
		t.Errorf("slices %+v, want %+v", got, want)
	}
	if len(n.killed) != 0 || len(n.events.said) != 0 {
		t.Errorf("Invariant 4: killed %v, said %v", n.killed, n.events.said)
	}
	if n.Table.Fence(uid(pod)) {
		t.Error("Invariant 1: a pod with a running container is fenced")
	}

	// While the runtime is out of sight nothing is given back.
	first.disconnect()
	if n.Table.Fence("uid-unknown") {
		t.Error("Invariant 1: a pod is fenced while the runtime is out of sight")
	}
	// What ended meanwhile is gone with the next list, also if it is still shown.
	r.Lists([]*api.PodSandbox{pod}, []*api.Container{stopped})
	connect(t, r, n.Plugin)
	if !n.Table.Fence(uid(pod)) {
		t.Error("Invariant 6: a pod without containers is not fenced")
	}
}

// What holds a container is not guessed while NVML has not answered, and is known
// once it has.
func TestSynchronizeBeforeNVML(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	c := running(containerOf(pod, "main"), v1alpha1.EnvSlice+"="+pod.Uid)
	n.gpus.limits[gpu0+"/cgroup/"+c.Id] = 20480
	n.gpus.unscanned = true
	r.Lists([]*api.PodSandbox{pod}, []*api.Container{c})
	connect(t, r, n.Plugin)
	n.Observe()
	if got := n.Table.Slices(); len(got) != 0 {
		t.Errorf("slices %+v", got)
	}
	n.gpus.mu.Lock()
	n.gpus.unscanned = false
	n.gpus.mu.Unlock()
	n.Observe()
	if got := n.Table.Slices(); len(got) != 1 || got[0].Memory != v1alpha1.GuaranteeDriver {
		t.Errorf("slices %+v", got)
	}
}

// A container that was created before the restart is started after it.
func TestSynchronizeCreated(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	c := containerOf(pod, "main", v1alpha1.EnvSlice+"="+pod.Uid)
	c.State = api.ContainerState_CONTAINER_CREATED
	r.Lists([]*api.PodSandbox{pod}, []*api.Container{c})
	connect(t, r, n.Plugin)
	must.Do(t, r.StartContainer(pod, c))
	if got := n.Table.Slices(); len(got) != 1 || got[0].Memory != v1alpha1.GuaranteeDriver {
		t.Errorf("slices %+v", got)
	}
}

// Invariant 2: a container that has slices and runs without their limits is
// ended, so that it comes through us; its pod is told why.
func TestSynchronizeUnenforced(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	// The mark of another pod is no mark.
	c := running(containerOf(pod, "main"), v1alpha1.EnvSlice+"=uid-other")
	r.Lists([]*api.PodSandbox{pod}, []*api.Container{c})
	connect(t, r, n.Plugin)
	if want := []string{c.Id}; !reflect.DeepEqual(n.killed, want) {
		t.Errorf("Invariant 2: killed %v, want %v", n.killed, want)
	}
	if len(n.events.said) != 1 || !strings.HasPrefix(n.events.said[0], "a "+ReasonUnenforced) {
		t.Errorf("events %v", n.events.said)
	}
	if n.Table.Fence(uid(pod)) {
		t.Error("Invariant 1: its pod is fenced before it is gone")
	}
	r.StopContainer(t, pod, c)
	if !n.Table.Fence(uid(pod)) {
		t.Error("Invariant 6: its end went unnoticed")
	}
}

// A container that holds a GPU without a slice is told of; a privileged one, as
// we are ourselves, is not.
func TestSynchronizeUnmanaged(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	pod := podOf("b", "")
	holder, own := running(containerOf(pod, "holder")), running(privileged(containerOf(pod, "own")))
	holder.Linux.Devices = []*api.LinuxDevice{{Path: "/dev/nvidia0", Type: "c", Major: 195}}
	own.Linux.Devices = holder.Linux.Devices
	r.Lists([]*api.PodSandbox{pod}, []*api.Container{holder, own})
	connect(t, r, n.Plugin)
	if len(n.events.said) != 1 || !strings.Contains(n.events.said[0], ReasonUnmanaged+" container holder") {
		t.Errorf("Invariant 3: events %v", n.events.said)
	}
	if len(n.killed) != 0 {
		t.Errorf("killed %v", n.killed)
	}
}

// A runtime that goes away and comes back finds us again.
func TestReconnect(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	wire := r.ThroughWire(t)
	l := connect(t, r, n.Plugin)
	for range 2 {
		wire.Cut()
		if l.await(t, func(m moment) bool { return m.err != nil }).synced {
			t.Error("Invariant 1: the table counts as the runtime's state without a connection")
		}
		l.await(t, func(m moment) bool { return m.err == nil })
	}
}

// Invariant 1: after a restart of the agent containers that run are counted on
// their device, also those whose slices the ledger has lost; and those that do not
// run yet stay where they are.
func TestSynchronizeCounts(t *testing.T) {
	cases := map[string]struct {
		slice v1alpha1.Slice
		// lost: what of the ledger is gone after the restart.
		lost func(*testNode)
		// Another container of that much is refused.
		core v1alpha1.Percent
		mem  v1alpha1.MiB
	}{
		"in the ledger":       {slice: v1alpha1.Slice{Core: 70, Mem: 1024}, lost: func(*testNode) {}, core: 31, mem: 1},
		"slices lost":         {slice: v1alpha1.Slice{Core: 70, Mem: 1024}, lost: (*testNode).loseSpec, core: 31, mem: 1},
		"slices lost, by MiB": {slice: v1alpha1.Slice{Core: 0, Mem: size - 10}, lost: (*testNode).loseSpec, core: 1, mem: 11},
		"ledger lost":         {slice: v1alpha1.Slice{Core: 70, Mem: 1024}, lost: (*testNode).loseLedger, core: 31, mem: 1},
		"whole device lost": {slice: v1alpha1.Slice{Core: 100, Mem: size, Mode: v1alpha1.ModeExclusive},
			lost: (*testNode).loseSpec, core: 0, mem: 1},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			n, r := connected(t)
			a := podOf("a", "")
			c.slice.Pod, c.slice.Owner, c.slice.Ctr = uid(a), owner(a), "main"
			n.ledger.grant(gpu0, c.slice)
			ctr := containerOf(a, "main")
			must.Get(r.Create(a, ctr))(t)
			must.Do(t, r.StartContainer(a, ctr))
			n.ledger.watched.Status.Slices = n.Table.Slices()
			r = nritest.Start(t)
			running(ctr, v1alpha1.EnvSlice+"="+a.Uid)
			// One of its runs that is about to end, and one that never began.
			before := containerOf(a, "main", v1alpha1.EnvSlice+"="+a.Uid)
			before.Id = "before"
			r.Lists([]*api.PodSandbox{a}, []*api.Container{ctr, running(before)})

			c.lost(n)
			n.Plugin = n.restarted()
			connect(t, r, n.Plugin)
			beside := func(core v1alpha1.Percent, mem v1alpha1.MiB) error {
				b := podOf("b", "")
				n.ledger.watched.Spec.Devices = nil
				n.ledger.grant(gpu0, v1alpha1.Slice{Pod: uid(b), Owner: owner(b), Ctr: "main", Core: core, Mem: mem})
				_, err := r.Create(b, containerOf(b, "main"))
				return err
			}
			refusedFor(t, beside(c.core, c.mem), "pod team/a (main)", gpu0)
			if free := size - c.slice.Mem; free > 0 {
				if err := beside(v1alpha1.WholeGPU-c.slice.Core, free); err != nil {
					t.Errorf("Invariant 6: what is free is refused: %v", err)
				}
			}
		})
	}
}

// A container that was created before the restart and has lost its slices since
// is not started.
func TestSynchronizeLostBeforeStart(t *testing.T) {
	n, r := newNode(t), nritest.Start(t)
	pod := podOf("a", share30)
	n.ledger.grant(gpu0, slice30(pod))
	connect(t, r, n.Plugin)
	c := containerOf(pod, "main")
	must.Get(r.Create(pod, c))(t)
	r = nritest.Start(t)
	c.Env, c.State = append(c.Env, v1alpha1.EnvSlice+"="+pod.Uid), api.ContainerState_CONTAINER_CREATED
	r.Lists([]*api.PodSandbox{pod}, []*api.Container{c})
	n.loseLedger()
	n.Plugin = n.restarted()
	connect(t, r, n.Plugin)
	refusedFor(t, r.StartContainer(pod, c), "no slices")
}

// How long slices may outlive their pod is the kubelet's word on the container, which is there
// after a restart of the agent too, and an hour at most.
func TestHostileGrace(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"30": 30 * time.Second, "0": 0, "3600": time.Hour, "3601": time.Hour, "94608000": time.Hour,
		"9223372036854775807": time.Hour, "": time.Hour, "-1": time.Hour, "soon": time.Hour,
	} {
		n, r := newNode(t), nritest.Start(t)
		first := connect(t, r, n.Plugin)
		pod := podOf("a", share30)
		n.ledger.grant(gpu0, slice30(pod))
		c := containerOf(pod, "main")
		c.Annotations = map[string]string{"io.kubernetes.pod.terminationGracePeriod": text}
		must.Get(r.Create(pod, c))(t)
		if e, _ := n.Table.Get(c.Id); e.Grace != want {
			t.Errorf("%q: %s, want %s", text, e.Grace, want)
		}
		first.disconnect()
		r.Lists([]*api.PodSandbox{pod}, []*api.Container{running(c, v1alpha1.EnvSlice+"="+pod.Uid)})
		connect(t, r, n.Plugin)
		if e, _ := n.Table.Get(c.Id); e.Grace != want {
			t.Errorf("%q: %s after a restart, want %s", text, e.Grace, want)
		}
	}
}
