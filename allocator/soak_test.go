// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/book"
	"vernier.dev/vernier/allocator/index"
	"vernier.dev/vernier/allocator/placement"
)

// act does one random thing that can happen in a cluster.
func (w *world) act() {
	r := w.replicas[w.rand.Intn(len(w.replicas))]
	switch n := w.rand.Intn(32); {
	case n < 3:
		if len(w.pods()) < 16 {
			w.createPod()
		}
	case n < 4:
		w.deletePod()
	case n < 8:
		w.bind()
	case n < 12:
		w.start()
	case n < 13:
		w.stop()
	case n < 14:
		w.report(w.nodes[w.rand.Intn(len(w.nodes))])
	case n < 16:
		r.queue.flush()
	case n < 17:
		if !r.busy && w.rand.Intn(4) == 0 {
			r.list() // the watch broke; what it held is lost
		}
	case n < 24:
		r.read()
	default:
		r.step()
	}
	w.check()
}

// settle lets everything happen that is under way, without faults.
func (w *world) settle() {
	w.calm = true
	for range 200 {
		busy := false
		for _, r := range w.replicas {
			for len(r.watch) > 0 {
				r.read()
				busy = true
			}
			r.queue.flush()
			for r.step() {
				busy = true
			}
		}
		before := w.versions()
		for range 8 {
			w.bind()
			w.start()
			w.stop()
		}
		for _, node := range w.nodes {
			w.report(node)
		}
		w.check()
		if !busy && w.versions() == before {
			return
		}
	}
	w.t.Fatal("the cluster does not come to rest")
}

func (w *world) versions() string {
	text := ""
	for _, node := range w.nodes {
		text += w.ledger(node).ResourceVersion + fmt.Sprint(len(w.running[node])) + " "
	}
	for _, p := range w.pods() {
		text += p.Name + p.ResourceVersion + " "
	}
	return text
}

// checkRest asserts Invariant 6: what is granted is what runs, and no pod waits
// that would fit.
func (w *world) checkRest() {
	w.t.Helper()
	truth := index.New()
	for _, node := range w.nodes {
		truth.Put(w.ledger(node))
	}
	live := map[string]bool{}
	for _, p := range w.pods() {
		live[string(p.UID)] = true
		demand, shares, err := demandOf(&p)
		w.must(err)
		if gated(&p) {
			if held := truth.Holders(p.UID); len(held) > 0 {
				w.t.Fatalf("Invariant 6: gated pod %s holds slices on %v", p.Name, held)
			}
			if plans := placement.Rank(demand, truth.Room()); len(plans) > 0 {
				w.t.Fatalf("Invariant 6: pod %s waits but fits on %s", p.Name, plans[0].Node)
			}
			continue
		}
		held := truth.Holders(p.UID)
		if len(held) != 1 || held[0] != p.Spec.NodeName || !book.Serves(w.ledger(held[0]), p.UID, shares) {
			w.t.Fatalf("Invariant 6: pod %s runs on %s and holds slices on %v", p.Name, p.Spec.NodeName, held)
		}
	}
	for _, node := range w.nodes {
		for uid := range book.Pods(w.ledger(node)) {
			if !live[string(uid)] {
				w.t.Fatalf("Invariant 6: pod %s is gone and holds slices on %s", uid, node)
			}
		}
	}
}

// Invariants 1 and 6 under random faults: allocators that all believe that they
// lead, late, repeated and lost watch events, conflicts, lost answers, and
// crashes at every request.
func TestSoak(t *testing.T) {
	seeds, steps := 20, 500
	if testing.Short() {
		seeds = 10
	}
	granted := 0
	for seed := range seeds {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			w := newWorld(t, int64(seed), 2, 1+seed%3)
			for range steps {
				w.act()
			}
			w.settle()
			w.checkRest()
			for _, p := range w.pods() {
				if p.Spec.NodeName != "" {
					granted++
				}
			}
			// Everything goes: nothing may be left.
			for w.somePod(func(*corev1.Pod) bool { return true }) != nil {
				w.deletePod()
			}
			w.settle()
			w.checkRest()
		})
	}
	if granted < seeds {
		t.Errorf("%d pods ran in %d seeds: the test no longer places anything", granted, seeds)
	}
}
