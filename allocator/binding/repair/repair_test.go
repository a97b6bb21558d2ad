// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/agents"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// All that no container will use again is taken back in one write, and nothing else is.
func TestTakenBack(t *testing.T) {
	l := objects.ReadyLedger("n")
	var pods []*corev1.Pod
	add := func(name string, edit func(*corev1.Pod)) {
		p := objects.Halves(name, "c")
		objects.Grant(l, p, on{"c": len(pods) % 2})
		if edit != nil {
			edit(p)
		}
		pods = append(pods, p)
	}
	add("released", func(p *corev1.Pod) { bound(p, l, on{"c": 0}) })
	add("deleted", nil)
	add("late", nil)
	add("elsewhere", func(p *corev1.Pod) {
		objects.Place(p, objects.ReadyLedger("m"), on{"c": 0})
	})
	add("deleting", func(p *corev1.Pod) {
		p.DeletionTimestamp, p.Finalizers = ptr.To(metav1.NewTime(start)), []string{"keep"}
	})
	add("waits", nil)
	add("held", nil)
	add("bound", func(p *corev1.Pod) { bound(p, l, on{"c": 1}) })
	l.Status.Released = []types.UID{"released", "released-before"}
	objects.Grant(l, objects.Halves("late-and-gone", "c"), on{"c": 0})
	grants.Hold(l, "a", start, "late", "late-and-gone")
	grants.Hold(l, "b", start.Add(10*time.Second), "held")
	objects.Grant(l, objects.Halves("unknown", "c"), on{"c": 0})

	f := newFixture(t, l, pods...)
	f.handlers.DeletePod(f.pod("deleted"), true)
	f.reconcile(0)
	left := slices.Sorted(maps.Keys(grants.Pods(f.ledger())))
	if want := []types.UID{"bound", "held", "unknown", "waits"}; !slices.Equal(left, want) || f.specs != 1 {
		t.Errorf("%v have slices after %d writes, want %v after 1", left, f.specs, want)
	}
	// Neither who is at our gate nor who was held a slice has had one.
	if _, others := f.newEvents(); others != 3 {
		t.Errorf("%d events, want those of released, deleted and elsewhere", others)
	}
	if again := f.work.Later[queue.Item{Node: "n"}]; again != 10*time.Second {
		t.Errorf("looked at again in %v, want when the next hold ends", again)
	}
	var finished []string
	for it := range f.work.Due {
		if it.Pod.Name != "" {
			finished = append(finished, it.Pod.Name)
		}
	}
	if slices.Sort(finished); !slices.Equal(finished, []string{"held", "late", "waits"}) {
		t.Errorf("looked at are %v, want those at our gate", finished)
	}
	if f.reconcile(9 * time.Second); f.specs != 1 {
		t.Errorf("%d writes with nothing to take back", f.specs)
	}
	if f.reconcile(time.Second); f.specs != 2 || grants.Pods(f.ledger())["held"] != "" {
		t.Errorf("a hold that has ended stays, %d writes", f.specs)
	}
}

// A ledger that is gone is nobody's work.
func TestNoLedger(t *testing.T) {
	f := newFixture(t, objects.ReadyLedger("n"))
	f.handlers.DeleteLedger(f.ledger())
	if f.reconcile(0); f.specs+f.statuses != 0 {
		t.Errorf("%d writes", f.specs+f.statuses)
	}
}

// Containers move off a device that failed before it was used.
func TestReassign(t *testing.T) {
	unhealthy := func(l *v1alpha1.SliceLedger) { l.Status.Devices[0].Healthy = false }
	gone := func(l *v1alpha1.SliceLedger) { l.Status.Devices = l.Status.Devices[1:] }
	tests := []struct {
		name string
		fail func(*v1alpha1.SliceLedger)
		// edit changes the pod, whose containers a and b have slices of the first and the
		// second device and cannot be created.
		edit func(*corev1.Pod, *v1alpha1.SliceLedger)
		a    string
	}{
		{"unhealthy", unhealthy, nil, second},
		{"gone", gone, nil, second},
		{"no failure", func(*v1alpha1.SliceLedger) {}, nil, first},
		{"it may be on no other device", unhealthy, func(p *corev1.Pod, _ *v1alpha1.SliceLedger) { p.Annotations[v1alpha1.AnnotationGPUUUID] = first }, first},
		{"both failed", func(l *v1alpha1.SliceLedger) {
			unhealthy(l)
			l.Status.Devices[1].Healthy = false
		}, nil, first},
		{"no room", func(l *v1alpha1.SliceLedger) {
			objects.Grant(l, objects.Halves("other", "c"), on{"c": 1})
			unhealthy(l)
		}, nil, first},
		{"not tried yet", unhealthy, func(p *corev1.Pod, _ *v1alpha1.SliceLedger) { p.Status = corev1.PodStatus{} }, first},
		{"a container of it has run", unhealthy, func(p *corev1.Pod, _ *v1alpha1.SliceLedger) { p.Status.ContainerStatuses[1].ContainerID = "id" }, first},
		{"the node has it in use", unhealthy, func(p *corev1.Pod, l *v1alpha1.SliceLedger) {
			l.Status.Slices = append(l.Status.Slices, v1alpha1.SliceStatus{Pod: p.UID, Ctr: "a", UUID: first})
		}, first},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := objects.ReadyLedger("n")
			p := failing(bound(objects.Halves("p", "a", "b"), l, on{"a": 0, "b": 1}))
			objects.Grant(l, p, on{"a": 0, "b": 1})
			granted := &metav1.Time{Time: start.Add(-time.Hour)}
			l.Spec.Devices[0].Slices[0].Since, l.Spec.Devices[1].Slices[0].Since = granted, granted
			if tt.fail(l); tt.edit != nil {
				tt.edit(p, l)
			}
			f := newFixture(t, l, p)
			f.reconcile(0)
			if a, b := f.device(p, "a"), f.device(p, "b"); a != tt.a || b != second {
				t.Errorf("a has %s and b %s, want %s and %s", a, b, tt.a, second)
			}
			moved := tt.a != first
			if _, others := f.newEvents(); (others == 2) != moved || (f.specs == 1) != moved {
				t.Errorf("moved: %v, with %d events and %d writes", moved, others, f.specs)
			}
			if !moved {
				return
			}
			// It leaves what a had, and begins there; b has been where it is.
			device := "GPU 0 (" + first + ")"
			if tt.name == "gone" {
				device = first
			}
			if said, want := <-f.recorder.Events, "Normal VernierReleased had slices from 1969-12-31T23:16:40Z to 1970-01-01T00:16:40Z on node n; container a: "+
				device+", 50 % compute and 500 MiB, limiter"; said != want {
				t.Errorf("sent %q, want %q", said, want)
			}
			if said := <-f.recorder.Events; !strings.Contains(said, notify.ReasonMoved) {
				t.Errorf("then sent %q", said)
			}
			since := map[string]int64{}
			for _, d := range f.ledger().Spec.Devices {
				for _, s := range d.Slices {
					since[s.Ctr] = s.Since.Unix()
				}
			}
			if since["a"] != start.Unix() || since["b"] != granted.Unix() {
				t.Errorf("granted at %v, moved at %v: since %v", granted.Unix(), start.Unix(), since)
			}
		})
	}
}

// The GPUs of a pod that requires it follow its CPUs: all of its containers get devices of the
// NUMA node that the agent names, also where an init container without slices has run.
func TestReassignFollowsCPUs(t *testing.T) {
	tests := []struct {
		name string
		edit func(*v1alpha1.SliceLedger, *corev1.Pod)
		at   string
	}{
		{"to the other node", nil, "GPU-n-2"},
		{"an init container has run", func(_ *v1alpha1.SliceLedger, p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "init", ContainerID: "id", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{}}}}
		}, "GPU-n-2"},
		{"the device there is unhealthy", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { l.Status.Devices[2].Healthy = false }, first},
		{"no room there", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) {
			objects.Grant(l, objects.Halves("other", "c"), on{"c": 2})
		}, first},
		{"the node has it in use", func(l *v1alpha1.SliceLedger, p *corev1.Pod) {
			l.Status.Slices = append(l.Status.Slices, v1alpha1.SliceStatus{Pod: p.UID, Ctr: "a", UUID: first})
		}, first},
		{"it is another pod", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { l.Status.Misaligned[0].Pod = "q" }, first},
		{"it is there", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { l.Status.Misaligned[0].NUMA = 0 }, first},
		{"no GPU is there", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { l.Status.Misaligned[0].NUMA = 2 }, first},
		{"no node is known", func(l *v1alpha1.SliceLedger, _ *corev1.Pod) { l.Status.Devices[2].NUMA = nil }, first},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := objects.ReadyLedger("n")
			third := l.Status.Devices[1]
			third.UUID, third.Index = "GPU-n-2", 2
			l.Status.Devices = append(l.Status.Devices, third)
			for i, node := range []int32{0, 0, 1} {
				l.Status.Devices[i].NUMA = &node
			}
			p := failing(bound(objects.Halves("p", "a", "b"), l, on{"a": 0, "b": 0}))
			objects.Grant(l, p, on{"a": 0, "b": 0})
			l.Status.Misaligned = []v1alpha1.MisalignedPod{{Pod: p.UID, NUMA: 1}}
			if tt.edit != nil {
				tt.edit(l, p)
			}
			f := newFixture(t, l, p)
			f.reconcile(0)
			f.reconcile(0) // the agent has not taken its word back yet
			if a, b := f.device(p, "a"), f.device(p, "b"); a != tt.at || b != tt.at {
				t.Errorf("a has %s and b %s, want %s", a, b, tt.at)
			}
			moved := tt.at != first
			_, others := f.newEvents()
			if (others == 2) != moved || (f.specs == 1) != moved {
				t.Errorf("moved: %v, with %d events and %d writes", moved, others, f.specs)
			}
			if others > 0 {
				<-f.recorder.Events // what it had
				if said := <-f.recorder.Events; !strings.Contains(said, "CPUs of NUMA node 1 of node n, which its GPUs were not of: moved; now") {
					t.Error(said)
				}
			}
		})
	}
}

// A percentage that moves is one of the new device, also where that is smaller; the node compares
// it with the pod's share.
func TestReassign_WhenTheOtherDeviceIsSmaller(t *testing.T) {
	for name, tt := range map[string]struct {
		shares map[string]v1alpha1.Share
		want   string
	}{
		"part":     {map[string]v1alpha1.Share{"c": {GPUs: 1, Core: 50, MemPercent: 50}}, "c 50+495 limiter;"},
		"odd part": {map[string]v1alpha1.Share{"c": {GPUs: 1, MemPercent: 33}}, "c 0+326 limiter;"},
		"whole":    {map[string]v1alpha1.Share{"c": {GPUs: 1, Core: 100, MemPercent: 100}}, "c 100+990 exclusive;"},
		"fixed":    {map[string]v1alpha1.Share{"c": {GPUs: 1, Core: 50, MemMiB: 500}}, "c 50+500 limiter;"},
		"reused": {map[string]v1alpha1.Share{"a": {GPUs: 1, Core: 50, MemPercent: 50}, "c": {GPUs: 1, Core: 10, MemPercent: 10}},
			"a 50+495 limiter reuses 10+99;c 10+99 limiter;"},
		"no room": {map[string]v1alpha1.Share{"c": {GPUs: 1, Core: 50, MemMiB: 995}}, ""},
	} {
		l := objects.ReadyLedger("n")
		p := objects.Pod("p", tt.shares)
		at := on{}
		for ctr := range tt.shares {
			at[ctr] = 0
		}
		objects.Grant(l, bound(p, l, at), at)
		last := len(p.Spec.Containers) - 1
		p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[:last], p.Spec.Containers[last:]
		failing(p)
		l.Status.Devices[0].Healthy, l.Status.Devices[1].Mem = false, 990
		f := newFixture(t, l, p)
		f.reconcile(0)
		got := ""
		for _, d := range f.ledger().Spec.Devices {
			for _, sl := range d.Slices {
				if d.UUID != second {
					continue
				}
				got += fmt.Sprintf("%s %d+%d %s", sl.Ctr, sl.Core, sl.Mem, sl.EffectiveMode())
				if sl.ReuseCore > 0 {
					got += fmt.Sprintf(" reuses %d+%d", sl.ReuseCore, sl.ReuseMem)
				}
				got += ";"
			}
		}
		if got != tt.want {
			t.Errorf("%s: got %q, want %q", name, got, tt.want)
		}
	}
}

// A container whose devices are healthy may be started this moment: it stays where it is,
// also where all would fit better elsewhere.
func TestReassignLeavesHealthyDevices(t *testing.T) {
	l := objects.ReadyLedger("n")
	third := l.Status.Devices[1]
	third.UUID, third.Index = "GPU-n-2", 2
	l.Status.Devices = append(l.Status.Devices, third)
	p := failing(bound(objects.Halves("p", "a", "b"), l, on{"a": 0, "b": 2}))
	objects.Grant(l, p, on{"a": 0, "b": 2})
	l.Status.Devices[0].Healthy = false
	f := newFixture(t, l, p)
	f.reconcile(0)
	if a, b := f.device(p, "a"), f.device(p, "b"); a == first || b != third.UUID {
		t.Errorf("a has %s and b %s", a, b)
	}
}

// Slices that were lost go back, first those of what runs, and last what has to move.
func TestRestore(t *testing.T) {
	whole := func(name string) *corev1.Pod { return objects.Halves(name, "a", "b") }
	one := on{"a": 0, "b": 0}
	tests := []struct {
		name string
		// lose makes the pods and a ledger that does not have them.
		lose func(*v1alpha1.SliceLedger) []*corev1.Pod
		// want is the device of each pod's container a; told whether there was an event.
		want map[string]string
		sent int
	}{
		{"two that do not run", func(l *v1alpha1.SliceLedger) []*corev1.Pod {
			return []*corev1.Pod{bound(objects.Halves("p", "a"), l, on{"a": 0}), bound(objects.Halves("q", "a"), l, on{"a": 1})}
		}, map[string]string{"p": first, "q": second}, 0},
		{"one that runs and an older one of the same device", func(l *v1alpha1.SliceLedger) []*corev1.Pod {
			older, runs := bound(whole("older"), l, one), bound(whole("runs"), l, one)
			older.CreationTimestamp, runs.CreationTimestamp = metav1.NewTime(start.Add(-time.Hour)), metav1.NewTime(start)
			running(runs, l, "a", first)
			running(runs, l, "b", first)
			return []*corev1.Pod{older, runs}
		}, map[string]string{"older": "", "runs": first}, 0},
		{"one whose device is gone and one of the other", func(l *v1alpha1.SliceLedger) []*corev1.Pod {
			moves, stays := bound(objects.Halves("moves", "a"), l, on{"a": 0}), bound(objects.Halves("stays", "a"), l, on{"a": 1})
			l.Status.Devices = l.Status.Devices[1:]
			return []*corev1.Pod{moves, stays}
		}, map[string]string{"moves": second, "stays": second}, 1},
		{"one whose device is gone and no room", func(l *v1alpha1.SliceLedger) []*corev1.Pod {
			moves, stays := bound(objects.Halves("moves", "a"), l, on{"a": 0}), bound(whole("stays"), l, on{"a": 1, "b": 1})
			l.Status.Devices = l.Status.Devices[1:]
			return []*corev1.Pod{moves, stays}
		}, map[string]string{"moves": "", "stays": second}, 0},
		{"one that runs elsewhere than it is granted", func(l *v1alpha1.SliceLedger) []*corev1.Pod {
			p := bound(objects.Halves("p", "a"), l, on{"a": 0})
			objects.Grant(l, p, on{"a": 1})
			running(p, l, "a", first)
			return []*corev1.Pod{p}
		}, map[string]string{"p": first}, 1},
		{"one that was granted less, and cannot start", func(l *v1alpha1.SliceLedger) []*corev1.Pod {
			p := failing(bound(objects.Halves("p", "a"), l, on{"a": 0}))
			objects.Grant(l, p, on{"a": 0})
			l.Spec.Devices[0].Slices[0].Core = 10
			return []*corev1.Pod{p}
		}, map[string]string{"p": first}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := objects.ReadyLedger("n")
			pods := tt.lose(l)
			f := newFixture(t, l, pods...)
			f.reconcile(0)
			for _, p := range pods {
				got := f.device(p, "a")
				if got != tt.want[p.Name] {
					t.Errorf("%s has %q, want %q", p.Name, got, tt.want[p.Name])
				}
				if r := podrequest.Of(p); r.Err() != nil || grants.Serves(f.ledger(), p.UID, r.Shares) != (got != "") {
					t.Errorf("%s has not what it asks for: %v (%v)", p.Name, f.ledger().Spec, r.Err())
				}
			}
			if _, others := f.newEvents(); others != tt.sent || f.specs != 1 {
				t.Errorf("%d events and %d writes, want %d and 1", others, f.specs, tt.sent)
			}
			if f.reconcile(0); f.specs != 1 {
				t.Errorf("%d writes, and one had done it", f.specs)
			}
		})
	}
}

// What the API server refuses of a ledger or of one pod keeps nothing else from being written,
// is said after a few tries, and is tried again with growing pauses, at most 5 minutes.
func TestRefusedWrites(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "any"}, "any", errors.New("no patches on Fridays"))
	l := objects.ReadyLedger("n")
	var pods []*corev1.Pod
	for _, name := range []string{"p", "q"} {
		p := objects.Single(name, objects.Share(30, 300))
		objects.Grant(l, objects.Place(p, l, on{"c": 0}), on{"c": 0})
		p.Spec.NodeName = "n"
		p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "id"}}
		pods = append(pods, p)
	}
	l.Status.Devices[0].Healthy, l.Status.Devices[0].Reason = false, "Xid 48"
	f := newFixture(t, l, pods...)
	f.Agents = &agents.Agents{}
	f.Agents.Set(agent(corev1.ConditionTrue))
	f.refuse = func(obj client.Object) error {
		if _, is := obj.(*v1alpha1.SliceLedger); is || obj.GetName() == "p" {
			return forbidden
		}
		return nil
	}
	f.reconcile(0)
	if conditionOf(f.pod("p"), v1alpha1.PodConditionGPUHealthy) != nil || conditionOf(f.pod("q"), v1alpha1.PodConditionGPUHealthy) == nil || f.statuses != 1 {
		t.Errorf("conditions %v and %v, %d statuses of the ledger", conditionOf(f.pod("p"), v1alpha1.PodConditionGPUHealthy), conditionOf(f.pod("q"), v1alpha1.PodConditionGPUHealthy), f.statuses)
	}
	if f.reconcile(0); f.conditions != 2 || f.statuses != 1 {
		t.Errorf("%d conditions, %d statuses: tried again at once", f.conditions, f.statuses)
	}
	for range 20 {
		f.reconcile(binding.LastPause)
	}
	if f.conditions != 22 || f.statuses != 21 {
		t.Errorf("%d conditions, %d statuses, want a try each in 5 minutes", f.conditions, f.statuses)
	}
	var said []string
	for len(f.recorder.Events) > 0 {
		if e := <-f.recorder.Events; strings.Contains(e, notify.ReasonWriteRefused) && strings.Contains(e, "no patches on Fridays") {
			said = append(said, e)
		}
	}
	if len(said) != 2 {
		t.Errorf("said %q, want it once of the pod and once of the ledger", said)
	}
	// Neither keeps slices from being released, once that is taken.
	f.refuse = func(client.Object) error { return nil }
	f.Binder.RetryRefused()
	if f.reconcile(binding.RetryAfterChange); conditionOf(f.pod("p"), v1alpha1.PodConditionGPUHealthy) == nil || f.reachable() == nil {
		t.Error("not written after a policy has changed")
	}
}

// A ledger whose spec is refused does not keep pods from their conditions.
func TestRefusedSpec(t *testing.T) {
	l := objects.ReadyLedger("n")
	p := objects.Single("p", objects.Share(30, 300))
	objects.Grant(l, objects.Place(p, l, on{"c": 0}), on{"c": 0})
	p.Spec.NodeName = "n"
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", ContainerID: "id"}}
	gone := objects.Single("gone", objects.Share(30, 300))
	objects.Grant(l, gone, on{"c": 1})
	l.Status.Released = append(l.Status.Released, gone.UID)
	l.Status.Devices[0].Healthy, l.Status.Devices[0].Reason = false, "Xid 48"
	f := newFixture(t, l, p)
	f.refuse = func(obj client.Object) error {
		if _, is := obj.(*v1alpha1.SliceLedger); is {
			return apierrors.NewInvalid(schema.GroupKind{Kind: "SliceLedger"}, "n", nil)
		}
		return nil
	}
	if err := f.Reconcile(t.Context(), "n"); !apierrors.IsInvalid(err) {
		t.Errorf("error %v", err)
	}
	if conditionOf(f.pod("p"), v1alpha1.PodConditionGPUHealthy) == nil {
		t.Error("no condition while the ledger's spec is refused")
	}
}
