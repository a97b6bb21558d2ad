// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/capacity"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/nritest"
)

// TestAgent runs whole agents, with the rights of deploy/rbac, against a real API
// server and the real NRI. Every subtest has a node of its own.
func TestAgent(t *testing.T) {
	c := newCluster(t)
	for name, test := range map[string]func(*testing.T, *cluster){
		"ledger":              testLedger,
		"account":             testAccount,
		"capacity":            testCapacity,
		"classes":             testClasses,
		"release":             testRelease,
		"release of finished": testReleaseFinished,
		"release of unbound":  testReleaseUnbound,
		"restart":             testRestart,
		"ledger deleted":      testLedgerDeleted,
		"ledger edited":       testLedgerEdited,
		"unenforced":          testUnenforced,
		"unguarded":           testUnguarded,
		"driver replaced":     testDriverReplaced,
		"MIG mode":            testMIGMode,
		"driver hangs":        testDriverHangs,
	} {
		t.Run(name, func(t *testing.T) { test(t, c) })
	}
}

// The agent makes its node's ledger, which goes with the node, and describes the
// node in it.
func testLedger(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.start(t)
	l := n.awaitLedger(t, "it is ready", func(l *v1alpha1.SliceLedger) bool {
		return meta.IsStatusConditionTrue(l.Status.Conditions, v1alpha1.ConditionReady) && len(l.Status.Devices) == 2
	})
	if len(l.OwnerReferences) != 1 || l.OwnerReferences[0].Kind != "Node" || l.OwnerReferences[0].UID != n.uid {
		t.Errorf("owner %+v, want node %s", l.OwnerReferences, n.uid)
	}
	if l.Status.Summary.Devices != 2 || l.Status.Summary.Models != "A100" || l.Status.Driver.Version != "615" ||
		l.Status.Driver.GDR != v1alpha1.GDRNone || l.Status.Topology == nil || !slices.Equal(l.Status.Topology.NVLink, []v1alpha1.DeviceSet{"0-1"}) {
		t.Errorf("status %+v", l.Status)
	}
	n.awaitLedger(t, "what is granted and free is summed up", func(l *v1alpha1.SliceLedger) bool {
		s := l.Status.Summary
		return s.CoreGranted != nil && *s.CoreGranted == 0 && s.CoreFree != nil && *s.CoreFree == 2*v1alpha1.WholeGPU && s.MemFree != nil && *s.MemFree > 0
	})
	if len(l.Spec.Devices) != 0 {
		t.Errorf("the agent granted something: %+v", l.Spec)
	}
	n.wire.Die()
	l = n.awaitLedger(t, "the loss of the runtime shows", func(l *v1alpha1.SliceLedger) bool {
		return meta.IsStatusConditionFalse(l.Status.Conditions, v1alpha1.ConditionReady)
	})
	if got := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ConditionReady); got.Reason != "RuntimeDisconnected" {
		t.Errorf("condition %+v", got)
	}
}

// The agent publishes its node's account, which goes with the node, and goes on with it after a
// restart: what pods were granted, and what was free.
func testAccount(t *testing.T, c *cluster) {
	n := c.newNode(t)
	stop := n.start(t)
	u := &v1alpha1.SliceUsage{}
	c.await(t, "its account is published", func() bool {
		return c.admin.Get(t.Context(), types.NamespacedName{Name: n.name}, u) == nil && !u.Status.Since.IsZero()
	})
	if len(u.OwnerReferences) != 1 || u.OwnerReferences[0].Kind != "Node" || u.OwnerReferences[0].UID != n.uid {
		t.Errorf("owner %+v, want node %s", u.OwnerReferences, n.uid)
	}
	n.runPod(t, "a")
	kept := filepath.Join(n.options.StateDir, usageFile)
	c.await(t, "what a pod was granted is in the file", func() bool {
		text, err := os.ReadFile(kept)
		return err == nil && strings.Contains(string(text), `"namespace":"default"`)
	})
	before := must.Get(os.ReadFile(kept))(t)
	stop()
	n.start(t)
	c.await(t, "the next agent goes on with it", func() bool {
		text, err := os.ReadFile(kept)
		return err == nil && !bytes.Equal(text, before) && bytes.Contains(text, []byte(`"since":"`+u.Status.Since.UTC().Format(time.RFC3339)))
	})
}

// Invariant 2: on a node whose runtime does not hold containers back while the
// agent is away nothing is granted, and the ledger says why.
func testUnguarded(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.runtime = nritest.StartUnguarded(t)
	n.options.NRISocket = n.runtime.Socket
	n.start(t) // and a first container is created
	n.awaitLedger(t, "the missing guard shows", func(l *v1alpha1.SliceLedger) bool {
		ready := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ConditionReady)
		return ready != nil && ready.Status == metav1.ConditionFalse && ready.Reason == "RuntimeUnguarded" &&
			strings.Contains(ready.Message, "default_validator")
	})
}

// Capacity is what the healthy devices and those with slices amount to, and comes back
// at once.
func testCapacity(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.start(t)
	n.awaitCapacity(t, 2)
	// As a kubelet does that starts over.
	node := n.node(t)
	for name := range capacity.Of(nil) {
		delete(node.Status.Capacity, name)
		node.Status.Allocatable[name] = resource.MustParse("0")
	}
	must.Do(t, c.admin.Status().Update(t.Context(), node))
	n.awaitCapacity(t, 2)
	if got := n.node(t).Status.Capacity[corev1.ResourceCPU]; got.String() != "8" {
		t.Errorf("the node has %s CPUs, want 8: only our resources are ours", got.String())
	}
	n.gpus.break1("Xid 79")
	n.awaitCapacity(t, 1)
	n.awaitLedger(t, "the illness shows", func(l *v1alpha1.SliceLedger) bool {
		return len(l.Status.Devices) == 2 && !l.Status.Devices[1].Healthy && l.Status.Devices[1].Reason == "Xid 79"
	})
	// Invariant 4: what a pod asks for stays there with it.
	n.edit(t, gpu1, func(d *v1alpha1.DeviceLedger) {
		d.Slices = []v1alpha1.Slice{{Pod: "unhealthy", Owner: "default/unhealthy", Ctr: "main", Core: 10, Mem: 1024}}
	})
	n.awaitCapacity(t, 2)
	n.edit(t, gpu1, func(d *v1alpha1.DeviceLedger) { d.Slices = nil })
	n.awaitCapacity(t, 1)
	n.gpus.break1("")
	n.awaitCapacity(t, 2)
}

// Invariant 1 and 6: slices are held while a container of the pod is there, also
// when the pod is not, and are given back when both are gone.
func testRelease(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.start(t)
	pod, sandbox, ctr := n.runPod(t, "a")
	n.awaitLedger(t, "the slice in use shows", func(l *v1alpha1.SliceLedger) bool {
		s := l.Status.Slices
		return len(s) == 1 && s[0].Pod == pod.UID && s[0].Container == ctr.Id && s[0].Memory == v1alpha1.GuaranteeDriver
	})
	// Gone by force, its container still runs.
	c.delete(t, pod)
	n.settled(t)
	if l := n.ledger(t); len(l.Status.Released) != 0 {
		t.Fatalf("Invariant 1: released %v with a running container", l.Status.Released)
	}
	n.runtime.StopContainer(t, sandbox, ctr)
	n.awaitLedger(t, "it is released", func(l *v1alpha1.SliceLedger) bool {
		return slices.Equal(l.Status.Released, []types.UID{pod.UID}) && len(l.Status.Slices) == 0
	})
	// A late creation would use what the allocator may give to others now.
	if _, err := n.runtime.Create(sandbox, container(sandbox)); err == nil || !strings.Contains(err.Error(), "given back") {
		t.Errorf("Invariant 1: creation after the release: %v", err)
	}
	n.revoke(t, pod.UID)
	n.awaitLedger(t, "the handshake is over", func(l *v1alpha1.SliceLedger) bool { return len(l.Status.Released) == 0 })
	c.await(t, "its files are gone", func() bool {
		_, err := os.Stat(filepath.Join(n.options.StateDir, string(pod.UID)))
		return os.IsNotExist(err)
	})
}

// A pod that has finished gives its slices back while it stays.
func testReleaseFinished(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.start(t)
	pod, sandbox, ctr := n.runPod(t, "a")
	n.runtime.StopContainer(t, sandbox, ctr)
	n.settled(t)
	if l := n.ledger(t); len(l.Status.Released) != 0 {
		t.Fatalf("Invariant 4: released %v between two runs of a container", l.Status.Released)
	}
	pod.Status.Phase = corev1.PodSucceeded
	must.Do(t, c.admin.Status().Update(t.Context(), pod))
	n.awaitLedger(t, "it is released", func(l *v1alpha1.SliceLedger) bool {
		return slices.Equal(l.Status.Released, []types.UID{pod.UID})
	})
}

// Invariant 6: slices of a pod that never came here, and of one whose name is
// another pod's by now, are given back; those of one that is still to come
// aren't.
func testReleaseUnbound(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.start(t)
	coming := c.createPod(t, n.name+"-coming", "")
	replaced := c.createPod(t, n.name+"-replaced", "")
	n.grant(t, "gone-uid", "default/"+n.name+"-gone")
	n.grant(t, "replaced-uid", "default/"+replaced.Name)
	n.grant(t, coming.UID, "default/"+coming.Name)
	n.awaitLedger(t, "both are released", func(l *v1alpha1.SliceLedger) bool {
		return slices.Equal(l.Status.Released, []types.UID{"gone-uid", "replaced-uid"})
	})
}

// Invariant 4: an agent that is started again goes on where it was: running
// containers stay, and what was given back stays given back.
func testRestart(t *testing.T, c *cluster) {
	n := c.newNode(t)
	stop := n.start(t)
	pod, sandbox, ctr := n.runPod(t, "a")
	n.grant(t, "gone-uid", "default/"+n.name+"-gone")
	n.awaitLedger(t, "one is in use, one released", func(l *v1alpha1.SliceLedger) bool {
		return len(l.Status.Slices) == 1 && len(l.Status.Released) == 1
	})
	stop()
	ctr.State = api.ContainerState_CONTAINER_RUNNING
	ctr.Env = append(ctr.Env, v1alpha1.EnvSlice+"="+string(pod.UID))
	n.runtime.Lists([]*api.PodSandbox{sandbox}, []*api.Container{ctr})
	before := n.ledger(t)
	n.start(t)
	n.settled(t)
	after := n.ledger(t)
	if len(after.Status.Slices) != 1 || after.Status.Slices[0] != before.Status.Slices[0] {
		t.Errorf("slices %+v, before the restart %+v", after.Status.Slices, before.Status.Slices)
	}
	if !slices.Equal(after.Status.Released, before.Status.Released) {
		t.Errorf("released %v, before the restart %v", after.Status.Released, before.Status.Released)
	}
	gone := &api.PodSandbox{Id: "late", Name: n.name + "-gone", Namespace: "default", Uid: "gone-uid"}
	if _, err := n.runtime.Create(gone, container(gone)); err == nil || !strings.Contains(err.Error(), "given back") {
		t.Errorf("Invariant 1: creation after release and restart: %v", err)
	}
}

// A ledger that somebody deletes is made again.
func testLedgerDeleted(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.start(t)
	before := n.awaitLedger(t, "it is there", func(*v1alpha1.SliceLedger) bool { return true })
	must.Do(t, c.admin.Delete(t.Context(), before))
	n.awaitLedger(t, "it is there again", func(l *v1alpha1.SliceLedger) bool {
		return l.UID != before.UID && len(l.Status.Devices) == 2
	})
}

// Where somebody edits what a container that runs is granted, the ledger shows what it has,
// until it is as before.
func testLedgerEdited(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.start(t)
	pod, _, _ := n.runPod(t, "a")
	set := func(core v1alpha1.Percent, mem v1alpha1.MiB) {
		n.edit(t, gpu0, func(d *v1alpha1.DeviceLedger) { d.Slices[0].Core, d.Slices[0].Mem = core, mem })
	}
	l := n.awaitLedger(t, "its slice is in use", func(l *v1alpha1.SliceLedger) bool { return len(l.Status.Slices) == 1 })
	if c := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ConditionDrifted); c != nil || l.Status.Slices[0].InForce != nil {
		t.Errorf("before anybody edits: condition %+v, slice %+v", c, l.Status.Slices[0])
	}
	for _, edited := range []v1alpha1.Amounts{{Core: 5, Mem: 1024}, {Core: 10, Mem: 2048}} {
		set(edited.Core, edited.Mem)
		l = n.awaitLedger(t, "it has drifted", func(l *v1alpha1.SliceLedger) bool {
			return meta.IsStatusConditionTrue(l.Status.Conditions, v1alpha1.ConditionDrifted) && l.Status.ObservedGeneration == l.Generation
		})
		if has := l.Status.Slices[0].InForce; has == nil || *has != (v1alpha1.Amounts{Core: 10, Mem: 1024}) {
			t.Errorf("in force are %+v, want 10 core + 1024 MiB", has)
		}
		want := fmt.Sprintf("container main of pod default/%s runs with 10 %% compute and 1,024 MiB of %s and is granted %s. Put", pod.Name, gpu0, v1alpha1.AmountsText(edited.Core, edited.Mem))
		if c := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ConditionDrifted); !strings.Contains(c.Message, want) {
			t.Errorf("condition says %q, want %q", c.Message, want)
		}
	}
	set(10, 1024)
	n.awaitLedger(t, "it is as before", func(l *v1alpha1.SliceLedger) bool {
		return meta.IsStatusConditionFalse(l.Status.Conditions, v1alpha1.ConditionDrifted) && l.Status.Slices[0].InForce == nil
	})
}

// Invariant 2: a container that is found without its limits is told of at its pod.
func testUnenforced(t *testing.T, c *cluster) {
	n := c.newNode(t)
	stop := n.start(t)
	pod, sandbox, _ := n.runPod(t, "a")
	stop()
	ctr := container(sandbox)
	ctr.State, ctr.Pid = api.ContainerState_CONTAINER_RUNNING, 0
	n.runtime.Lists([]*api.PodSandbox{sandbox}, []*api.Container{ctr})
	n.start(t)
	c.await(t, "an event says so", func() bool {
		list := &corev1.EventList{}
		if err := c.admin.List(t.Context(), list); err != nil {
			return false
		}
		return slices.ContainsFunc(list.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.UID == pod.UID && e.Reason == hooks.ReasonUnenforced && strings.Contains(e.Message, "delete the pod")
		})
	})
}

// Invariant 4: an agent under which the driver is replaced ends itself and says why in
// the ledger; the next one finds everything as it was, and tells which driver there is.
func testDriverReplaced(t *testing.T, c *cluster) {
	n := c.newNode(t)
	n.gpus.fails(nil, "615")
	ended := make(chan error, 1)
	go func() { ended <- Run(t.Context(), n.options) }()
	n.awaitLedger(t, "the driver shows", func(l *v1alpha1.SliceLedger) bool {
		return l.Status.Driver.Version == "615" && meta.IsStatusConditionTrue(l.Status.Conditions, v1alpha1.ConditionReady)
	})
	n.runtime.Admitted() // which may be a moment after the agent takes itself for connected
	pod, sandbox, ctr := n.runPod(t, "a")
	before := n.awaitLedger(t, "the slice in use shows", func(l *v1alpha1.SliceLedger) bool { return len(l.Status.Slices) == 1 })
	n.gpus.fails(fmt.Errorf("the driver's library was replaced: %w", device.ErrReplaced), "")
	if err := <-ended; !errors.Is(err, device.ErrReplaced) {
		t.Fatalf("ended with %v, want %v", err, device.ErrReplaced)
	}
	l := n.ledger(t)
	ready := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ConditionReady)
	if ready.Status != metav1.ConditionFalse || ready.Reason != "DriverReplaced" || len(l.Status.Slices) != 1 {
		t.Errorf("status %+v", l.Status)
	}
	ctr.State = api.ContainerState_CONTAINER_RUNNING
	ctr.Env = append(ctr.Env, v1alpha1.EnvSlice+"="+string(pod.UID))
	n.runtime.Lists([]*api.PodSandbox{sandbox}, []*api.Container{ctr})

	n.gpus.fails(fmt.Errorf("loading NVML: %w", device.ErrMismatch), "")
	open := n.options.Open
	n.options.Open = func() (device.Library, error) { // as with the old module
		if _, err := n.gpus.Scan(); err != nil {
			return nil, err
		}
		return open()
	}
	n.start(t)
	n.awaitLedger(t, "the mismatch shows", func(l *v1alpha1.SliceLedger) bool {
		ready := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ConditionReady)
		return ready.Reason == "DriverMismatch" && strings.Contains(ready.Message, "reboot")
	})
	n.gpus.fails(nil, "620")
	after := n.awaitLedger(t, "the new driver shows", func(l *v1alpha1.SliceLedger) bool {
		return l.Status.Driver.Version == "620" && meta.IsStatusConditionTrue(l.Status.Conditions, v1alpha1.ConditionReady)
	})
	if len(after.Status.Slices) != 1 || after.Status.Slices[0] != before.Status.Slices[0] {
		t.Errorf("slices %+v, before %+v", after.Status.Slices, before.Status.Slices)
	}
	c.await(t, "an event says so, once", func() bool {
		list := &corev1.EventList{}
		if err := c.admin.List(t.Context(), list); err != nil {
			return false
		}
		told := 0
		for _, e := range list.Items {
			if e.InvolvedObject.Kind == "SliceLedger" && e.InvolvedObject.Name == n.name && e.Reason == reasonDriver && strings.Contains(e.Message, "is 620, it was 615") {
				told++
			}
		}
		return told == 1
	})
}

// A driver that hangs while the agent asks what holds a running container keeps it neither
// from connecting to the runtime again nor from seeing what becomes of the devices.
func testDriverHangs(t *testing.T, c *cluster) {
	n := c.newNode(t)
	stop := n.start(t)
	pod, sandbox, ctr := n.runPod(t, "a")
	stop()
	ctr.State = api.ContainerState_CONTAINER_RUNNING
	ctr.Env = append(ctr.Env, v1alpha1.EnvSlice+"="+string(pod.UID))
	n.runtime.Lists([]*api.PodSandbox{sandbox}, []*api.Container{ctr})
	answers := n.gpus.hang()
	nritest.Impatient(t)
	n.start(t)
	t.Cleanup(answers)
	for _, reason := range []string{"Xid 79", ""} {
		n.gpus.break1(reason)
		n.awaitLedger(t, "the device shows as it is", func(l *v1alpha1.SliceLedger) bool {
			return len(l.Status.Devices) == 2 && l.Status.Devices[1].Reason == reason
		})
	}
	n.wire.Cut()
	n.awaitAsked(t)
	answers()
	n.awaitLedger(t, "the slice in use shows", func(l *v1alpha1.SliceLedger) bool {
		return len(l.Status.Slices) == 1 && l.Status.Slices[0].Memory == v1alpha1.GuaranteeDriver
	})
}
