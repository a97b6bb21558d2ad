// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math"
	"math/bits"
	"math/rand"
	"testing"
)

func share(core Milli) Request { return Request{GPUs: 1, Core: core, MemShare: core} }

func eights(n int, model string) (out []Machine) {
	for range n {
		out = append(out, Machine{Model: model, Devices: 8, DeviceMem: 80 << 10})
	}
	return out
}

// arrive lets requests be learnt without room for them, and prices follow.
func (l *load) arrive(n int, requests ...Request) {
	for range n {
		for _, q := range requests {
			l.mix.add(l.class(q), l.total)
		}
	}
	l.due = 0
	l.Reprice()
}

func TestSharePrices(t *testing.T) {
	for _, tt := range []struct {
		name   string
		demand map[int]float64
		want   map[int]float64
	}{
		{"a share that halves a device", map[int]float64{50: 3}, map[int]float64{50: 1. / 2}},
		{"51 takes a device", map[int]float64{51: 1}, map[int]float64{51: 1}},
		{"what others strand is free", map[int]float64{81: 10, 19: 5}, map[int]float64{81: 1, 19: 0}},
		{"until there is more of it", map[int]float64{81: 1, 19: 10}, map[int]float64{81: 0.8, 19: 0.2}},
		{"thirds", map[int]float64{33: 1, 66: 2}, map[int]float64{33: 0, 66: 1}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var demand bySize
			for size, d := range tt.demand {
				demand[size] = d
			}
			got := sharePrices(&demand)
			for size, want := range tt.want {
				if math.Abs(got[size]-want) > 1e-6 {
					t.Errorf("%d costs %v devices, want %v", size, got[size], want)
				}
			}
		})
	}
}

// With nothing learnt yet pods are put together, not spread.
func TestBeforeAnythingArrived(t *testing.T) {
	l := newLoad(1, eights(4, "A"), nil, nil)
	for range 4 {
		l.place(share(500))
	}
	var used uint64
	for _, p := range l.running {
		if p.node != l.running[0].node {
			t.Errorf("halves are on nodes %d and %d", p.node, l.running[0].node)
		}
		used |= p.devices
	}
	if n := bits.OnesCount64(used); n != 2 {
		t.Errorf("four halves are on %d devices, want 2", n)
	}
}

// A gap that is worth a pod which does come is kept for it, although its
// node is the fuller one; what was learnt long ago is forgotten.
func TestLearnsFromArrivals(t *testing.T) {
	one := Machine{Model: "A", Devices: 1, DeviceMem: 80 << 10}
	l := newLoad(1, []Machine{one, one}, nil, nil)
	node := func(q Request) NodeID {
		id, _, ok := l.Scan(q, nil)
		if !ok {
			t.Fatalf("%+v does not fit", q)
		}
		return id
	}
	l.show(pod{share(530), 0, 1}, 1) // leaves 470
	l.show(pod{share(480), 1, 1}, 1) // leaves 520
	l.arrive(500, share(470), share(530))
	if got := node(share(30)); got != 1 {
		t.Errorf("with 470s about, 30 goes to node %d, not to 1 where it costs nothing", got)
	}
	l.arrive(60_000, share(Whole))
	if got := node(share(30)); got != 0 {
		t.Errorf("with 470s long gone, 30 goes to node %d, not to the fuller one", got)
	}
}

// A model that some pods insist on is kept for them.
func TestScarceModelIsKept(t *testing.T) {
	l := newLoad(1, append(eights(1, "A"), eights(4, "B")...), nil, nil)
	only := share(Whole)
	only.Models = "A"
	l.arrive(50, only, share(Whole), share(Whole), share(Whole), share(Whole))
	for range 32 {
		if l.place(share(Whole)); l.running[len(l.running)-1].node == 0 {
			t.Fatal("a pod that may run anywhere took a device that others insist on")
		}
	}
	if !l.place(share(Whole)) || l.running[len(l.running)-1].node != 0 {
		t.Error("the last room is refused to a pod that fits")
	}
}

// A place for a group that hardly ever comes, and would be missed then, is not
// broken up for a pod that fits elsewhere, though the node is the fuller one.
func TestPlacesForGroupsAreKept(t *testing.T) {
	four := Machine{Model: "A", Devices: 4, DeviceMem: 80 << 10}
	l := newLoad(1, append([]Machine{four}, eights(1, "A")...), nil, nil)
	whole, group := share(Whole), share(Whole)
	group.GPUs = 4
	l.show(pod{whole, 1, 1}, 1)
	l.arrive(1, group)
	l.arrive(60, whole)
	for range 3 {
		if l.place(whole); l.running[len(l.running)-1].node != 1 {
			t.Fatal("a pod for one device broke up one of the two places for groups")
		}
	}
}

// Where pods come and go, groups may be wanted at any time in any number, not only those
// that come until it is full: more places for them are worth keeping.
func TestMorePlacesAreKeptWherePodsComeAndGo(t *testing.T) {
	group := share(Whole)
	group.GPUs = 8
	l := newLoad(1, eights(100, "A"), []Request{share(Whole), group}, []int{24, 1})
	// worth of a place, when there are so many more than groups to be expected.
	worth := func(more float64) float64 {
		p := *l.prices
		part := l.mix.parts()[l.class(group)]
		p.setSlots(l.Engine, l.mix.parts(), &[maxGroups]float64{part/p.demand*float64(l.total)*(1-l.full()) + more})
		return p.slot[0]
	}
	for l.full() < 0.9 {
		l.place(l.arrival())
		l.due, l.again = 0, 0
		l.Reprice()
	}
	if _, n := l.turnover(); n != 0 {
		t.Errorf("nothing has left, and %v devices have changed hands", n)
	}
	if got := worth(10); got > notable {
		t.Errorf("while it fills up, a place too many is worth %v", got)
	}
	for range 20 * len(l.running) {
		l.steady(0.9)
	}
	if _, n := l.turnover(); n < 600 || n > 720 {
		t.Errorf("20 times as many have come, and %v of 720 devices have changed hands", n)
	}
	if got := worth(10); got < 20*notable {
		t.Errorf("when all have come and gone, a place more than are expected is worth %v", got)
	}
}

// Where pods come and go, a node on which one pod is in the way of a group is left to become
// a place for it, though that node is the fuller one; while it only fills up none is.
func TestAlmostAPlaceIsKeptWherePodsComeAndGo(t *testing.T) {
	small := Machine{Model: "A", Devices: 8, DeviceMem: 80 << 10, CPU: 96_000}
	large := small
	large.CPU *= 10
	for _, left := range []int{0, 200} {
		l := newLoad(1, []Machine{small, large}, nil, nil)
		whole, group := share(Whole), share(Whole)
		whole.CPU, group.CPU, group.GPUs = 6_000, 48_000, 8
		l.show(pod{whole, 0, 1}, 1)
		for d := range 4 {
			l.show(pod{whole, 1, 1 << d}, 1)
		}
		l.arrive(10, whole, whole, group)
		for range left {
			l.Learn(whole)
		}
		l.due, l.again = 0, 0
		l.Reprice()
		want := NodeID(0)
		if left > 0 {
			want = 1
		}
		if got, _, _ := l.Best(whole); got != want {
			t.Errorf("after %d have left, a pod for one device goes to node %d, want %d", left, got, want)
		}
	}
}

// Before anybody has insisted on a model, pods keep off the rare ones all the same.
func TestRareModelIsKeptFromTheFirstPodOn(t *testing.T) {
	l := newLoad(1, append(eights(1, "A"), eights(40, "B")...), nil, nil)
	l.Reprice()
	if l.place(share(Whole)); l.running[0].node == 0 {
		t.Error("the first pod of all, which may run anywhere, took the only node of its model")
	}
}

// Where CPU runs out, hosts with plenty are left to the pods that need much of it.
func TestCPUIsKeptForWhoNeedsIt(t *testing.T) {
	var hosts []Machine
	for range 4 {
		for _, cpu := range []Milli{24_000, 128_000} {
			hosts = append(hosts, Machine{Model: "A", Devices: 8, DeviceMem: 80 << 10, CPU: cpu})
		}
	}
	l := newLoad(1, hosts, nil, nil)
	light, heavy := share(Whole/2), share(Whole)
	light.CPU, heavy.CPU = 2_000, 20_000
	l.arrive(2_000, light, light, heavy)
	idle := 64 * Whole
	for range 32 {
		for _, q := range []Request{heavy, light, light} {
			if l.place(q) {
				idle -= q.Core
			}
		}
	}
	// Six of the heavy on each large host, the light on what is left, would leave 8.
	if idle > 12*Whole {
		t.Errorf("%d of 64 devices are idle, want 12 at most", idle/Whole)
	}
}

// Of the devices of a node the one that is left with least is taken, so the empty one last,
// whatever has arrived.
func TestEmptyDeviceIsOpenedLast(t *testing.T) {
	two := Machine{Model: "A", Devices: 2, DeviceMem: 80 << 10}
	for seed := range int64(20) {
		r := rand.New(rand.NewSource(seed))
		l := newLoad(seed, []Machine{two}, nil, nil)
		l.show(pod{share(500), 0, 1}, 1)
		l.arrive(1+r.Intn(200), share(Milli(10+r.Intn(90)*10)), share(Milli(10+r.Intn(90)*10)), share(700), share(Whole))
		if _, devices, _ := l.Best(share(300)); devices != 1 {
			t.Errorf("seed %d: 300 opens the empty device beside one that is half free", seed)
		}
	}
}
