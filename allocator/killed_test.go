// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"errors"
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/binding/bindwatch"
	"vernier.dev/vernier/allocator/queue"
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
	w := newWorld(t, 1, 2, 1)
	w.calm = true
	r := w.replicas[0]
	w.kill = func() (before, after bool) {
		if n--; n != 0 {
			return false, false
		}
		killed = true
		return !arrives, arrives
	}
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
			if len(r.watch) > 0 {
				r.read()
			}
			r.step()
		}
		w.check()
	}
	w.kill = nil
	w.settle()
	w.checkRest()
	return killed
}

// The bound of the loop that decides again: an API server that calls every write a
// conflict, or fails it, is asked again later and not at once.
func TestEndlessConflictsAreSlowedDown(t *testing.T) {
	for _, answer := range []error{
		apierrors.NewConflict(schema.GroupResource{}, "n0", errors.New("always")),
		apierrors.NewServerTimeout(schema.GroupResource{}, "any", 0),
	} {
		s := newStage(t, 1)
		for i := range 3 {
			s.add(fmt.Sprint("p", i), 10, 100)
		}
		s.readAll()
		s.refuse = answer
		for range 4 * queue.MaxAttempts {
			s.step()
		}
		if s.updates > 2*(queue.MaxAttempts+1) || s.queue.Len() > 0 || len(s.queue.later) == 0 {
			t.Errorf("%v: %d writes without a pause", answer, s.updates)
		}
		s.refuse = nil
		s.queue.flush()
		s.work()
		if s.patches != 3 {
			t.Errorf("%v: %d pods placed when it was over, want 3", answer, s.patches)
		}
	}
}

// Conflicts are counted in a row: one that was got through gives the next as many looks.
func TestConflictsInARow(t *testing.T) {
	s := newStage(t, 1)
	conflict := apierrors.NewConflict(schema.GroupResource{}, "n0", errors.New("no"))
	for life := range 3 {
		s.add("p", 10, 100, func(p *corev1.Pod) { p.UID = types.UID(fmt.Sprint("p", life)) })
		s.readAll()
		s.refuse, s.updates = conflict, 0
		for range queue.MaxAttempts {
			s.step()
		}
		if s.updates != queue.MaxAttempts || s.queue.Len() == 0 {
			t.Fatalf("life %d: %d of %d attempts at once", life, s.updates, queue.MaxAttempts)
		}
		s.refuse = nil
		s.work()
		s.vanish(s.get("p"))
		s.work()
	}
	if kept(s.allocator.queue, "attempts") > 0 {
		t.Error("attempts are remembered")
	}
}
