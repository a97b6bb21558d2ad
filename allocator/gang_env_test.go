// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
	"vernier.dev/vernier/test/podgroups"
)

func coscheduled(gang string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels = map[string]string{podrequest.LabelCoscheduling: gang} }
}

func kueued(gang string, total int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels = map[string]string{podrequest.LabelKueue: gang}
		p.Annotations[podrequest.AnnotationKueueTotal] = fmt.Sprint(total)
	}
}

func native(gang string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(gang)} }
}

func gatedBy(gate string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
	}
}

// ungate is another system that takes its gate off.
func (s *server) ungate(name, gate string) {
	s.t.Helper()
	s.await("the gate of "+name, func(ctx context.Context) (bool, error) {
		p := s.pod(name)
		var left []corev1.PodSchedulingGate
		for _, g := range p.Spec.SchedulingGates {
			if g.Name != gate {
				left = append(left, g)
			}
		}
		p.Spec.SchedulingGates = left
		return s.Update(ctx, p) == nil, nil
	})
}

// granted are the pods with slices in the ledgers of some nodes, and how many of
// them are held.
func (s *server) granted(nodes ...string) (pods map[types.UID]string, held int) {
	s.t.Helper()
	pods = map[types.UID]string{}
	for _, n := range nodes {
		l := s.ledger(n)
		for uid, owner := range grants.Pods(l) {
			pods[uid] = owner
		}
		held += len(grants.Held(l))
	}
	return pods, held
}

// A gang by each of the ways to ask for one: none of it starts before all are there
// and fit, and then all of it does.
func TestGangs(t *testing.T) {
	s := startWith(t, podgroups.ServeNative)
	s.must(s.Create(t.Context(), podgroups.CRD()))
	for _, n := range []string{"gpu-1", "gpu-2"} {
		s.addNode(n)
	}
	s.run()

	workload, ofWorkload := podgroups.Workload("ns", "workload", 3)
	for name, way := range map[string]struct {
		objects []client.Object
		of      func(*corev1.Pod)
	}{
		"native":       {[]client.Object{podgroups.Native("ns", "native", 3)}, native("native")},
		"workload":     {[]client.Object{workload, ofWorkload}, native("workload")},
		"coscheduling": {[]client.Object{podgroups.Coscheduling("ns", "coscheduling", 3)}, coscheduled("coscheduling")},
		"kueue":        {nil, kueued("kueue", 3)},
	} {
		for _, obj := range way.objects {
			s.must(s.Create(t.Context(), obj))
		}
		member := func(i int) string { return fmt.Sprintf("%s-%d", name, i) }
		s.addPod(member(0), objects.Share(70, 700), way.of)
		s.addPod(member(1), objects.Share(70, 700), way.of)
		s.awaitEvent(member(0), notify.ReasonWaiting, "2 of 3 pods are there")
		// Somebody else has two of the four devices.
		s.addPod("busy-"+name, v1alpha1.Share{GPUs: 2, Core: 70, MemMiB: 700})
		s.awaitPlaced("busy-" + name)
		s.addPod(member(2), objects.Share(70, 700), way.of)
		s.awaitEvent(member(2), notify.ReasonWaiting, "room for 2 of the 3 pods that must start together; pod ns/"+name+"-")
		if pods, held := s.granted("gpu-1", "gpu-2"); len(pods) != 1 || held != 0 {
			t.Errorf("%s: a gang that does not fit holds something: %v, %d held", name, pods, held)
		}
		s.remove("busy-" + name)
		for i := range 3 {
			s.awaitPlaced(member(i))
		}
		// A fourth one, beyond the minimum, joins; so does one that is made again.
		s.addPod(member(3), objects.Share(70, 700), way.of)
		s.awaitPlaced(member(3))
		s.remove(member(1))
		s.addPod(member(1), objects.Share(70, 700), way.of)
		s.awaitPlaced(member(1))
		for i := range 4 {
			s.remove(member(i))
		}
		s.await("the devices to be free", func(context.Context) (bool, error) {
			pods, held := s.granted("gpu-1", "gpu-2")
			return len(pods)+held == 0, nil
		})
	}
}

// remove deletes a pod that was placed and not bound, and waits until its slices are taken
// back. That needs no word of its node, unless the leader has changed: the next one may
// never have seen the pod.
func (s *server) remove(name string) {
	s.t.Helper()
	p := s.pod(name)
	node := podstate.TargetNode(p)
	s.must(s.Delete(s.t.Context(), p, client.GracePeriodSeconds(0)))
	s.await(name+"'s slices to be taken back", func(ctx context.Context) (bool, error) {
		l := s.ledger(node)
		if grants.Placement(l, p.UID) == nil {
			return true, nil
		}
		if s.again.Load() > 0 {
			l.Status.Released = []types.UID{p.UID}
			_ = s.Status().Update(ctx, l) // it is tried again
		}
		return false, nil
	})
}

// What is wrong with a gang is told with the field and the remedy, and is seen when
// it is put right.
func TestGangsThatCannotBe(t *testing.T) {
	s := startWith(t, nil)
	s.addNode("gpu-1")
	s.run()
	s.addPod("a", objects.Share(10, 100), coscheduled("train"))
	s.awaitEvent("a", notify.ReasonInvalid, "label scheduling.x-k8s.io/pod-group names PodGroup ns/train, and this cluster has no PodGroups of scheduling.x-k8s.io")
	s.must(s.Create(t.Context(), podgroups.CRD()))
	s.awaitEvent("a", notify.ReasonInvalid, "PodGroup ns/train of scheduling.x-k8s.io, which does not exist: create it")
	g := podgroups.Coscheduling("ns", "train", 0)
	s.await("the PodGroup", func(ctx context.Context) (bool, error) { return s.Create(ctx, g) == nil, nil })
	s.awaitEvent("a", notify.ReasonInvalid, "PodGroup ns/train: spec.minMember is 0: set it to the number of pods that must start together")
	s.setMinMember("train", 4)
	s.addPod("b", objects.Share(90, 900), coscheduled("train"))
	s.addPod("c", objects.Share(90, 900), coscheduled("train"))
	s.addPod("d", objects.Share(90, 900), coscheduled("train"))
	s.awaitEvent("d", notify.ReasonWaiting, "all GPUs of the cluster would not be enough for 4: lower spec.minMember, ask for less, or add nodes")
	s.setMinMember("train", 2)
	for _, p := range []string{"a", "b"} {
		s.awaitPlaced(p)
	}
	// Without a total count, and with two.
	s.addPod("k", objects.Share(10, 100), kueued("k", 0))
	s.awaitEvent("k", notify.ReasonInvalid, `annotation kueue.x-k8s.io/pod-group-total-count of the pods of Kueue's pod group ns/k is "0"`)
	s.addPod("l", objects.Share(10, 100), kueued("l", 2))
	s.addPod("m", objects.Share(10, 100), kueued("l", 3))
	s.awaitEvent("m", notify.ReasonInvalid, "all must say the same")
}

func (s *server) setMinMember(name string, n int64) {
	s.t.Helper()
	g := podgroups.Coscheduling("ns", name, n)
	s.must(s.Patch(s.t.Context(), g, client.RawPatch(types.MergePatchType, []byte(fmt.Sprintf(`{"spec":{"minMember":%d}}`, n)))))
}

// Other systems' gates: while one member waits for another's gate, the gang holds
// nothing, even when all the rest is ready; when it comes off, all start.
func TestGangBesideOtherGates(t *testing.T) {
	const admission = "kueue.x-k8s.io/admission"
	s := start(t)
	s.addNode("gpu-1")
	s.run()
	for i := range 2 {
		s.addPod(fmt.Sprintf("k%d", i), objects.Share(60, 600), kueued("k", 2), gatedBy(admission))
	}
	s.ungate("k0", admission)
	s.awaitEvent("k0", notify.ReasonWaiting, "2 of 2 pods are there, 1 of them wait(s) for scheduling gates of others: [kueue.x-k8s.io/admission]")
	// What it does not hold others have meanwhile.
	s.addPod("other", v1alpha1.Share{GPUs: 2, Core: 60, MemMiB: 600})
	s.awaitPlaced("other")
	s.ungate("k1", admission)
	s.awaitEvent("k1", notify.ReasonWaiting, "room for 0 of the 2 pods")
	s.remove("other")
	s.awaitPlaced("k0")
	s.awaitPlaced("k1")
	// Members without a share of a GPU are not ours to place, but they are there.
	plain := s.plainPod("launcher", kueued("mixed", 2))
	s.addPod("worker", objects.Share(10, 100), kueued("mixed", 2))
	s.awaitPlaced("worker")
	if p := s.pod("launcher"); p.Spec.Affinity != nil || p.UID != plain.UID {
		t.Errorf("a pod without a share was touched: %+v", p.Spec)
	}
}

// plainPod is a pod that has nothing to do with us.
func (s *server) plainPod(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	s.t.Helper()
	p := &corev1.Pod{}
	p.Namespace, p.Name, p.Annotations = "ns", name, map[string]string{}
	p.Spec.Containers = []corev1.Container{{Name: "c", Image: "i"}}
	for _, e := range edits {
		e(p)
	}
	s.must(s.Create(s.t.Context(), p))
	return p
}

// The allocator dies at every step of placing a gang over two nodes. The next one
// ends what was begun: all start, nothing is held any more, nothing is there twice.
func TestCrashWhileAGangIsPlaced(t *testing.T) {
	s := start(t)
	nodes := []string{"gpu-1", "gpu-2"}
	for _, n := range nodes {
		s.addNode(n)
	}
	ledgerWrite, podWrite := isWrite(http.MethodPut, "sliceledgers"), isWrite(http.MethodPatch, "pods")
	for name, tt := range map[string]struct {
		step func(*http.Request) bool
		// after is how many such steps succeed.
		after int32
	}{
		"nothing-held":        {ledgerWrite, 0},
		"one-held":            {ledgerWrite, 1},
		"held-not-committed":  {ledgerWrite, 2},
		"one-committed":       {ledgerWrite, 3},
		"committed-all-gated": {podWrite, 0},
		"one-let-go":          {podWrite, 1},
	} {
		first := s.run()
		var done atomic.Int32
		reached := make(chan struct{})
		die := func(r *http.Request) bool {
			if tt.step(r) && done.Add(1) > tt.after && first.cut.CompareAndSwap(false, true) {
				close(reached)
			}
			return first.cut.Load()
		}
		first.fail.Store(&die)
		member := func(i int) string { return fmt.Sprintf("%s-%d", name, i) }
		for i := range 3 {
			s.addPod(member(i), objects.Share(60, 600), kueued(name, 3))
		}
		<-reached
		first.crash()
		second := s.run()
		seen := map[string]bool{}
		for i := range 3 {
			seen[s.awaitPlaced(member(i)).Node] = true
		}
		pods, held := s.granted(nodes...)
		if len(pods) != 3 || held != 0 || len(seen) != 2 {
			t.Errorf("%s: on %v; Invariant 6: granted to %v, %d held", name, seen, pods, held)
		}
		for i := range 3 {
			s.remove(member(i))
		}
		s.await(name+": the devices to be free", func(context.Context) (bool, error) {
			pods, _ := s.granted(nodes...)
			return len(pods) == 0, nil
		})
		second.end()
	}
}

// A hold whose gang never comes back ends by itself, and what it held is granted to
// others.
func TestHoldExpires(t *testing.T) {
	s := start(t)
	s.addNode("gpu-1")
	l := s.ledger("gpu-1")
	for d := range 2 {
		l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: gpu("gpu-1", d), Core: 100, Mem: objects.DeviceMiB,
			Slices: []v1alpha1.Slice{{Pod: "gone", Owner: "ns/gone", Ctr: "train", Core: 100, Mem: objects.DeviceMiB}}})
	}
	// It ends after the allocator has come up.
	grants.Hold(l, "podgroups.kueue.x-k8s.io/ns/gone", s.clock.Now().Add(binding.HoldFor), "gone")
	s.must(s.Update(t.Context(), l))
	s.run()
	s.addPod("next", objects.Share(60, 600))
	s.awaitPlaced("next")
	if pods, held := s.granted("gpu-1"); pods["gone"] != "" || held != 0 {
		t.Errorf("Invariant 6: still there: %v, %d held", pods, held)
	}
}

// Two gangs compete for room that only one of them has: one starts, the other holds
// nothing, whichever replica does what; and starts when the first has gone.
func TestGangsCompete(t *testing.T) {
	s := start(t)
	nodes := []string{"gpu-1", "gpu-2"}
	for _, n := range nodes {
		s.addNode(n)
	}
	s.runLeaders(3)
	for i := range 3 {
		for _, gang := range []string{"x", "y"} {
			s.addPod(fmt.Sprintf("%s%d", gang, i), objects.Share(60, 600), kueued(gang, 3))
		}
	}
	started := func(gang string) (n int) {
		for i := range 3 {
			if len(s.pod(fmt.Sprintf("%s%d", gang, i)).Spec.SchedulingGates) == 0 {
				n++
			}
		}
		return n
	}
	var won, lost string
	s.await("one of the gangs", func(context.Context) (bool, error) {
		for won, lost = range map[string]string{"x": "y", "y": "x"} {
			if started(won) == 3 {
				return true, nil
			}
		}
		return false, nil
	})
	s.await("the other to hold nothing", func(context.Context) (bool, error) {
		pods, held := s.granted(nodes...)
		return len(pods) == 3 && held == 0, nil
	})
	if n := started(lost); n != 0 {
		t.Errorf("%d pods of gang %s started", n, lost)
	}
	for i := range 3 {
		s.remove(fmt.Sprintf("%s%d", won, i))
	}
	for i := range 3 {
		s.awaitPlaced(fmt.Sprintf("%s%d", lost, i))
	}
	if pods, _ := s.granted(nodes...); len(pods) != 3 || strings.Contains(fmt.Sprint(pods), "ns/"+won) {
		t.Errorf("Invariant 6: granted to %v", pods)
	}
}
