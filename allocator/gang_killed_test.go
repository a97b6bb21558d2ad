// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/grants"
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
	s.kill = func() (before, after bool) {
		if n--; n != 0 {
			return false, false
		}
		killed = true
		return !arrives, arrives
	}
	var names []string
	for i := range 3 {
		names = append(names, s.add(fmt.Sprintf("m%d", i), 60, 600, objects.InGang("g", 3)).Name)
	}
	s.readAll()
	for !killed && s.queue.Len() > 0 {
		s.step()
	}
	s.kill = nil
	if raced && killed {
		s.grab("n1")
	}
	s.work()
	s.check()
	placed := strings.Count(s.seats(names...), ":")
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
	return killed
}

// grab is somebody who takes the free devices of a node.
func (s *stage) grab(node string) {
	s.t.Helper()
	l := s.ledger(node)
	for i := range 2 {
		uuid := fmt.Sprintf("GPU-%s-%d", node, i)
		taken := false
		for _, d := range l.Spec.Devices {
			taken = taken || d.UUID == uuid && len(d.Slices) > 0
		}
		if !taken {
			s.must(grants.Grant(l, "other", "ns/other", placement.Plan{Grants: []placement.Grant{{Container: "c", UUID: uuid, Core: 100, Mem: objects.DeviceMiB}}}))
		}
	}
	s.must(s.api.Update(s.t.Context(), l))
	s.notify(l, false)
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
		n, killed := tt.at, false
		s.kill = func() (before, after bool) {
			n--
			killed = killed || n == 0
			return n == 0, false
		}
		for i := range 3 {
			s.add(fmt.Sprintf("m%d", i), 60, 600, objects.InGang("g", 3))
		}
		s.readAll()
		for !killed {
			s.step()
		}
		s.kill = nil
		s.vanish(s.get("m2"))
		s.work()
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
	n, killed := 3, false
	s.kill = func() (before, after bool) {
		n-- // after two holds
		killed = killed || n == 0
		return n == 0, false
	}
	for i := 1; i < 3; i++ {
		add(i, 2)
	}
	s.readAll()
	for !killed {
		s.step()
	}
	s.kill = nil
	if holds := len(s.ledger("n0").Spec.Holds) + len(s.ledger("n1").Spec.Holds); holds != 2 {
		t.Fatalf("held in %d ledgers", holds)
	}
	s.vanish(s.get("m2"))
	s.work()
	if got := s.seats("m0", "m1"); got != "m0:n0" {
		t.Errorf("placed %q, want m0 alone", got)
	}
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
			s.must(s.api.Update(t.Context(), l))
			s.notify(l, false)
			s.readAll()
		}
		return false, false
	}
	for i := range 3 {
		s.add(fmt.Sprintf("m%d", i), 60, 600, objects.InGang("g", 3))
	}
	s.readAll()
	for n < 4 {
		s.step()
	}
	if got := s.seats("m0", "m1", "m2"); got != "" {
		t.Errorf("placed %q of a gang of which two had nothing", got)
	}
	s.work()
	if got := s.seats("m0", "m1", "m2"); strings.Count(got, ":") != 3 {
		t.Errorf("placed %q in the end", got)
	}
}

// Nor is a part of a gang placed anew because it would have followed: the node of one that
// has its slices is cordoned after the first of the gang was let go, and another has ended.
// All give theirs back, and start with as many as are missing.
func TestNobodyFollowsToAnotherNode(t *testing.T) {
	s := newStage(t, 3)
	n, killed := 9, false
	s.kill = func() (before, after bool) {
		n-- // two holds, four patches as a dry run, two commits, one patch
		killed = killed || n == 0
		return false, n == 0
	}
	for i := range 4 {
		s.add(fmt.Sprintf("m%d", i), 60, 600, objects.InGang("g", 4))
	}
	s.readAll()
	for !killed {
		s.step()
	}
	s.kill = nil
	n1 := objects.Node("n1")
	n1.Spec.Unschedulable = true
	s.notify(n1, false)
	s.vanish(s.get("m3"))
	s.readAll()
	s.work()
	if got := s.seats("m0", "m1", "m2"); got != "m0:n0" {
		t.Errorf("placed %q, want m0 alone: two of the other three are there, and one would have to go elsewhere", got)
	}
	if pods := grants.Pods(s.ledger("n1")); len(pods) > 0 || len(grants.Pods(s.ledger("n0"))) != 1 {
		t.Errorf("Invariant 6: n0 has slices of %v, n1 of %v", grants.Pods(s.ledger("n0")), pods)
	}
	s.add("m3", 60, 600, objects.InGang("g", 4), func(p *corev1.Pod) { p.UID = "m3-again" })
	s.work()
	if got := s.seats("m0", "m1", "m2", "m3"); got != "m0:n0 m1:n0 m2:n2 m3:n2" {
		t.Errorf("placed %q when all were there", got)
	}
}

// Another leader takes back what a member has while the others' patches are on their way:
// they are let go, as they might have been a moment before, and it follows.
func TestTakenBackWhileAGangIsLetGo(t *testing.T) {
	s := newStage(t, 2)
	for i := range 3 {
		s.add(fmt.Sprintf("m%d", i), 60, 600, objects.InGang("g", 3))
	}
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
	if got := s.seats("m0", "m1", "m2"); got != "m1:n0" {
		t.Errorf("placed %q, want m1, whose patch came after", got)
	}
	s.queue.flush()
	s.work()
	if got := s.seats("m0", "m1", "m2"); strings.Count(got, ":") != 3 {
		t.Errorf("placed %q in the end", got)
	}
}
