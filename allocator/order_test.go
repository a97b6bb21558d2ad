// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// onNode has the pod go to a node and no other.
func onNode(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: name} }
}

// atTheGate tells of each pod whether it is gated.
func (s *stage) atTheGate(names ...string) string {
	s.t.Helper()
	var gates []string
	for _, name := range names {
		if podstate.Gated(s.get(name)) {
			gates = append(gates, name)
		}
	}
	return strings.Join(gates, " ")
}

// Invariant 7: pods come in the order in which the scheduler would take them. The first
// of an app may go anywhere, so that it matters who is bound first; pods that nobody
// selects do not wait, and those that do go on when the one before them is bound,
// deleted, or refused.
func TestOrderOfBinding(t *testing.T) {
	for name, end := range map[string]func(*stage, *corev1.Pod){
		"bound":   (*stage).bindNow,
		"deleted": func(s *stage, p *corev1.Pod) { s.vanish(p) },
		"refused": func(s *stage, p *corev1.Pod) { s.unschedulable(p.Name) },
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 2)
			s.add("first", 10, 100, objects.Labelled("x"), objects.Near("x"))
			s.add("selected", 95, 950, objects.Labelled("x"))
			s.add("selects", 10, 100, objects.Labelled("z"), objects.Near("x"))
			s.add("ordinary", 10, 100, objects.Labelled("y"))
			s.add("elsewhere", 10, 100, objects.Labelled("x"), func(p *corev1.Pod) { p.Namespace = "other" })
			s.work()
			if got := s.atTheGate("first", "selected", "selects", "ordinary", "elsewhere"); got != "selected selects" {
				t.Fatalf("at the gate: %q", got)
			}
			s.pass(queue.ElsewherePatience - time.Second)
			if got := s.told(); len(got) > 0 {
				t.Errorf("told at once: %q", got)
			}
			s.pass(time.Second)
			if got := fmt.Sprint(s.told()); strings.Count(got, "waits for pod ns/first to bind") != 2 {
				t.Errorf("told %s", got)
			}
			end(s, s.get("first"))
			s.work()
			if got := s.atTheGate("selected", "selects"); got == "selected selects" || got == "" {
				t.Fatalf("at the gate: %q, want one of two", got)
			}
			for _, name := range []string{"selected", "selects"} {
				if p := s.get(name); !podstate.Gated(p) {
					s.bindNow(p)
				}
			}
			if got := s.atTheGate("selected", "selects"); got != "" {
				t.Errorf("at the gate at the end: %q; told %q", got, s.told())
			}
			n := 0
			for _, kept := range []string{"unbound", "blockedBy", "constrained"} {
				n += len(uidsIn(s.allocator.queue, "order", kept))
			}
			if n > 4 {
				t.Errorf("%d remembered for ever", n)
			}
		})
	}
}

// bindNow is the scheduler that comes to this pod.
func (s *stage) bindNow(p *corev1.Pod) {
	s.bindTo(p, podstate.TargetNode(p))
	s.notify(p, false)
	s.work()
}

// Pods of one gang go together, whatever they wish of each other, and all of them wait
// for another that one of them selects.
func TestGangIsNotTornApartByOrder(t *testing.T) {
	s := newStage(t, 2)
	s.add("before", 10, 100, objects.Labelled("x"))
	for i := range 3 {
		s.add(fmt.Sprintf("m%d", i), 30, 300, objects.InGang("g", 3), objects.Labelled("x"), objects.Near("x"))
	}
	s.work()
	if got := s.atTheGate("before", "m0", "m1", "m2"); got != "m0 m1 m2" {
		t.Fatalf("at the gate: %q", got)
	}
	s.bindNow(s.get("before"))
	if got := s.atTheGate("m0", "m1", "m2"); got != "" {
		t.Fatalf("at the gate: %q; told %q", got, s.told())
	}
	// One that is made again belongs to them, and one that is not waits for all.
	s.vanish(s.get("m0"))
	s.work()
	s.add("m0", 30, 300, objects.InGang("g", 3), objects.Labelled("x"), objects.Near("x"), func(p *corev1.Pod) { p.UID = types.UID("m0-again") })
	s.add("after", 10, 100, objects.Labelled("x"))
	s.work()
	if got := s.atTheGate("m0", "after"); got != "after" {
		t.Errorf("at the gate: %q", got)
	}
}

// A member of a gang that goes by another, which does not go by it, is decided on after
// it, although it is the larger.
func TestGangFollowsItsLeader(t *testing.T) {
	s := newStage(t, 3)
	for i := range 3 {
		s.add(fmt.Sprintf("w%d", i), 60, 600, objects.InGang("g", 4), objects.Labelled("worker"), objects.Near("leader"))
	}
	s.add("leader", 10, 100, objects.InGang("g", 4), objects.Labelled("leader"))
	s.work()
	if got := s.atTheGate("w0", "w1", "w2", "leader"); got != "w0 w1 w2 leader" {
		t.Fatalf("at the gate: %q, and three workers have no room beside each other", got)
	}
	s.vanish(s.get("w2"))
	s.add("w2", 30, 300, objects.InGang("g", 4), objects.Labelled("worker"), objects.Near("leader"), func(p *corev1.Pod) { p.UID = "smaller" })
	s.work()
	at := podstate.TargetNode(s.get("leader"))
	if got, want := s.seats("w0", "w1", "w2"), fmt.Sprintf("w0:%[1]s w1:%[1]s w2:%[1]s", at); at == "" || got != want {
		t.Errorf("placed %q, the leader on %q; told %q", got, at, s.told())
	}
}

// Pods of a gang that may each be the first of their app go where those of the app go
// that may go anywhere: then the scheduler may bind them in any order.
func TestGangMayBeBoundInAnyOrder(t *testing.T) {
	s := newStage(t, 3)
	for _, name := range []string{"m0", "m1"} {
		s.add(name, 90, 900, objects.InGang("g", 3), objects.Labelled("x"), objects.Near("x"))
	}
	s.add("free", 20, 200, objects.InGang("g", 3), objects.Labelled("x"))
	s.work()
	if got := s.atTheGate("m0", "m1", "free"); got != "m0 m1 free" {
		t.Errorf("at the gate: %q, and there is no room for all on one node; told %q", got, s.told())
	}
	s = newStage(t, 3)
	for _, name := range []string{"m0", "m1"} {
		s.add(name, 70, 700, objects.InGang("g", 3), objects.Labelled("x"), objects.Near("x"))
	}
	s.add("free", 20, 200, objects.InGang("g", 3), objects.Labelled("x"), func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationPolicy] = string(v1alpha1.PolicySpread) })
	s.work()
	got := s.seats("m0", "m1", "free")
	if at := podstate.TargetNode(s.get("free")); got != fmt.Sprintf("m0:%[1]s m1:%[1]s free:%[1]s", at) {
		t.Errorf("placed %q, want all on one node; told %q", got, s.told())
	}
}

// Of two that go by each other the one that has to be nearer is decided on after the
// other, although it is the larger: beside it the scheduler takes both in either order.
func TestGangGoesByTheNearest(t *testing.T) {
	s := newStage(t, 3)
	for i := range 3 {
		old := objects.Node(fmt.Sprintf("n%d", i))
		zoned := old.DeepCopy()
		zoned.Labels[corev1.LabelTopologyZone] = "a"
		s.allocator.SetNode(old, zoned)
	}
	s.add("near", 60, 600, objects.InGang("g", 2), objects.Labelled("x"), objects.Near("x"))
	s.add("far", 10, 100, objects.InGang("g", 2), objects.Labelled("x"), objects.Near("x"), func(p *corev1.Pod) {
		p.Spec.Affinity.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution[0].TopologyKey = corev1.LabelTopologyZone
		p.Annotations[v1alpha1.AnnotationPolicy] = string(v1alpha1.PolicySpread)
	})
	s.work()
	at := podstate.TargetNode(s.get("far"))
	if got, want := s.seats("near", "far"), fmt.Sprintf("near:%[1]s far:%[1]s", at); at == "" || got != want {
		t.Errorf("placed %q, want both on one node; told %q", got, s.told())
	}
}
