// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// A replica is killed at each request that a preemption takes, before the API server has it and
// after. The next leader evicts nobody else, and nobody of a lower priority gets the room.
func TestKilledWhilePreempting(t *testing.T) {
	t.Parallel()
	for _, arrives := range []bool{false, true} {
		at := 1
		for ; lifeOfPreemption(t, at, arrives); at++ {
		}
		// Two dry runs and two evictions, the release of the slices, the grant, the patch.
		if at-1 < 6 {
			t.Errorf("only %d requests were made", at-1)
		}
	}
}

func lifeOfPreemption(t *testing.T, n int, arrives bool) (killed bool) {
	t.Helper()
	s := newStage(t, 1)
	when := fmt.Sprintf("killed at request %d, arrived %v", n, arrives)
	s.add("a", 50, 500, objects.Priority(1), finalized)
	s.add("b", 50, 500, objects.Priority(1), finalized)
	s.add("c", 60, 600, objects.Priority(2), finalized)
	s.add("d", 40, 400, objects.Priority(3), finalized)
	s.run()
	at := s.killAt(n, arrives)
	s.add("urgent", v1alpha1.WholeGPU, 700, objects.Priority(10))
	s.work()
	s.add("thief", 30, 300, objects.Priority(3), neverPreempts)
	s.work()
	s.end()
	for range 3 {
		s.pass(preemption.RetryAfter)
	}
	s.end()
	s.kill = nil
	s.work()
	slices.Sort(s.evicted)
	if got := s.atTheGate("urgent", "thief"); got != "thief" || !slices.Equal(s.evicted, []types.UID{"a", "b"}) {
		t.Errorf("%s: urgent and thief wait: %v; evicted %v", when, got, s.evicted)
	}
	return *at
}

// contest is a preemption that others contest: on a full cluster, with budgets, pods of lower
// priority that come at any moment, victims that end at any moment, and replicas that die.
type contest struct {
	*stage
	preemptors []string
	came       int
}

// 500 contested nominations: nobody of a lower priority gets the room that was freed, nobody is
// evicted in vain, and no budget is broken.
func TestContestedNominations(t *testing.T) {
	t.Parallel()
	var preempted, contested int
	for seed := range part(500) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			c := &contest{stage: newStage(t, 2)}
			c.rand.Seed(int64(seed))
			p, n := c.happen()
			preempted, contested = preempted+p, contested+n
		})
	}
	if n := part(500); preempted < n/2 || contested < n {
		t.Errorf("%d pods preempted and %d contested in %d runs: the test no longer shows anything", preempted, contested, n)
	}
}

func (c *contest) happen() (preempted, contested int) {
	for _, app := range []string{"x", "y"} {
		budgeted(objects.Budget(app, app, int32(9*c.rand.Intn(2))))(c.world)
	}
	c.restart()
	victims := map[types.UID]*corev1.Pod{}
	for i := range 16 {
		core := v1alpha1.Percent(10 + c.rand.Intn(70))
		edits := []func(*corev1.Pod){objects.Priority(int32(c.rand.Intn(4))), finalized, neverPreempts}
		if app := c.rand.Intn(4); app < 2 {
			edits = append(edits, objects.Labelled([]string{"x", "y"}[app]))
		}
		if c.rand.Intn(5) == 0 {
			edits = append(edits, objects.InGang(fmt.Sprint("low", i/4), 1+c.rand.Intn(2)))
		}
		p := c.add(fmt.Sprint("low", i), core, v1alpha1.MiB(core)*10, edits...)
		victims[p.UID] = p
	}
	c.run()
	for name := range victims {
		if p := c.find(name); podstate.Gated(p) {
			c.vanish(p) // it is full without it
			delete(victims, name)
		}
	}
	c.work()
	core := v1alpha1.Percent(20 + c.rand.Intn(81))
	edits := []func(*corev1.Pod){objects.Priority(10)}
	members := 1 + c.rand.Intn(2)
	if members > 1 {
		edits = append(edits, objects.InGang("g", members))
	}
	for i := range members {
		c.preemptors = append(c.preemptors, c.add(fmt.Sprint("urgent", i), core, v1alpha1.MiB(core)*10, edits...).Name)
	}
	// Somebody of a lower priority is as large, and never gets what they wait for.
	for range 40 {
		switch c.rand.Intn(6) {
		case 0:
			if c.came < 4 {
				c.came++
				p := c.add(fmt.Sprint("thief", c.came), core, v1alpha1.MiB(core)*10, objects.Priority(int32(c.rand.Intn(10))), neverPreempts)
				victims[p.UID] = p
			}
		case 1:
			n := c.anyNode()
			n.watch()
			n.stop()
			n.report()
		case 2:
			if c.rand.Intn(8) == 0 {
				c.restart()
			}
		case 3:
			c.clock.Step(queue.RefusedDelay)
			c.queue.ring()
		default:
			c.read()
			c.step()
		}
		c.checkThieves()
	}
	for range 3 {
		c.end()
		c.pass(preemption.EvictAgain)
		c.checkThieves()
	}
	for _, uid := range c.evicted {
		if victims[uid] == nil {
			c.t.Errorf("evicted %s, which had a higher priority", uid)
		}
	}
	if len(c.evicted) > 0 && c.atTheGate(c.preemptors...) != "" {
		c.t.Errorf("%v wait (%v), and %v were evicted for them", c.preemptors, c.atTheGate(c.preemptors...), c.evicted)
	}
	c.checkInVain(victims)
	if len(c.evicted) > 0 {
		preempted = 1
	}
	return preempted, c.came
}

// checkThieves asserts that what is reserved is there once the others have left: nobody of a lower
// priority got it.
func (c *contest) checkThieves() {
	c.t.Helper()
	for _, r := range c.allocator.reservations.All() {
		for _, plan := range r.Plans {
			for _, g := range plan.Grants {
				core := v1alpha1.Percent(0)
				for _, other := range r.Plans {
					for _, o := range other.Grants {
						if o.UUID == g.UUID {
							core += o.Core
						}
					}
				}
				stay := []string{}
				for _, d := range c.ledger(plan.Node).Spec.Devices {
					for _, s := range d.Slices {
						if _, leaves := r.Leaving[s.Pod]; d.UUID == g.UUID && !leaves && !slices.ContainsFunc(r.Pods, func(p *corev1.Pod) bool { return p.UID == s.Pod }) {
							core += s.Core
							stay = append(stay, string(s.Pod))
						}
					}
				}
				if core > v1alpha1.WholeGPU {
					c.t.Fatalf("what is reserved for %v on %s is lost: beside %v it makes %d %%", r.Owner, g.UUID, stay, core)
				}
			}
		}
	}
}

// checkInVain asserts that each victim had to go: beside the preemptors it would not fit.
func (c *contest) checkInVain(victims map[types.UID]*corev1.Pod) {
	c.t.Helper()
	if c.atTheGate(c.preemptors...) != "" {
		return
	}
	for _, uid := range c.evicted {
		if _, inGang := podrequest.GroupOf(victims[uid]); inGang {
			continue // it ended with its gang
		}
		has := c.shareOf(victims[uid])
		for _, n := range c.nodes {
			for _, d := range c.ledger(n.name).Spec.Devices {
				for _, s := range d.Slices {
					if d.UUID == c.wasOn[uid] && (victims[s.Pod] != nil || slices.Contains(c.preemptors, string(s.Pod))) {
						has += s.Core
					}
				}
			}
		}
		if has <= v1alpha1.WholeGPU {
			c.t.Errorf("%s was evicted from %s in vain: beside it there is %d %%", uid, c.wasOn[uid], has)
		}
	}
}

func (c *contest) shareOf(p *corev1.Pod) v1alpha1.Percent {
	shares, err := v1alpha1.ParseShares(p.Annotations[v1alpha1.AnnotationShares])
	c.must(err)
	return shares.Containers["c"].Core
}
