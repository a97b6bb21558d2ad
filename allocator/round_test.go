// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/test/objects"
)

// A write is looked at once, not again when the watch shows it.
func TestLedger_WhenWatchShowsOwnWrite_IsNotQueued(t *testing.T) {
	s := newStage(t, 1)
	s.add("p", 10, 100)
	s.work()
	known := s.allocator.cache.Index.Ledger("n0")
	s.allocator.SetLedger(s.ledger("n0"))
	if s.queue.Len() > 0 || s.allocator.cache.Index.Ledger("n0") != known {
		t.Errorf("%v are to be looked at", s.queue.due)
	}
	s.grant("n0", "p", 1, 10, 100)
	s.readAll()
	if s.queue.Len() == 0 {
		t.Error("what somebody else wrote is not looked at")
	}
}

// Pods of one round don't take the same room: of a device, or of what the scheduler
// counts on the node.
func TestRoundCountsItself(t *testing.T) {
	s := newStage(t, 1)
	for i := range 3 {
		s.add(fmt.Sprint("big", i), 60, 100)
	}
	s.readAll()
	s.work()
	if got := len(grants.Pods(s.ledger("n0"))); got != 2 || s.updates != 1 {
		t.Errorf("Invariant 1: %d of 3 pods of 60 core have slices on 2 devices after %d writes, want 2 after 1", got, s.updates)
	}
	s = newStage(t, 1)
	for i := range 3 {
		s.add(fmt.Sprint("cpu", i), 1, 1, objects.CPU("30"))
	}
	s.readAll()
	s.work()
	if got := len(grants.Pods(s.ledger("n0"))); got != 2 || s.updates != 1 {
		t.Errorf("Invariant 7: %d of 3 pods of 30 CPUs are on a node of 64 after %d writes, want 2 after 1", got, s.updates)
	}
}

// A round is so many pods at most, whatever is due.
func TestRoundIsBounded(t *testing.T) {
	const due = 3 * queue.MaxRound
	s := newStage(t, 1)
	s.comeUnfit(due)
	before := s.queue.Len()
	s.step()
	if n := before - s.queue.Len(); before < due || n != queue.MaxRound {
		t.Errorf("%d of %d were looked at in one round, want %d", n, before, queue.MaxRound)
	}
}

// However often nodes and pods change, who is refused by the scheduler is looked at again
// after a while, once.
func TestMoveToActive_WhenChangesFollow_IsBatched(t *testing.T) {
	s := newStage(t, 1)
	s.add("refused", 10, 100, objects.CPU("1000"))
	s.work()
	later := len(s.queue.later)
	for range 50 {
		s.allocator.Changed(nil, &corev1.PersistentVolumeClaim{})
	}
	if n := s.queue.Len(); n > 0 {
		t.Errorf("%d looks are due at once", n)
	}
	if n := len(s.queue.later) - later; n != 1 {
		t.Errorf("%d more looks are due later, want 1: %+v", n, s.queue.later)
	}
}

// A burst that waits does not keep back a pod that fits: it is in the next round but
// one.
func TestWaitingPodsDontStarveOthers(t *testing.T) {
	const waiting = 5000
	s := newStage(t, 1)
	s.comeUnfit(waiting)
	s.work()
	for range 3 {
		s.allocator.queue.MoveToActive(cache.OnAll)
	}
	s.step() // the wake itself
	s.add("small", 1, 1)
	s.read()
	for range 2 {
		s.step()
	}
	s.expect("small:*")
	s.work()
	if got := s.allocator.queue.Waiting()["devices"]; got != waiting {
		t.Errorf("%d pods wait, want %d", got, waiting)
	}
}

// Everybody who waits has a turn, also when all are woken again before that.
func TestEveryWaitingPodHasATurn(t *testing.T) {
	s := newStage(t, 1)
	const waiting = 4 * queue.MaxMoves
	s.comeUnfit(waiting)
	s.work()
	seen := map[string]bool{}
	s.queue.taken = func(it queue.Item) { seen[it.Pod.Name] = true }
	for range 2 * waiting / queue.MaxMoves {
		s.allocator.queue.MoveToActive(cache.OnAll)
		s.step()
	}
	delete(seen, "")
	if len(seen) != waiting {
		t.Errorf("%d of %d had a turn", len(seen), waiting)
	}
}

// comeUnfit shows the allocator pods that fit on no device. The API server, which is
// never asked for them, need not have them.
func (s *stage) comeUnfit(n int) {
	for i := range n {
		p := objects.Single(fmt.Sprint("big", i), objects.Share(100, objects.DeviceMiB+1))
		s.allocator.SetPod(p)
	}
}

// readAll has the replica see everything that happened.
func (r *replicaInTest) readAll() {
	for len(r.watch) > 0 {
		r.read()
	}
}
