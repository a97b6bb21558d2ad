// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/scheduling/ranking"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// checkPicture asserts that the ranking has plans for exactly the nodes that the
// index shows to have the devices, and the scheduler's cache the CPU, however what
// happened came in. It is what the one who asked last may use, without what is promised to
// others.
func (r *replicaInTest) checkPicture() {
	a := r.allocator
	against := a.scheduler.Hiding()
	for _, share := range []v1alpha1.Share{objects.Share(1, 1), objects.Share(40, 400), objects.Share(100, 1000), {GPUs: 2, Core: 20, MemPercent: 30}} {
		wants := &ranking.Ask{CPU: 20_000, Demand: &placement.Demand{Containers: []placement.Container{{Name: "c", Share: share}}}}
		plans, err := a.scheduler.Plans(wants)
		r.world.must(err)
		want, got, kept := map[string]bool{}, map[string]bool{}, map[string]bool{}
		for _, whole := range a.cache.Index.Room() {
			room := whole
			if ledger := a.cache.Index.Behind(whole); len(against) > 0 && ledger != nil {
				room = reservation.Hide(against, whole, ledger)
			} else if len(against) > 0 {
				continue // a newer version of its ledger is on its way
			}
			kept[room.Name] = room != whole
			if _, fits := placement.Fit(wants.Demand, room); fits && a.Filters.Host(room.Name).CPU >= 20_000 {
				want[room.Name] = true
			}
		}
		for plan, room := range plans {
			if shown, _ := a.cache.Index.On(plan.Node); shown == room || kept[plan.Node] {
				got[plan.Node] = true
			}
		}
		if !maps.Equal(got, want) {
			r.world.fail("%s: plans for %+v on %v, the index has room on %v", r.name, share, got, want)
		}
	}
}

// What has arrived decides what a gap is worth, also to the next leader, which knows
// of it from the pods that there are.
func TestLeadersLearnFromPods(t *testing.T) {
	for _, learns := range []string{"nothing", "from arrivals", "from pods that are there"} {
		t.Run(learns, func(t *testing.T) {
			s := newStage(t, 2)
			s.add("a", 53, 530, objects.Annotated(v1alpha1.AnnotationGPUUUID, "GPU-n0-0")) // leaves 47
			s.add("b", 48, 480, objects.Annotated(v1alpha1.AnnotationGPUUUID, "GPU-n1-0")) // leaves 52
			s.work()
			if learns != "nothing" {
				for i := range 40 {
					// They wait: no device is allowed. Two go on a device.
					s.add(fmt.Sprint("half", i), 47, 470, objects.Annotated(v1alpha1.AnnotationGPUModel, "H100"))
				}
				s.work()
			}
			if learns == "from pods that are there" {
				s.restart()
				s.work()
			}
			s.add("small", 3, 30)
			s.work()
			want := "n1"
			if learns == "nothing" {
				want = "n0"
			}
			if got := podstate.TargetNode(s.get("small")); got != want {
				t.Errorf("3 went to node %s, want %s", got, want)
			}
		})
	}
}

// The filters are asked about the nodes that are best for the pod until one is
// accepted, and about no others. Nodes that Kubernetes keeps pods off come last.
func TestFiltersAreAskedAboutFewNodes(t *testing.T) {
	s := newStage(t, 12)
	cordoned := objects.Node("n0")
	cordoned.Spec.Unschedulable = true
	s.allocator.SetNode(objects.Node("n0"), cordoned)
	s.add("tolerates", 50, 500, objects.Annotated(v1alpha1.AnnotationPolicy, "spread"), func(p *corev1.Pod) {
		p.Spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
	})
	s.work()
	for i := range 24 {
		before := measured(t, "nodes_judged_sum")
		name := fmt.Sprintf("p%d", i)
		s.add(name, 70, 700, objects.CPU("20"))
		s.work()
		asked := measured(t, "nodes_judged_sum") - before
		if podstate.TargetNode(s.get(name)) != "" && asked != 1 {
			t.Errorf("pod %d: asked about %v nodes, want 1", i, asked)
		}
		if placed := podstate.TargetNode(s.get(name)) != ""; placed != (i < 21) {
			t.Errorf("pod %d is placed: %v", i, placed)
		}
	}
	for i := range 24 {
		if p := s.get(fmt.Sprintf("p%d", i)); podstate.TargetNode(p) == "n0" {
			t.Errorf("Invariant 7: %s is on a cordoned node", p.Name)
		}
	}
	if got := podstate.TargetNode(s.get("tolerates")); got == "" {
		t.Error("a pod that tolerates everything waits")
	}
}
