// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	testclock "k8s.io/utils/clock/testing"

	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/test/objects"
)

// slowClock is the clock of a machine on which everything takes time: each look at it does.
type slowClock struct {
	*testclock.FakeClock
	each func() time.Duration
}

func (c *slowClock) Now() time.Time {
	c.Step(c.each())
	return c.FakeClock.Now()
}

func (c *slowClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// members is how many longSearch's gang has.
const members = 30

// longSearch is a gang in the middle of a search for places, of which some are chosen on n0.
// It comes with how far the search is.
func longSearch(t *testing.T, edits ...func(*corev1.Pod)) (*stage, func() scheduling.Progress) {
	t.Helper()
	s := newStage(t, 2)
	s.addGang(members, 2, 20, edits...)
	s.readAll()
	s.slow(10 * time.Millisecond)
	name, _ := podrequest.GroupOf(s.get("m0"))
	search := func() scheduling.Progress { return s.allocator.scheduler.Searches()[name] }
	for range 5 {
		if s.step(); search().Begun {
			return s, search
		}
	}
	t.Fatal("the search has not paused")
	return nil, nil
}

// The search for places for a gang pauses when its time is over, and goes on when others were
// served, without beginning again where these have taken nothing of what it has chosen.
func TestHostileSearchYields(t *testing.T) {
	s, search := longSearch(t, objects.OnNode("n0"))
	if spent := search().Spent; spent < scheduling.RoundTime || spent > 2*scheduling.RoundTime {
		t.Errorf("it took %v before it paused", spent)
	}
	s.add("other", 10, 100, objects.OnNode("n1"))
	s.readAll()
	for n := 0; podstate.Gated(s.get("other")) && n < 3; n++ {
		s.step()
	}
	if podstate.TargetNode(s.get("other")) == "" || !podstate.Gated(s.get("m0")) {
		t.Errorf("placed %q while the search goes on", s.seats("other", "m0"))
	}
	for podstate.Gated(s.get("m0")) {
		if s.readAll(); !s.step() || search().Restarts > 0 {
			t.Fatalf("began again, or nothing is due: %+v", search())
		}
	}
	s.work()
	for i := range members {
		s.expect(fmt.Sprintf("m%d:*", i))
	}
	if left := s.allocator.scheduler.Searches(); len(left) != 0 {
		t.Errorf("searches are left: %v", left)
	}
}

// If what it has chosen changes during the pause, it begins again after a pause, and each time pause
// and time double, until it is done at one go. What the scheduler counts on a node is as much
// of it as the node's ledger.
func TestSearchRestarts(t *testing.T) {
	for name, change := range map[string]func(s *stage, i int){
		"ledger": func(s *stage, i int) {
			s.grant("n0", types.UID(fmt.Sprint("late", i)), 1, 10, 100)
		},
		"member": func(s *stage, i int) {
			p := s.get("m0")
			metav1.SetMetaDataLabel(&p.ObjectMeta, "changed", fmt.Sprint(i))
			s.put(p)
		},
		"host": func(s *stage, i int) {
			s.addPlain(fmt.Sprint("foreign", i), "n0", "1")
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, search := longSearch(t, objects.OnNode("n0"))
			for i := range 2 {
				change(s, i)
				s.readAll()
				for s.step() {
				}
				left, want := search().NotBefore.Sub(s.world.clock.Now()), scheduling.RestartPause*scheduling.RoundTime<<(i+1)
				if search().Restarts != i+1 || search().Begun || left > want || left < want-scheduling.RoundTime {
					t.Fatalf("began %d times again, the next time in %v, want %v", search().Restarts, left, want)
				}
				// Whatever has the gang looked at, the pause holds.
				s.allocator.queue.AddPod(s.get("m0"))
				for s.step() {
				}
				if search().Begun || !podstate.Gated(s.get("m0")) {
					t.Fatal("begins before the pause is over")
				}
				s.world.clock.Step(want)
				s.queue.ring()
				for !search().Begun && s.step() {
				}
				if took := scheduling.RoundTime << (i + 1); i == 0 && (search().Spent < took || search().Spent > took+scheduling.RoundTime) {
					t.Errorf("took %v at a time, want %v", search().Spent, took)
				}
			}
			if podstate.Gated(s.get("m0")) || len(s.allocator.scheduler.Searches()) > 0 {
				t.Errorf("not done in %v; events %q", scheduling.RoundTime<<2, s.newEvents())
			}
		})
	}
}

// What comes during a pause and takes neither slices, nor processors or memory, may be in the way
// all the same: what was chosen is judged again before it counts.
func TestSearchIsJudgedAgain(t *testing.T) {
	s, search := longSearch(t, func(p *corev1.Pod) { metav1.SetMetaDataLabel(&p.ObjectMeta, "app", "gang") })
	s.addPlain("foreign", "n0", "1m", func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
			TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "gang"}}}}}}
	})
	restarts := 0
	for range 20 {
		s.readAll()
		for s.step() {
			restarts = max(restarts, search().Restarts)
		}
		s.world.clock.Step(scheduling.RestartPause * (scheduling.RoundTime << scheduling.MaxRestarts))
		s.queue.ring()
	}
	if restarts == 0 || podstate.Gated(s.get("m0")) {
		t.Fatalf("began %d times again, at the gate: %v; events %q", restarts, podstate.Gated(s.get("m0")), s.newEvents())
	}
	for i := range members {
		if at := podstate.TargetNode(s.get(fmt.Sprint("m", i))); at != "n1" {
			t.Fatalf("m%d is pinned to %q, where the scheduler does not take it", i, at)
		}
	}
}

// A search that finds no place looks again where there is room since it looked there.
func TestSearch_WhenRoomComes_LooksAgain(t *testing.T) {
	s := newStage(t, 1)
	for _, name := range []string{"b0", "b1"} {
		s.add(name, 60, 600)
		s.work()
		s.bindNow(name)
	}
	s.add("m0", 60, 600, objects.InGang("g", 2))
	s.add("m1", 60, 600, objects.InGang("g", 2))
	s.readAll()
	s.slow(scheduling.RoundTime)
	for len(s.allocator.scheduler.Searches()) == 0 {
		s.step()
	}
	l := s.ledger("n0")
	grants.Release(l, func(types.UID) bool { return true })
	s.disturb(l)
	s.put(l)
	for _, name := range []string{"b0", "b1"} {
		s.vanish(s.get(name))
	}
	s.readAll()
	s.time.WithTicker = s.world.clock
	s.work()
	s.expect("m0")
	s.pass(scheduling.RestartPause * scheduling.RoundTime << 1)
	s.expect("m0:*")
}

// A search ends with its gang.
func TestSearchEndsWithItsGang(t *testing.T) {
	s, _ := longSearch(t)
	for i := range members {
		s.vanish(s.get(fmt.Sprint("m", i)))
	}
	s.work()
	if n := len(s.allocator.scheduler.Searches()); n != 0 {
		t.Errorf("%d searches are left", n)
	}
	s, _ = longSearch(t)
	if s.allocator.end(); len(s.allocator.scheduler.Searches()) != 0 {
		t.Error("a leader that ends leaves a search")
	}
}

// Pods of which each takes long to decide on do not keep another tenant's waiting, however many
// they are and however late that one comes.
func TestHostileRounds(t *testing.T) {
	s := newStage(t, 2)
	const many = 4000
	for i := range many {
		s.add(fmt.Sprint("slow", i), 1, 10, objects.InNamespace("hostile"))
	}
	s.add("other", 1, 10)
	s.readAll()
	s.slow(25 * time.Millisecond)
	start := s.world.clock.Now()
	for podstate.Gated(s.get("other")) {
		s.readAll()
		if !s.step() {
			t.Fatal("nothing is due")
		}
	}
	if took := s.world.clock.Since(start); took > 5*time.Second {
		t.Errorf("placed after %v", took)
	}
	n := 0
	for i := range many {
		if podstate.Gated(s.get(fmt.Sprint("slow", i))) {
			n++
		}
	}
	if n < many/2 {
		t.Errorf("%d of the others are left: nothing is shown", n)
	}
}

// A search that is restarted again and again, by pods that come and go on a node that it has
// chosen, is done at one go in the end.
func TestHostileChurn(t *testing.T) {
	s := newStage(t, 2)
	const members = 170
	s.addGang(members, 1, 10, objects.OnNode("n0"))
	s.readAll()
	s.slow(5 * time.Millisecond)
	start := s.world.clock.Now()
	var last *corev1.Pod
	for second := 0; podstate.Gated(s.get("m0")); second++ {
		if second == 60 {
			t.Fatalf("still at the gate after %v; events %q", s.world.clock.Since(start), s.newEvents())
		}
		p := s.addPlain(fmt.Sprint("foreign", second), "n0", fmt.Sprint(1+second%2))
		if last != nil {
			s.vanish(last)
		}
		last = p
		for end := s.world.clock.Now().Add(time.Second); s.world.clock.Now().Before(end); {
			s.readAll()
			s.queue.ring()
			if !s.step() {
				s.world.clock.Step(20 * time.Millisecond)
			}
		}
	}
}
