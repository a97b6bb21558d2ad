// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// Invariants 1 and 6 with a replica killed at each request that placing a gang over
// two nodes takes, before the API server has it and after: between two holds, between
// hold and commit, between commit and ungating, between two patches. Somebody who
// takes what is free at that moment either finds the gang whole or gets the room.
func TestKilledWhileAGangIsPlaced(t *testing.T) {
	t.Parallel()
	for _, arrives := range []bool{false, true} {
		for _, raced := range []bool{false, true} {
			at := 1
			for ; lifeOfGang(t, at, arrives, raced); at++ {
			}
			// Two holds, two commits, three patches.
			if at-1 < 7 {
				t.Errorf("only %d requests were made", at-1)
			}
		}
	}
}

// lifeOfGang has a gang placed, with a kill at the n-th request, upon which somebody
// else takes the free devices of a node. It tells whether there were that many.
func lifeOfGang(t *testing.T, n int, arrives, raced bool) (killed bool) {
	t.Helper()
	s := newStage(t, 2)
	when := fmt.Sprintf("killed at request %d, arrived %v, raced %v", n, arrives, raced)
	s.world.fail = func(format string, args ...any) {
		t.Helper()
		t.Fatalf(when+": "+format, args...)
	}
	died := s.killAt(n, arrives)
	s.addGang(3, 60, 600)
	s.readAll()
	for !*died && s.queue.Len() > 0 {
		s.step()
	}
	s.kill = nil
	if raced && *died {
		s.grab("n1")
	}
	s.work()
	s.check()
	placed := strings.Count(s.seats("m0", "m1", "m2"), ":")
	var granted int
	for _, node := range s.nodes {
		l := s.ledger(node.name)
		if len(l.Spec.Holds) > 0 {
			t.Errorf("%s: Invariant 6: %s holds %+v", when, node.name, l.Spec.Holds)
		}
		for uid := range grants.Pods(l) {
			if uid != "other" {
				granted++
			}
		}
	}
	if granted != placed || placed != 3 && (!raced || placed != 0) {
		t.Errorf("%s: %d of 3 placed, %d have slices", when, placed, granted)
	}
	return *died
}

// grab is somebody who takes the free devices of a node.
func (s *stage) grab(node string) {
	s.t.Helper()
	for i := range 2 {
		if !slices.ContainsFunc(s.ledger(node).Spec.Devices, func(d v1alpha1.DeviceLedger) bool { return d.UUID == gpu(node, i) && len(d.Slices) > 0 }) {
			s.grant(node, "other", i, 100, objects.DeviceMiB)
		}
	}
}

// A member of a gang ends while the others are being let go, and the replica dies. Those
// that have their slices follow the one that is past the gate; before the first was let
// go, nobody is.
func TestMemberEndsWhileAGangIsLetGo(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		at   int
		want string
	}{
		// Two holds, three patches as a dry run and two commits come first, then the patches.
		{8, ""}, {9, "m0:n0 m1:n0"}, {10, "m0:n0 m1:n0"},
	} {
		s := newStage(t, 2)
		killed := s.killAt(tt.at, false)
		s.addGang(3, 60, 600)
		s.stepUntil(killed)
		s.forget("m2")
		if got := s.seats("m0", "m1"); got != tt.want {
			t.Errorf("killed at request %d: placed %q, want %q", tt.at, got, tt.want)
		}
		for _, node := range s.nodes {
			if pods := grants.Pods(s.ledger(node.name)); len(pods) != strings.Count(tt.want, node.name) {
				t.Errorf("killed at request %d: Invariant 6: %s has slices of %v", tt.at, node.name, pods)
			}
		}
	}
}

// Those whose slices are only held follow nobody: not all of the gang may have had its
// own.
func TestHeldMembersFollowNobody(t *testing.T) {
	s := newStage(t, 2)
	add := func(i, life int) *corev1.Pod {
		return s.add(fmt.Sprintf("m%d", i), 60, 600, objects.InGang("g", 3), func(p *corev1.Pod) { p.UID += types.UID(fmt.Sprint("-", life)) })
	}
	for i := range 3 {
		add(i, 1)
	}
	s.work()
	for i := 1; i < 3; i++ {
		s.vanish(s.get(fmt.Sprintf("m%d", i)))
	}
	s.work()
	killed := s.killAt(3, false) // after two holds
	for i := 1; i < 3; i++ {
		add(i, 2)
	}
	s.stepUntil(killed)
	if holds := len(s.ledger("n0").Spec.Holds) + len(s.ledger("n1").Spec.Holds); holds != 2 {
		t.Fatalf("held in %d ledgers", holds)
	}
	s.forget("m2")
	s.expect("m0:n0 m1")
}

// Another leader takes back what members have on one node while what the others have is
// committed on the next: nobody is let go before all have their slices again.
func TestTakenBackWhileAGangIsCommitted(t *testing.T) {
	s := newStage(t, 2)
	n := 0
	s.kill = func() (before, after bool) {
		if n++; n == 4 { // two holds, one commit
			l := s.ledger("n0")
			grants.Release(l, func(types.UID) bool { return true })
			s.put(l)
			s.readAll()
		}
		return false, false
	}
	s.addGang(3, 60, 600)
	s.readAll()
	for n < 4 {
		s.step()
	}
	s.expect("m0 m1 m2")
	s.work()
	s.expect("m0:* m1:* m2:*")
}

// Nor is a part of a gang placed anew because it would have followed: the node of one that
// has its slices is cordoned after the first of the gang was ungated, and another has ended.
// All give theirs back, and start with as many as are missing.
func TestGang_WhenANodeIsCordoned_WaitsForAllMissing(t *testing.T) {
	s := newStage(t, 3)
	killed := s.killAt(9, true) // two holds, four patches as a dry run, two commits, one patch
	s.addGang(4, 60, 600)
	s.stepUntil(killed)
	n1 := objects.Node("n1")
	n1.Spec.Unschedulable = true
	s.notify(n1, false)
	s.vanish(s.get("m3"))
	s.readAll()
	s.work()
	s.expect("m0:n0 m1 m2")
	if pods := grants.Pods(s.ledger("n1")); len(pods) > 0 || len(grants.Pods(s.ledger("n0"))) != 1 {
		t.Errorf("Invariant 6: n0 has slices of %v, n1 of %v", grants.Pods(s.ledger("n0")), pods)
	}
	s.add("m3", 60, 600, objects.InGang("g", 4), func(p *corev1.Pod) { p.UID = "m3-again" })
	s.work()
	s.expect("m0:n0 m1:n0 m2:n2 m3:n2")
}

// Another leader takes back what a member has while the others' patches are on their way:
// they are let go, as they might have been a moment before, and it follows.
func TestTakenBackWhileAGangIsLetGo(t *testing.T) {
	s := newStage(t, 2)
	s.addGang(3, 60, 600)
	s.readAll()
	stolen := false
	s.kill = func() (before, after bool) {
		if s.refuse = nil; s.patches == 1 && !stolen {
			stolen = true
			s.takeBack(s.ledger("n1"), "m2")
			s.readAll()
			s.refuse = apierrors.NewServerTimeout(schema.GroupResource{}, "any", 0)
		}
		return false, false
	}
	s.step()
	s.expect("m0 m1:n0 m2")
	s.queue.flush()
	s.work()
	s.expect("m0:* m1:* m2:*")
}
