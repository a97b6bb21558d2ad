// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// One node, one replica, from an empty ledger to a pod that waited.
func TestFlow(t *testing.T) {
	s := start(t)
	s.addNode("gpu-1")
	s.run()

	// pack puts both on one device.
	s.addPod("a", objects.Share(60, 500))
	first := s.awaitPlaced("a")
	s.addPod("b", objects.Share(40, 500))
	if second := s.awaitPlaced("b"); second.Containers["train"].Devices[0].UUID != first.Containers["train"].Devices[0].UUID {
		t.Errorf("pack put %+v beside %+v", second, first)
	}
	s.addPod("c", v1alpha1.Share{GPUs: 1, Core: 100, MemPercent: 100})
	if c := s.awaitPlaced("c").Containers["train"]; c.Mode != v1alpha1.ModeExclusive {
		t.Errorf("a whole device in mode %s, want exclusive", c.Mode)
	}

	// The node is full: the next waits and is told how far off it is.
	s.addPod("d", objects.Share(30, 400), func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{
				{Key: "absent", Operator: corev1.NodeSelectorOpDoesNotExist}}}}}}}
	})
	s.awaitEvent("d", notify.ReasonWaiting, "needs 30 % compute and 400 MiB on one GPU; nearest: gpu-1 GPU 0 has 0 % and 0 MiB free")

	// A pod that ran keeps its slices until the node has seen it gone.
	b := s.pod("b")
	s.must(s.SubResource("binding").Create(t.Context(), b, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "gpu-1"}}))
	s.must(s.Delete(t.Context(), b, client.GracePeriodSeconds(0)))
	s.addPod("after", objects.Share(1, 1)) // is looked at after the deletion
	s.awaitEvent("after", notify.ReasonWaiting, "needs 1 % compute and 1 MiB")
	if grants.Placement(s.ledger("gpu-1"), b.UID) == nil {
		t.Error("Invariant 1: the slices were given back before the node said so")
	}
	s.release("gpu-1", b.UID)
	had := "container train: GPU 0 (" + first.Containers["train"].Devices[0].UUID + "), 40 % compute and 500 MiB, limiter"
	s.await("the event of what a pod had that is gone", func(ctx context.Context) (bool, error) {
		list := &corev1.EventList{}
		err := s.List(ctx, list, client.InNamespace("ns"), client.MatchingFields{"involvedObject.uid": string(b.UID), "reason": notify.ReasonReleased})
		return len(list.Items) == 1 && strings.HasSuffix(list.Items[0].Message, had), err
	})
	d := s.awaitPlaced("d").Containers["train"].Devices[0].UUID
	s.awaitPlaced("after")
	// Who was told that a pod waits is told that it no longer does, and nobody else.
	s.awaitEvent("d", notify.ReasonPlaced, "("+d+"), 30 % compute and 400 MiB, limiter")
	if sent := s.events("a"); len(sent) > 0 {
		t.Errorf("pod a was placed at once, and its owner was events %v", sent)
	}

	// A pod that was deleted while it waited to be bound needs no word of the node.
	s.remove("a")

	// Nor does the API server keep account of who wrote which field of a ledger.
	if kept := s.ledger("gpu-1").ManagedFields; len(kept) > 0 {
		t.Errorf("the ledger has managed fields, which every write of it pays for: %v", kept)
	}
}

func TestGatesAndFilters(t *testing.T) {
	s := start(t)
	s.addNode("gpu-1")
	s.run()

	// Invariant 7: the scheduler would refuse the node; the pod is not pinned, and
	// goes when the node changes.
	s.addPod("picky", objects.Share(10, 100), func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"disk": "ssd"} })
	s.awaitEvent("picky", notify.ReasonWaiting, "1 node(s) have the devices, but the scheduler would refuse them: 1 node(s) didn't match node selector disk=ssd")
	if p := s.pod("picky"); !podstate.Gated(p) || p.Spec.Affinity != nil {
		t.Errorf("Invariant 7: pinned to a node that the scheduler refuses: %+v", p.Spec)
	}
	node := &corev1.Node{}
	s.must(s.Get(t.Context(), client.ObjectKey{Name: "gpu-1"}, node))
	node.Labels = map[string]string{"disk": "ssd"}
	s.must(s.Update(t.Context(), node))
	s.awaitPlaced("picky")

	// Another system's gate: ours comes off last.
	const other = "example.com/admission"
	s.addPod("gang", objects.Share(10, 100), func(p *corev1.Pod) {
		p.Spec.SchedulingGates = append([]corev1.PodSchedulingGate{{Name: other}}, p.Spec.SchedulingGates...)
	})
	s.addPod("next", objects.Share(10, 100))
	s.awaitPlaced("next")
	if p := s.pod("gang"); len(p.Spec.SchedulingGates) != 2 || len(s.events("gang")) > 0 {
		t.Errorf("touched beside another gate: %+v, %v", p.Spec.SchedulingGates, s.events("gang"))
	}
	gang := s.pod("gang")
	gang.Spec.SchedulingGates = gang.Spec.SchedulingGates[1:]
	s.must(s.Update(t.Context(), gang))
	s.awaitPlaced("gang")

	// What cannot be read is told and stays gated.
	s.addPod("odd", objects.Share(10, 100), func(p *corev1.Pod) {
		limits := p.Spec.Containers[0].Resources.Limits
		limits[v1alpha1.ResourceCore], limits[v1alpha1.ResourceGPUs] = resource.MustParse("300"), resource.MustParse("1")
		p.Annotations[v1alpha1.AnnotationShares] = `{"version":"v1alpha1","containers":{"train":{"gpus":1,"core":300,"memMiB":100}}}`
	})
	s.awaitEvent("odd", notify.ReasonInvalid, "annotation vernier.dev/shares: containers[train]: core 300")
	s.addPod("part", objects.Share(10, 100), objects.Annotated(v1alpha1.AnnotationMode, "exclusive"))
	s.awaitEvent("part", notify.ReasonInvalid, "annotation vernier.dev/mode: container train asks for a part of a GPU")
	if !podstate.Gated(s.pod("odd")) || !podstate.Gated(s.pod("part")) {
		t.Error("a pod that cannot be read was ungated")
	}
}

// The allocator dies between the ledger write and the patch: the next one
// finishes what the ledger says.
func TestCrashBetweenWriteAndPatch(t *testing.T) {
	s := start(t)
	s.addNode("gpu-1")
	s.addNode("gpu-2")
	first := s.run()
	lost := isWrite(http.MethodPatch, "pods")
	first.fail.Store(&lost)
	p := s.addPod("a", objects.Share(60, 500))
	var holder string
	s.await("the grant", func(context.Context) (bool, error) {
		for _, n := range []string{"gpu-1", "gpu-2"} {
			if grants.Placement(s.ledger(n), p.UID) != nil {
				holder = n
			}
		}
		return holder != "", nil
	})
	first.cut.Store(true)
	first.crash()
	// Now the other node would be the better one: only adoption keeps the first.
	other := map[string]string{"gpu-1": "gpu-2", "gpu-2": "gpu-1"}[holder]
	l := s.ledger(other)
	l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: gpu(other, 0), Core: 100, Mem: objects.DeviceMiB, Slices: []v1alpha1.Slice{{Pod: "x", Owner: "ns/x", Ctr: "c", Core: 40, Mem: 500}}}}
	s.must(s.Update(t.Context(), l))
	s.run()
	if placed := s.awaitPlaced("a"); placed.Node != holder {
		t.Errorf("placed on %s, the ledger of %s has the slices", placed.Node, holder)
	}
	if grants.Placement(s.ledger(other), p.UID) != nil {
		t.Errorf("Invariant 6: %s has slices too", other)
	}
}

// The leader's node dies: its lease runs out, the standby takes it and places.
// What the old leader still sends has no effect.
func TestLeaderDies(t *testing.T) {
	s := start(t)
	s.addNode("gpu-1")
	for try := 0; !s.leaderDies(fmt.Sprint(try)); try++ {
		t.Log("the leader had no time to renew its lease")
	}
}

// leaderDies is false where the leader lost its lease before it could die.
func (s *server) leaderDies(try string) bool {
	s.t.Helper()
	holder := func() string {
		lease := &coordinationv1.Lease{}
		if s.Get(s.t.Context(), client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: LeaseName}, lease) != nil || lease.Spec.HolderIdentity == nil {
			return ""
		}
		return *lease.Spec.HolderIdentity
	}
	first := s.run()
	defer first.end()
	var leader string
	s.await("a leader", func(context.Context) (bool, error) { leader = holder(); return leader != "", nil })
	defer s.run().end()
	s.addPod("a"+try, objects.Share(3, 30))
	s.awaitPlaced("a" + try)
	if now := holder(); now != leader {
		s.await(fmt.Sprintf("%s to have lost its lease: %s leads", leader, now), func(context.Context) (bool, error) { return first.again.Load() > 0, nil })
	}
	first.cut.Store(true)
	if first.again.Load() > 0 {
		return false
	}
	s.addPod("b"+try, objects.Share(3, 30))
	s.awaitPlaced("b" + try)
	// Which may have lost it meanwhile, and be about to have it again.
	s.await("the standby to hold the lease", func(context.Context) (bool, error) { now := holder(); return now != leader && now != "", nil })
	if err := <-first.ended; err == nil {
		s.t.Error("a leader that lost its lease goes on")
	}
	close(first.ended)
	return true
}

// Init containers reuse the room of the containers that come after them, and the
// API server's sum rule agrees.
func TestReusePassesTheRule(t *testing.T) {
	s := start(t)
	s.addNode("gpu-1")
	s.run()
	s.addPod("fill", v1alpha1.Share{GPUs: 1, Core: 100, MemPercent: 100})
	s.awaitPlaced("fill")
	p := objects.Pod("a", map[string]v1alpha1.Share{"train": objects.Share(60, 600), "load": objects.Share(100, 900)})
	p.Spec.InitContainers = p.Spec.Containers[:1]
	p.Spec.Containers = p.Spec.Containers[1:]
	s.must(s.Create(t.Context(), p))
	s.awaitPlaced("a")
	want := map[string]v1alpha1.Slice{
		"load":  {Core: 100, ReuseCore: 60, Mem: 900, ReuseMem: 600},
		"train": {Core: 60, Mem: 600},
	}
	for _, d := range s.ledger("gpu-1").Spec.Devices {
		for _, sl := range d.Slices {
			if w, ours := want[sl.Ctr]; ours && sl.Pod == p.UID {
				if sl.Since == nil {
					t.Errorf("%s has no time of its grant", sl.Ctr)
				}
				sl.Pod, sl.Owner, sl.Ctr, sl.Since = types.UID(""), "", "", nil
				if sl != w {
					t.Errorf("got %+v, want %+v", sl, w)
				}
			}
		}
	}
}
