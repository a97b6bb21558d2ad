// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"testing"

	"vernier.dev/vernier/allocator/binding/bindwatch"
)

// Invariants 1 and 6 with a replica killed at each of its requests, once before the
// API server has it and once after: the next one finishes what it began, and nothing
// is left of what it did not.
func TestKilledAtEveryRequest(t *testing.T) {
	t.Parallel()
	for _, arrives := range []bool{false, true} {
		at := 1
		for ; lifeOfPods(t, at, arrives); at++ {
		}
		if at < 10 {
			t.Errorf("only %d requests were made", at)
		}
		t.Logf("killed at each of %d requests, arrived: %v", at-1, arrives)
	}
}

// lifeOfPods has pods placed, bound, run, given up and deleted, with a kill at the
// n-th request. It tells whether there were that many.
func lifeOfPods(t *testing.T, n int, arrives bool) (killed bool) {
	t.Helper()
	w := newWorld(t, 1, 2, 1, func(w *world) { w.calm = true })
	r := w.replicas[0]
	at := w.killAt(n, arrives)
	w.fail = func(format string, args ...any) {
		t.Helper()
		t.Fatalf("after a kill: "+format, args...)
	}
	for range 2 {
		for range 3 {
			w.createPod()
		}
		if p := w.somePod(unbound); p != nil {
			w.unschedulable(p)
		}
		w.clock.Step(bindwatch.RefusedGrace)
		r.queue.flush()
		for _, n := range w.nodes {
			w.bind()
			n.watch()
			n.start(always)
			n.report()
			n.stop()
		}
		w.deletePod()
		for len(r.watch) > 0 || r.queue.Len() > 0 {
			r.read()
			r.step()
		}
		w.check()
	}
	w.kill = nil
	w.settle()
	w.checkRest()
	return *at
}
