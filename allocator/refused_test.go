// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/binding/bindwatch"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// forbidden is what the API server says where a policy of the operator's refuses.
func forbidden(name string) error {
	return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, name, errors.New("ValidatingAdmissionPolicy 'operators' denied request: no patches on Fridays"))
}

// refusing answers the writes that are named, of objects of the name, as long as there is one.
func (s *stage) refusing(what string, names ...string) {
	s.refuseFor = func(w string, obj client.Object) error {
		if w == what && slices.Contains(names, obj.GetName()) {
			return forbidden(obj.GetName())
		}
		return nil
	}
}

// tries steps through the pauses after refusals, up to the nth.
func (s *stage) tries(n int) {
	s.work()
	for i := range n {
		s.pass(min(binding.LastPause, binding.FirstPause<<i))
	}
}

func (s *stage) holds(node, pod string) bool {
	return grants.Pods(s.ledger(node))[s.get(pod).UID] != ""
}

// Invariant 6: a pod of which the gate patch is refused for good gives its slices back after a
// few tries with growing pauses, and another has them. It is tried again when it, its namespace
// or a policy changes, and at the latest after 5 minutes.
func TestGatePatchRefused(t *testing.T) {
	s := newStage(t, 1)
	counted := measured(t, "refused_writes_total")
	s.refusing("patch", "p")
	s.add("p", 100, 100)
	s.tries(binding.FewTries - 2)
	if !s.holds("n0", "p") || s.patches != binding.FewTries-1 || len(s.newEvents()) > 0 {
		t.Fatalf("after %d tries: %d patches", binding.FewTries-1, s.patches)
	}
	s.pass(binding.FirstPause << (binding.FewTries - 2))
	if s.holds("n0", "p") || s.patches != binding.FewTries {
		t.Errorf("after %d patches it holds slices: %v", s.patches, s.holds("n0", "p"))
	}
	if n := measured(t, "refused_writes_total") - counted; n != binding.FewTries {
		t.Errorf("%v refusals counted", n)
	}
	s.pass(5 * time.Second) // no longer than ElsewherePatience
	if got := s.newEvents(); len(got) != 1 || !strings.Contains(got[0], "VernierWriteRefused") || !strings.Contains(got[0], "no patches on Fridays") {
		t.Errorf("events %q", got)
	}
	for _, name := range []string{"one", "two"} {
		s.add(name, 100, 100)
		s.work()
		if !s.holds("n0", name) {
			t.Errorf("pod %s does not get a GPU that pod p has given back", name)
		}
	}
	for _, name := range []string{"one", "two"} {
		s.vanish(s.get(name))
	}
	// At the latest after 5 minutes, for ever.
	for range 20 {
		s.pass(binding.LastPause)
	}
	before := s.patches
	s.pass(binding.LastPause)
	if s.patches != before+1 || s.holds("n0", "p") {
		t.Errorf("%d tries in 5 minutes, holds slices: %v", s.patches-before, s.holds("n0", "p"))
	}
	// What changes has it tried again at once, and no more often than every few seconds.
	s.pass(binding.RetryAfterChange)
	edit := func(to string) {
		p := s.get("p")
		p.Labels = map[string]string{"edited": to}
		s.put(p)
		s.work()
	}
	before = s.patches
	edit("once")
	edit("twice")
	s.pass(time.Second)
	if s.patches != before+1 {
		t.Errorf("%d tries after two edits, want 1", s.patches-before)
	}
	s.pass(binding.RetryAfterChange)
	before = s.patches
	s.refuseFor = nil
	s.allocator.binder.RetryRefused()
	s.pass(binding.RetryAfterChange)
	if podstate.Gated(s.get("p")) || s.patches != before+1 {
		t.Errorf("not placed after a policy has changed; %d patches", s.patches-before)
	}
	if !s.holds("n0", "p") {
		t.Error("placed without slices")
	}
}

// A refusal is forgotten with its pod, and so is that of a write that is taken.
func TestRefusalsAreForgotten(t *testing.T) {
	s := newStage(t, 1)
	for _, name := range []string{"p", "q"} {
		s.refusing("patch", name)
		p := s.add(name, 10, 100)
		s.tries(binding.FewTries)
		if s.allocator.binder.Refused(p) == "" {
			t.Fatalf("pod %s is not refused", name)
		}
		if name == "p" {
			s.forget(name)
		} else {
			s.refuseFor = nil
			s.pass(binding.LastPause)
			s.expect(name + ":*")
		}
		if text := s.allocator.binder.Refused(p); text != "" {
			t.Errorf("a refusal of pod %s is kept: %s", name, text)
		}
	}
}

// A gang of which one member's gate patch is refused starts as a whole, or not at all.
func TestGangWithRefusedMember(t *testing.T) {
	s := newStage(t, 2)
	s.refusing("patch", "b")
	for _, name := range []string{"a", "b"} {
		s.add(name, 60, 600, objects.InGang("g", 2), objects.CPU("40"))
	}
	s.tries(binding.FewTries)
	for _, name := range []string{"a", "b"} {
		if !podstate.Gated(s.get(name)) || s.holds("n0", name) || s.holds("n1", name) {
			t.Errorf("pod %s is ungated or holds slices", name)
		}
	}
	s.pass(5 * time.Second)
	if got := s.newEvents(); len(got) != 2 || !strings.Contains(got[0], "no patches on Fridays") || !strings.Contains(got[0], "PodGroup") && !strings.Contains(got[0], "g:") {
		t.Errorf("events %q", got)
	}
	s.refuseFor = nil
	s.allocator.binder.RetryRefused()
	s.pass(binding.RetryAfterChange)
	for _, name := range []string{"a", "b"} {
		if podstate.Gated(s.get(name)) {
			t.Errorf("pod %s is not ungated when nothing refuses any more", name)
		}
	}
}

// A pod is placed elsewhere where a node's ledger is refused for it, and keeps no other pod from
// that node. Where there is no other node it waits, and says why.
func TestLedgerWriteRefused(t *testing.T) {
	s := newStage(t, 2)
	s.refusing("update", "n0")
	s.add("p", 10, 100)
	s.work()
	if podstate.Gated(s.get("p")) || !s.holds("n1", "p") {
		t.Error("not placed on the other node")
	}
	s.refusing("update", "n0", "n1")
	s.add("q", 10, 100)
	s.newEvents()
	s.tries(2 * binding.FewTries)
	if got := s.newEvents(); !slices.ContainsFunc(got, func(e string) bool {
		return strings.Contains(e, "VernierWriteRefused") && strings.Contains(e, "into the ledger of node n") && strings.Contains(e, "no patches on Fridays")
	}) {
		t.Errorf("events %q", got)
	}
	s.refuseFor = nil
	s.allocator.binder.RetryRefused()
	s.pass(binding.RetryAfterChange)
	s.expect("q:*")
}

// Hostile: a pod whose grant no ledger takes keeps no other from its grant, although both are
// decided in one round.
func TestHostileGrantIsRefusedAlone(t *testing.T) {
	s := newStage(t, 1)
	s.refuseFor = func(what string, obj client.Object) error {
		if l, is := obj.(*v1alpha1.SliceLedger); is && what == "update" && grants.Pods(l)["bad"] != "" {
			return forbidden(l.Name)
		}
		return nil
	}
	s.add("bad", 10, 100)
	for _, name := range []string{"p", "q", "r"} {
		s.add(name, 10, 100)
	}
	s.readAll()
	s.work()
	s.pass(binding.FirstPause)
	s.pass(binding.FirstPause)
	for _, name := range []string{"p", "q", "r"} {
		if podstate.Gated(s.get(name)) {
			t.Errorf("pod %s waits for one whose grant is refused", name)
		}
	}
	s.expect("bad")
}

// A deletion that is refused keeps no slices for ever, and is said.
func TestDeletionRefused(t *testing.T) {
	s := newStage(t, 1)
	s.refusing("delete", "p")
	s.add("p", 10, 100, objects.Controlled)
	s.work()
	s.unschedulable("p")
	s.pass(bindwatch.RefusedGrace)
	for range 2 * binding.FewTries {
		s.pass(binding.LastPause)
	}
	if s.get("p") == nil || s.holds("n0", "p") {
		t.Error("a pod that must not be deleted keeps its slices")
	}
	if got := s.newEvents(); !slices.ContainsFunc(got, func(e string) bool {
		return strings.Contains(e, "deletion of this pod") && strings.Contains(e, "no patches on Fridays")
	}) {
		t.Errorf("events %q", got)
	}
	s.refuseFor = nil
	s.pass(binding.LastPause)
	if s.get("p") != nil {
		t.Error("not deleted 5 minutes after nothing refuses that any more")
	}
}
