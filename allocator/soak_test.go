// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
)

// act does one random thing that can happen in a cluster.
func (w *world) act() {
	r, n := w.replicas[w.rand.Intn(len(w.replicas))], w.anyNode()
	if w.rand.Intn(40) == 0 {
		w.upheave(n)
	}
	if w.gangsOnly && w.rand.Intn(40) == 0 {
		w.lateHold(n)
	}
	switch k := w.rand.Intn(128); {
	case k < 12:
		if len(w.live) < 16 {
			w.createPod()
		}
	case k < 16:
		w.deletePod()
	case k < 18:
		w.admit()
	case k < 32:
		w.bind()
	case k < 52:
		n.start(func() bool { return w.rand.Intn(4) == 0 })
	case k < 55:
		n.stop()
	case k < 57:
		w.free()
	case k < 58:
		n.crash()
	case k < 59:
		n.complete()
	case k < 61:
		n.sicken()
	case k < 67:
		n.report()
	case k < 72:
		n.watch()
	case k < 73:
		w.clock.Step([]time.Duration{10 * time.Second, refusedGrace, refusedHold}[w.rand.Intn(3)])
	case k < 74:
		if w.rand.Intn(3) == 0 {
			[]func(string){w.lose, w.destroy}[w.rand.Intn(2)](n.name)
		}
	case k < 80:
		r.queue.flush()
	case k < 82:
		if !r.busy {
			r.list() // the watch broke; what it held is lost
		}
	case k < 104:
		for range 1 + w.rand.Intn(4) {
			r.read()
		}
	default:
		for range 1 + w.rand.Intn(4) {
			r.step()
		}
	}
	w.check()
	if !r.busy {
		r.checkPicture()
	}
}

// settle lets everything happen that is under way, without faults.
func (w *world) settle() {
	w.calm = true
	w.endHolds()
	for range 200 {
		before := w.versions()
		for w.admit() {
		}
		for _, p := range slices.Clone(w.live) {
			if unbound(p) {
				w.schedule(p.DeepCopy())
			}
		}
		for _, n := range w.nodes {
			n.heal()
			n.watch()
			n.report()
			n.start(always)
			// More than there are pods: the kubelet starts again what it has not ended.
			for range 40 {
				w.free()
				n.stop()
			}
		}
		w.clock.Step(refusedHold)
		for _, r := range w.replicas {
			for len(r.watch) > 0 {
				r.read()
			}
			r.queue.flush()
			for r.step() {
			}
		}
		w.check()
		if w.versions() == before {
			return
		}
	}
	w.fail("the cluster does not come to rest")
}

// endHolds has the time of all holds go by, in which no node says anything: what is
// held ends by itself.
func (w *world) endHolds() {
	w.clock.Step(holdFor)
	now := w.clock.Now()
	for _, r := range w.replicas {
		for range 2 {
			for len(r.watch) > 0 {
				r.read()
			}
			r.queue.flush()
			for r.step() {
			}
		}
	}
	for _, n := range w.nodes {
		for _, h := range w.ledger(n.name).Spec.Holds {
			if !h.Until.After(now) {
				w.fail("Invariant 6: %s holds %+v, whose time was over at %v", n.name, h, now)
			}
		}
	}
}

func always() bool { return true }

func (w *world) versions() string {
	text := ""
	for _, n := range w.nodes {
		text += w.ledger(n.name).ResourceVersion + fmt.Sprint(len(n.running), len(n.ghosts)) + " "
	}
	for _, p := range w.live {
		text += p.Name + p.ResourceVersion + " "
	}
	return text
}

// run lets a cluster live for some steps, come to rest, and lose all its pods.
func (w *world) run(steps int) (ran int) {
	for range steps {
		w.act()
	}
	w.settle()
	w.checkRest()
	w.checkMemory()
	for _, p := range w.live {
		if p.Spec.NodeName != "" {
			ran++
		}
	}
	for w.somePod(func(p *corev1.Pod) bool { return p.DeletionTimestamp == nil }) != nil {
		w.deletePod()
	}
	w.settle()
	w.checkRest()
	w.checkMemory()
	return ran
}

const soakSteps = 600

// Invariants 1 and 6 under random faults: allocators that all believe that they
// lead, late, repeated and lost watch events, conflicts, lost answers, and crashes
// at every request; ledgers emptied and deleted; devices that fall ill and recover;
// pods that the scheduler refuses, that are deleted by force, and that end slowly.
func TestSoak(t *testing.T) {
	t.Parallel()
	seeds := 24
	if testing.Short() {
		seeds = 12
	}
	ran := 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { ran += newWorld(t, int64(seed), 2, 1+seed%3).run(soakSteps) })
	}
	if ran < seeds {
		t.Errorf("%d pods ran in %d seeds: the test no longer places anything", ran, seeds)
	}
}

// The soak finds what it is there to find, in no more seeds than TestSoak runs.
func TestSoakFindsPlantedBugs(t *testing.T) {
	t.Parallel()
	for name, plant := range map[string]func(*world){
		"no compare-and-swap":               func(w *world) { w.lastWriteWins = true },
		"release at the deletion timestamp": func(w *world) { w.hasty = true },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range 12 {
				w := newWorld(t, int64(seed), 2, 1+seed%3)
				plant(w)
				if found := w.broken(); found != "" {
					t.Logf("seed %d: %s", seed, found)
					return
				}
			}
			t.Error("not found")
		})
	}
}

// broken is what does not hold when the world runs.
func (w *world) broken() (found string) {
	type failure string
	w.fail = func(format string, args ...any) { panic(failure(fmt.Sprintf(format, args...))) }
	defer func() {
		switch f := recover().(type) {
		case nil:
		case failure:
			found = string(f)
		default:
			panic(f)
		}
	}()
	w.run(soakSteps)
	return ""
}
