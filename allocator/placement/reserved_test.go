// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"math/rand"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
)

// mixedNode has devices of all kinds, some with slices on them.
func mixedNode(r *rand.Rand) *Node {
	n := &Node{Name: "n"}
	for i := range int32(1 + r.Intn(3)) {
		var d Device
		switch r.Intn(3) {
		case 0:
			d = migDev(i)
		case 1:
			d = mpsDev(i, false)
		default:
			d = dev(i, v1alpha1.WholeGPU, 100)
		}
		n.Devices = append(n.Devices, d)
	}
	for range r.Intn(3) {
		if plan, ok := Fit(mixedDemand(r, n), n); ok {
			n = n.Without(&plan)
		}
	}
	return n
}

// mixedDemand asks for slices that some of the devices may take.
func mixedDemand(r *rand.Rand, n *Node) *Demand {
	d := &Demand{Policy: v1alpha1.PolicyPack}
	mode := []v1alpha1.Mode{v1alpha1.ModeAuto, v1alpha1.ModeLimiter, v1alpha1.ModeMIG, v1alpha1.ModeMPS}[r.Intn(4)]
	for i := range 1 + r.Intn(3) {
		c := Container{Name: string(rune('p' + i)), Kind: Kind(r.Intn(3)), Mode: mode}
		c.Share = v1alpha1.Share{GPUs: 1, Core: v1alpha1.Percent(r.Intn(50)), MemPercent: v1alpha1.Percent(1 + r.Intn(40))}
		d.Containers = append(d.Containers, c)
	}
	if r.Intn(3) == 0 {
		d.UUIDs, _ = v1alpha1.ParseAllowList(n.Devices[r.Intn(len(n.Devices))].UUID)
	}
	return d
}

// sound reports whether the plans can be made on the node one beside the other: it is worked out
// from all of them together.
func sound(n *Node, plans ...Plan) bool {
	for i := range n.Devices {
		d := &n.Devices[i]
		var core v1alpha1.Percent
		var mem v1alpha1.MiB
		var grants []Grant
		modes := map[v1alpha1.Mode]bool{}
		for _, p := range plans {
			for _, g := range p.Grants {
				if g.UUID == d.UUID {
					grants = append(grants, g)
					core, mem = core+g.Core-g.ReuseCore, mem+g.Mem-g.ReuseMem
					modes[g.Mode] = true
				}
			}
		}
		slots := d.Slots
		if modes[v1alpha1.ModeMPS] && !d.MPSOnly {
			slots -= v1alpha1.MaxSlicesPerDevice - v1alpha1.MaxMPSSlices
		}
		if len(grants) == 0 {
			continue
		}
		if core > d.FreeCore || mem > d.FreeMem || len(grants) > slots || modes[v1alpha1.ModeMPS] && (!d.MPS || len(modes) > 1) || d.MPSOnly && !modes[v1alpha1.ModeMPS] {
			return false
		}
		cut := d.Cut
		for _, g := range grants {
			if (cut != nil) != (g.Mode == v1alpha1.ModeMIG) || cut != nil && !cut.free(g.MIG) {
				return false
			}
			if cut != nil {
				cut = cut.with(g.MIG)
			}
		}
	}
	return true
}

// A plan holds on the node that it was made on, and beside others if and only if all can be made.
func TestHolds(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	var holds, not int
	for range 20_000 {
		n := mixedNode(r)
		first, ok := Fit(mixedDemand(r, n), n)
		if !ok {
			continue
		}
		if !n.Holds(&first) || !sound(n, first) {
			t.Fatalf("%s does not hold on %+v, where it was found", short(first), n)
		}
		second, ok := Fit(mixedDemand(r, n), n)
		if !ok {
			continue
		}
		want := sound(n, first, second)
		if got := n.Without(&first).Holds(&second); got != want {
			t.Fatalf("%s beside %s on %+v: %v, want %v", short(second), short(first), n, got, want)
		}
		if want {
			holds++
		} else {
			not++
		}
		elsewhere := Plan{Grants: slices.Clone(first.Grants)}
		if elsewhere.Grants[0].UUID = "GPU-none"; n.Holds(&elsewhere) {
			t.Fatal("a plan holds on a device that is not there")
		}
	}
	if holds < 1000 || not < 1000 {
		t.Errorf("%d hold and %d do not: the test no longer looks at both", holds, not)
	}
}

// leftBy is what slices of a plan that leave make free.
func leftBy(reserved []Reserved, plan *Plan) []Reserved {
	for _, g := range plan.Grants {
		at := slices.IndexFunc(reserved, func(r Reserved) bool { return r.UUID == g.UUID })
		if at < 0 {
			continue // nothing is promised there
		}
		reserved[at].Leaving = reserved[at].Leaving.Plus(g.Amount())
	}
	return reserved
}

func promised(plans ...Plan) (reserved []Reserved) {
	for _, p := range plans {
		for _, g := range p.Grants {
			at := slices.IndexFunc(reserved, func(r Reserved) bool { return r.UUID == g.UUID })
			if at < 0 {
				at = len(reserved)
				reserved = append(reserved, Reserved{UUID: g.UUID})
			}
			reserved[at].Grants = append(reserved[at].Grants, g)
		}
	}
	return reserved
}

// A pod that takes what is seen of a node on which room is promised fits there now, and leaves what is
// promised once those have left that are to.
func TestHideKeepsPromises(t *testing.T) {
	r := rand.New(rand.NewSource(4))
	fits, hidden := 0, 0
	for range 20_000 {
		after := mixedNode(r)
		leaves, ok := Fit(mixedDemand(r, after), after)
		if !ok {
			continue
		}
		now := after.Without(&leaves)
		promise, ok := Fit(mixedDemand(r, after), after)
		if !ok {
			continue
		}
		seen := now.Hide(leftBy(promised(promise), &leaves))
		other := mixedDemand(r, after)
		plan, ok := Fit(other, seen)
		if !ok {
			if Fits(other, now) {
				hidden++
			}
			continue
		}
		if fits++; !now.Holds(&plan) {
			t.Fatalf("%s does not hold on %+v, where it is seen as %+v", short(plan), now, seen)
		}
		if !after.Without(&plan).Holds(&promise) {
			t.Fatalf("%s takes what is promised, %s, on %+v without %s, seen as %+v", short(plan), short(promise), after, short(leaves), seen)
		}
	}
	if fits < 1000 || hidden < 300 {
		t.Errorf("%d others fitted, %d did not: the test no longer looks at both", fits, hidden)
	}
}

// The formula, for core, memory and slots: min(free, max(0, free + leaving - reserved)).
// Why a demand does not fit counts what is reserved as free, and says that it is for others.
func TestExplain_SaysWhatIsReserved(t *testing.T) {
	n := node("n", dev(0, 100, gib80), dev(1, 20, gib80)).Hide(promised(Plan{Grants: []Grant{{UUID: "GPU-0", Core: 80, Mem: 40960}}}))
	want := "container x needs 50 % compute and 1,000 MiB on one GPU; nearest: n GPU 0 has 100 % and 81,920 MiB free, of which 80 % and 40,960 MiB are reserved for others"
	if got := Explain(demand(ctr("x", App, 1, 50, 1000)), []*Node{n}).String(); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	together := demand(ctr("x", App, 1, 20, 1000), ctr("y", App, 1, 20, 1000), ctr("z", App, 1, 20, 1000))
	want = "nearest: n has 120 % and 163,840 MiB free, of which 80 % and 40,960 MiB are reserved for others on its GPUs together"
	if got := Explain(together, []*Node{n}).String(); !strings.HasSuffix(got, want) {
		t.Errorf("%s\nwant %s", got, want)
	}
}

func TestHide(t *testing.T) {
	d := dev(0, 40, 300)
	d.Mem, d.Slots = 1000, 5
	grant := func(core v1alpha1.Percent, mem v1alpha1.MiB) Grant {
		return Grant{UUID: d.UUID, Core: core, Mem: mem, Mode: v1alpha1.ModeLimiter}
	}
	for name, tt := range map[string]struct {
		reserved Reserved
		core     v1alpha1.Percent
		mem      v1alpha1.MiB
		slots    int
	}{
		"nobody leaves":                {Reserved{Grants: []Grant{grant(10, 100)}}, 30, 200, 4},
		"more than there is":           {Reserved{Grants: []Grant{grant(50, 400)}}, 0, 0, 4},
		"two are promised":             {Reserved{Grants: []Grant{grant(10, 100), grant(20, 50)}}, 10, 150, 3},
		"as much leaves":               {Reserved{Grants: []Grant{grant(50, 400)}, Leaving: Amount{50, 400, 1}}, 40, 300, 5},
		"more leaves than is promised": {Reserved{Grants: []Grant{grant(50, 400)}, Leaving: Amount{60, 600, 3}}, 40, 300, 5},
		"less leaves":                  {Reserved{Grants: []Grant{grant(50, 400)}, Leaving: Amount{30, 200, 1}}, 20, 100, 5},
		"of one thing less":            {Reserved{Grants: []Grant{grant(50, 100)}, Leaving: Amount{0, 100, 1}}, 0, 300, 5},
		"a part is reused":             {Reserved{Grants: []Grant{grant(10, 100), {UUID: d.UUID, Core: 30, Mem: 200, ReuseCore: 10, ReuseMem: 100, Mode: v1alpha1.ModeLimiter}}}, 10, 100, 3},
		"elsewhere":                    {Reserved{UUID: "GPU-none", Grants: []Grant{grant(10, 100)}}, 40, 300, 5},
	} {
		if tt.reserved.UUID == "" {
			tt.reserved.UUID = d.UUID
		}
		n := node("n", d)
		if got := n.Hide([]Reserved{tt.reserved}).Devices[0]; got.FreeCore != tt.core || got.FreeMem != tt.mem || got.Slots != tt.slots {
			t.Errorf("%s: %d %%, %d MiB, %d slots, want %d, %d, %d", name, got.FreeCore, got.FreeMem, got.Slots, tt.core, tt.mem, tt.slots)
		}
		if n.Devices[0] != d {
			t.Errorf("%s: the node itself has changed", name)
		}
	}
}

// A promised place is taken, also while the one who leaves is on it, and counts once.
func TestHidePlaces(t *testing.T) {
	one := demand(mode(v1alpha1.ModeMIG, ctr("main", App, 1, 10, 10)))
	n := node("n", migDev(0))
	var plans []Plan
	for range 6 {
		plan, ok := Fit(one, n)
		if !ok {
			t.Fatal("there is room for seven")
		}
		plans, n = append(plans, plan), n.Without(&plan)
	}
	// What the last one is on is promised, and one place is free.
	seen := n.Hide(leftBy(promised(plans[5]), &plans[5]))
	free, _ := Fit(one, n)
	if last, ok := Fit(one, seen); !ok || last.Grants[0].MIG != free.Grants[0].MIG {
		t.Errorf("the place that is free is not seen: %+v, want %+v", last.Grants, free.Grants)
	}
	if _, ok := Fit(one, n.Hide(promised(free))); ok {
		t.Error("the place that is promised is seen")
	}
	if _, ok := Fit(one, n); !ok {
		t.Error("the node itself has changed")
	}
}

// What is promised in mode mps is on a device that takes nothing else, and the other way round.
func TestHideModes(t *testing.T) {
	mps, limiter := demand(mode(v1alpha1.ModeMPS, ctr("main", App, 1, 10, 10))), demand(mode(v1alpha1.ModeLimiter, ctr("main", App, 1, 10, 10)))
	for name, tt := range map[string]struct{ promise, like, other *Demand }{"mps": {mps, mps, limiter}, "limiter": {limiter, limiter, mps}} {
		n := node("n", mpsDev(0, false))
		plan, _ := Fit(tt.promise, n)
		seen := n.Hide(promised(plan))
		if Fits(tt.other, seen) || !Fits(tt.like, seen) {
			t.Errorf("%s: seen as %+v", name, seen.Devices[0])
		}
		full := node("n", mpsDev(0, false))
		for range v1alpha1.MaxMPSSlices - 1 {
			plan, _ := Fit(demand(mode(v1alpha1.ModeMPS, ctr("main", App, 1, 1, 1))), full)
			full = full.Without(&plan)
		}
		plan, ok := Fit(mps, full)
		if !ok || Fits(mps, full.Hide(promised(plan))) {
			t.Error("the last slot of an MPS server is promised and seen")
		}
	}
}
