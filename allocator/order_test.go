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

// Invariant 7: pods come in the order in which the scheduler would take them. The first
// of an app may go anywhere, so that it matters who is bound first; pods that nobody
// selects do not wait, and those that do go on when the one before them is bound,
// deleted, or refused.
func TestOrderOfBinding(t *testing.T) {
	for name, end := range map[string]func(s *stage, pod string){
		"bound":   (*stage).bindNow,
		"deleted": func(s *stage, pod string) { s.forget(pod) },
		"refused": (*stage).unschedulable,
	} {
		t.Run(name, func(t *testing.T) {
			s := newStage(t, 2)
			s.add("first", 10, 100, objects.Labelled("x"), objects.Near("x"))
			s.add("selected", 95, 950, objects.Labelled("x"))
			s.add("selects", 10, 100, objects.Labelled("z"), objects.Near("x"))
			s.add("ordinary", 10, 100, objects.Labelled("y"))
			s.add("elsewhere", 10, 100, objects.Labelled("x"), objects.InNamespace("other"))
			s.work()
			s.expect("first:* selected selects ordinary:* elsewhere:*")
			s.pass(queue.ElsewherePatience - time.Second)
			s.says()
			s.pass(time.Second)
			if got := fmt.Sprint(s.newEvents()); strings.Count(got, "waits for pod ns/first to bind") != 2 {
				t.Errorf("events %s", got)
			}
			end(s, "first")
			if got := s.atTheGate("selected", "selects"); got == "selected selects" || got == "" {
				t.Fatalf("at the gate: %q, want one of two", got)
			}
			for _, name := range []string{"selected", "selects"} {
				if !podstate.Gated(s.get(name)) {
					s.bindNow(name)
				}
			}
			s.expect("selected:* selects:*")
			if n := len(s.allocator.queue.Remembered()); n > 4 {
				t.Errorf("%d remembered for ever", n)
			}
		})
	}
}

// Pods of one gang go together, whatever they wish of each other, and all of them wait
// for another that one of them selects.
func TestGangIsNotTornApartByOrder(t *testing.T) {
	s := newStage(t, 2)
	s.add("before", 10, 100, objects.Labelled("x"))
	s.addGang(3, 30, 300, objects.Labelled("x"), objects.Near("x"))
	s.work()
	s.expect("before:* m0 m1 m2")
	s.bindNow("before")
	s.expect("m0:* m1:* m2:*")
	// One that is made again belongs to them, and one that is not waits for all.
	s.forget("m0")
	s.add("m0", 30, 300, objects.InGang("g", 3), objects.Labelled("x"), objects.Near("x"), func(p *corev1.Pod) { p.UID = types.UID("m0-again") })
	s.add("after", 10, 100, objects.Labelled("x"))
	s.work()
	s.expect("m0:* after")
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
	s.expect("w0 w1 w2 leader")
	s.vanish(s.get("w2"))
	s.add("w2", 30, 300, objects.InGang("g", 4), objects.Labelled("worker"), objects.Near("leader"), func(p *corev1.Pod) { p.UID = "smaller" })
	s.work()
	s.together("leader", "w0", "w1", "w2")
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
	s.expect("m0 m1 free")
	s = newStage(t, 3)
	for _, name := range []string{"m0", "m1"} {
		s.add(name, 70, 700, objects.InGang("g", 3), objects.Labelled("x"), objects.Near("x"))
	}
	s.add("free", 20, 200, objects.InGang("g", 3), objects.Labelled("x"), objects.Annotated(v1alpha1.AnnotationPolicy, string(v1alpha1.PolicySpread)))
	s.work()
	s.together("m0", "m1", "free")
}

// Of two that go by each other the one that has to be nearer is decided on after the
// other, although it is the larger: beside it the scheduler takes both in either order.
func TestGangGoesByTheNearest(t *testing.T) {
	s := newStage(t, 3)
	s.zones("aaa")
	s.add("near", 60, 600, objects.InGang("g", 2), objects.Labelled("x"), objects.Near("x"))
	s.add("far", 10, 100, objects.InGang("g", 2), objects.Labelled("x"), objects.Near("x"), inZone, objects.Annotated(v1alpha1.AnnotationPolicy, "spread"))
	s.work()
	s.together("far", "near")
}
