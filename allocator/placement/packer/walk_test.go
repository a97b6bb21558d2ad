// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math/rand"
	"testing"
)

// Prices change a few nodes at a time. On the way index and scan agree, every call
// does a bounded piece, and what is scarce is told from all nodes each time.
func TestWalk(t *testing.T) {
	r := rand.New(rand.NewSource(4))
	classes, weights := diverse(r, 60)
	l := newLoad(4, machines(r, 5*atOnce), classes, weights)
	walking, adopted := 0, 0
	for range 3000 {
		for l.full() > 0.8 {
			l.leave()
		}
		at, former, prices := l.walk.at, l.walk.former, l.prices
		l.Reprice()
		if l.prices != prices {
			adopted++
			checkPlaces(t, l, prices)
		}
		if former != nil {
			walking++
			if l.walk.former != nil && l.walk.at != at+atOnce {
				t.Fatalf("a call went from node %d to %d", at, l.walk.at)
			}
		}
		q := l.arrival()
		want, devices, fits := l.Scan(q, nil)
		if id, d, ok := l.Best(q); ok != fits || id != want || d != devices {
			t.Fatalf("Best is node %d devices %b, the scan says %d %b; %+v", id, d, want, devices, l.walk)
		}
		l.place(q)
	}
	l.check(t)
	if walking < 50 || adopted < 20 {
		t.Errorf("%d calls scored nodes and %d changed prices: the test no longer looks at either", walking, adopted)
	}
}

// checkPlaces asserts that places for groups are worth what all nodes together
// make them, or, where that is about the same, what they were before.
func checkPlaces(t *testing.T, l *load, before *prices) {
	t.Helper()
	var have [maxGroups]float64
	want := *l.prices
	for i := range l.nodes {
		for j := range want.groups {
			g := &want.groups[j]
			have[j] += float64(g.places(g.count(l.gapsOf(NodeID(i))), l.nodes[i].cpu))
		}
	}
	want.setScarce(l.Engine, &have)
	if l.prices.slot != want.slot && (l.prices.slot != before.slot || scarcer(&before.slot, &want.slot)) {
		t.Fatalf("places for groups are worth %v, want %v", l.prices.slot, want.slot)
	}
}

// Hosts that are all unlike, as they are in real clusters, cost no more than equal
// ones: no prices are made for any of them.
func TestUnlikeHosts(t *testing.T) {
	l := newLoad(1, eights(1, "A"), nil, nil)
	l.arrive(50, share(500), share(Whole))
	prices := l.prices
	for i := range 100 {
		l.AddNode(Machine{Model: "A", Devices: 8, DeviceMem: 80 << 10, CPU: 96_000 - Milli(i), Mem: 1 << 20})
	}
	if l.prices != prices || l.walk.former != nil {
		t.Error("another host of a known model changed the prices")
	}
}
