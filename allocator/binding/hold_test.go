// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// choice puts the pod on the first device of the node.
func (f *fixture) choice(p *corev1.Pod, node string) Assignment {
	return Assignment{Pod: p, Ledger: f.known(node), Plan: placement.Plan{Node: node, Grants: []placement.Grant{
		{Container: "c", UUID: "GPU-" + node + "-0", Core: 50, Mem: 500, Mode: v1alpha1.ModeLimiter}}}}
}

// What is written into several ledgers is held until all of it is.
func TestReserve(t *testing.T) {
	p, q, r := objects.Halves("p", "c"), objects.Halves("q", "c"), objects.Halves("r", "c")
	tests := []struct {
		name string
		// q is where the second member goes, held that the third has its slices held.
		q    string
		held bool
		want bool
	}{
		{"two ledgers", "m", false, true},
		{"one ledger", "n", false, false},
		{"one ledger and a member that has its own held", "n", true, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			third := objects.Grant(objects.ReadyLedger("k"), r, on{"c": 0})
			f := newFixture(t, objects.ReadyLedger("n"), objects.ReadyLedger("m"), third)
			if tt.held {
				third = f.ledger("k")
				grants.Hold(third, "gang", f.clock.Now().Add(HoldFor), r.UID)
				f.must(f.Write(t.Context(), third))
			}
			members := []*Pending{{Pod: p, Node: "n"}, {Pod: q, Node: tt.q}, {Pod: r, Node: "k"}}
			f.must(f.Reserve(t.Context(), "gang", members, []Assignment{f.choice(p, "n"), f.choice(q, tt.q)}))
			for _, m := range members[:2] {
				l := f.ledger(m.Node)
				if grants.Placement(l, m.Pod.UID) == nil {
					t.Errorf("%s has no slices on %s", m.Pod.Name, m.Node)
				}
				if since := l.Spec.Devices[0].Slices[0].Since; since == nil || !since.Time.Equal(f.clock.Now()) {
					t.Errorf("on %s granted at %v, want %v", m.Node, since, f.clock.Now())
				}
				hold := grants.Held(l)[m.Pod.UID]
				if (hold != nil) != tt.want {
					t.Errorf("%s held: %v, want %v", m.Pod.Name, hold, tt.want)
				}
				if hold != nil && (hold.Owner != "gang" || !hold.Until.Time.Equal(f.clock.Now().Add(HoldFor))) {
					t.Errorf("hold %+v", hold)
				}
			}
		})
	}
}

// A ledger that has changed since the decision gets nothing.
func TestReserveConflict(t *testing.T) {
	p, q := objects.Halves("p", "c"), objects.Halves("q", "c")
	f := newFixture(t, objects.ReadyLedger("n"), objects.ReadyLedger("m"))
	choices := []Assignment{f.choice(p, "n"), f.choice(q, "m")}
	f.behind(objects.Grant(f.ledger("m"), objects.Halves("other", "c"), on{"c": 0}))
	members := []*Pending{{Pod: p, Node: "n"}, {Pod: q, Node: "m"}}
	if err := f.Reserve(t.Context(), "gang", members, choices); !errors.Is(err, queue.ErrAgain) {
		t.Errorf("error %v", err)
	}
	if grants.Placement(f.ledger("m"), q.UID) != nil || grants.Held(f.ledger("n"))[p.UID] == nil {
		t.Errorf("n holds for %v, m has %v", f.ledger("n").Spec.Holds, f.ledger("m").Spec.Devices)
	}
}

// Holds end together, and only while everybody has what is held for them.
func TestCommit(t *testing.T) {
	tests := []struct {
		name string
		// setup changes what n and m have held for p and q.
		setup func(*fixture)
		again bool
		// writes is how many ledgers are written, held on which nodes there is a hold then.
		writes int
		held   []string
	}{
		{"all are held", func(*fixture) {}, false, 2, nil},
		{"one is granted already", func(f *fixture) {
			f.must(f.Commit(t.Context(), []*Pending{{Pod: objects.Halves("q", "c"), Node: "m"}}))
		}, false, 1, nil},
		{"one has lost its slices", func(f *fixture) {
			l := f.ledger("m")
			l.Spec = v1alpha1.SliceLedgerSpec{}
			f.behind(l)
			f.Handlers.SetLedger(f.ledger("m"))
		}, true, 0, []string{"n"}},
		{"one has no ledger", func(f *fixture) { f.Handlers.DeleteLedger(f.known("m")) }, true, 0, []string{"m", "n"}},
		{"one has lost its slices, which is not known yet", func(f *fixture) {
			l := f.ledger("m")
			l.Spec = v1alpha1.SliceLedgerSpec{}
			f.behind(l)
		}, true, 2, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			members := []*Pending{{Pod: objects.Halves("p", "c"), Node: "n"}, {Pod: objects.Halves("q", "c"), Node: "m"}}
			f := newFixture(t, objects.ReadyLedger("n"), objects.ReadyLedger("m"))
			f.must(f.Reserve(t.Context(), "gang", members, []Assignment{f.choice(members[0].Pod, "n"), f.choice(members[1].Pod, "m")}))
			tt.setup(f)
			f.updates = 0
			if err := f.Commit(t.Context(), members); errors.Is(err, queue.ErrAgain) != tt.again || err != nil && !tt.again {
				t.Errorf("error %v, again: %v", err, tt.again)
			}
			var held []string
			for _, node := range []string{"m", "n"} {
				if len(f.ledger(node).Spec.Holds) > 0 {
					held = append(held, node)
				}
			}
			if f.updates != tt.writes || !slices.Equal(held, tt.held) {
				t.Errorf("%d writes, held on %v; want %d and %v", f.updates, held, tt.writes, tt.held)
			}
		})
	}
}
