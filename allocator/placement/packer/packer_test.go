// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math/rand"
	"testing"
)

// machines are some of several models and sizes.
func machines(r *rand.Rand, n int) (out []Machine) {
	kinds := []Machine{
		{Model: "A", Devices: 8, DeviceMem: 80 << 10, CPU: 96_000, Mem: 768 << 10},
		{Model: "A", Devices: 4, DeviceMem: 80 << 10, CPU: 24_000, Mem: 128 << 10},
		{Model: "B", Devices: 2, DeviceMem: 16 << 10, CPU: 104_000, Mem: 512 << 10},
		{Model: "C", Devices: 1, DeviceMem: 24_001, CPU: 8_000, Mem: 32 << 10},
	}
	for range n {
		out = append(out, kinds[r.Intn(len(kinds))])
	}
	return out
}

// diverse are classes with all that a request can say.
func diverse(r *rand.Rand, n int) ([]Request, []int) {
	classes, weights := requests(r, n)
	for i := range classes {
		c := &classes[i]
		switch {
		case c.GPUs == 0:
		case r.Intn(3) == 0:
			c.Models = []string{"A", "B", "C", "A|C", "D"}[r.Intn(5)]
		case r.Intn(3) == 0:
			c.MemShare, c.Mem = 0, MiB(r.Intn(20<<10))
		case r.Intn(3) == 0:
			c.GPUs = 1 + r.Intn(4)
		}
	}
	return classes, weights
}

// check asserts Invariant 1: what is free is never less than nothing or more than
// all, and what is taken is what the running pods asked for.
func (l *load) check(t *testing.T) {
	t.Helper()
	type sum struct {
		Free
		cpu Milli
		mem MiB
	}
	want := map[[2]int]sum{}
	for _, p := range l.running {
		at := want[[2]int{int(p.node), -1}]
		at.cpu += p.CPU
		at.mem += p.HostMem
		want[[2]int{int(p.node), -1}] = at
		devices := 0
		for d := range MaxDevices {
			if p.devices>>d&1 == 1 {
				devices++
				at := want[[2]int{int(p.node), d}]
				at.Core += p.Core
				at.Mem += p.memOn(l.kinds[l.nodes[p.node].kind].DeviceMem)
				want[[2]int{int(p.node), d}] = at
			}
		}
		if devices != p.GPUs {
			t.Fatalf("%+v has %d devices", p.Request, devices)
		}
		if f := l.fleets[l.kinds[l.nodes[p.node].kind].fleet]; p.GPUs > 0 && p.Models != "" && !allowsOne(p.Models, f.model) {
			t.Fatalf("%+v is on %s", p.Request, f.model)
		}
	}
	for i := range l.nodes {
		n, k := &l.nodes[i], &l.kinds[l.nodes[i].kind]
		host := want[[2]int{i, -1}]
		if n.cpu < 0 || n.mem < 0 || n.cpu != k.CPU-host.cpu || n.mem != k.Mem-host.mem {
			t.Fatalf("Invariant 1: node %d has %d CPU and %d MiB free of %+v, taken %+v", i, n.cpu, n.mem, k, host)
		}
		for d := range k.Devices {
			f, taken := l.free[int(n.first)+d], want[[2]int{i, d}]
			if f.Core < 0 || f.Mem < 0 || f.Core != Whole-taken.Core || f.Mem != k.DeviceMem-taken.Mem {
				t.Fatalf("Invariant 1: device %d of node %d has %+v free, taken %+v", d, i, f, taken)
			}
		}
	}
}

// The index chooses what a scan of all nodes chooses, whatever happened before:
// pods that come and go, nodes and classes that are added, prices that change.
func TestPlaceAgreesWithScan(t *testing.T) {
	for seed := range int64(12) {
		r := rand.New(rand.NewSource(seed))
		classes, weights := diverse(r, 60)
		l := newLoad(seed, machines(r, 1+r.Intn(60)), classes, weights)
		placed, refused := 0, 0
		for step := range 1500 {
			switch k := r.Intn(100); {
			case k < 40 && len(l.running) > 0 && step > 300:
				l.leave()
				continue
			case k == 99:
				l.AddNode(machines(r, 1)[0])
				continue
			case k > 90:
				l.Reprice()
			}
			q := l.arrival()
			want, devices, fits := l.Scan(q, nil)
			if id, d, ok := l.Best(q); ok != fits || id != want || d != devices {
				t.Fatalf("seed %d, step %d: Best is node %d devices %b, the scan says %d %b", seed, step, id, d, want, devices)
			}
			if !l.place(q) {
				refused++
				if fits {
					t.Fatalf("seed %d, step %d: %+v fits on node %d and was refused", seed, step, q, want)
				}
				continue
			}
			placed++
			got := l.running[len(l.running)-1]
			if !fits || got.node != want || got.devices != devices {
				t.Fatalf("seed %d, step %d: %+v went to node %d devices %b, the scan says %d %b", seed, step, q, got.node, got.devices, want, devices)
			}
		}
		l.check(t)
		if placed < 300 || refused < 10 {
			t.Errorf("seed %d: %d placed and %d refused: the test no longer looks at both", seed, placed, refused)
		}
		for len(l.running) > 0 {
			l.leave()
		}
		l.check(t)
	}
}

// More classes than are kept: the least asked for make room.
func TestClassesAreBounded(t *testing.T) {
	l := newLoad(1, []Machine{{Model: "A", Devices: 8, DeviceMem: 80 << 10, CPU: 1 << 40, Mem: 1 << 40}}, nil, nil)
	for i := range maxClasses + 200 {
		q := Request{GPUs: 1, Core: 10, Mem: 1, CPU: Milli(i)}
		want, devices, fits := l.Scan(q, nil)
		if ok := l.place(q); ok != fits {
			t.Fatalf("class %d: placed %v, the scan says %v", i, ok, fits)
		} else if p := l.running[len(l.running)-1]; ok && (p.node != want || p.devices != devices) {
			t.Fatalf("class %d: node %d devices %b, the scan says %d %b", i, p.node, p.devices, want, devices)
		}
	}
	if len(l.classes) != maxClasses || len(l.byRequest) != maxClasses {
		t.Errorf("%d classes, %d requests known, want %d", len(l.classes), len(l.byRequest), maxClasses)
	}
	l.check(t)
}

func TestNothingIsAllocated(t *testing.T) {
	classes, weights := requests(rand.New(rand.NewSource(1)), 151)
	l := newLoad(1, machines(rand.New(rand.NewSource(2)), 200), classes, weights)
	l.fill(0.9)
	if n := testing.AllocsPerRun(2000, func() {
		q := l.arrival()
		l.Learn(q)
		if id, devices, ok := l.Best(q); ok {
			p := pod{q, id, devices}
			l.show(p, 1)
			l.show(p, -1)
		}
	}); n != 0 {
		t.Errorf("a decision and its release allocate %v times", n)
	}
}

// Nor does what the allocator does: the best node of the ranking, and the node as its
// ledger shows it afterwards.
func TestRankedAndSetAllocateNothing(t *testing.T) {
	classes, weights := requests(rand.New(rand.NewSource(1)), 151)
	l := newLoad(1, machines(rand.New(rand.NewSource(2)), 200), classes, weights)
	l.fill(0.9)
	free := make([]Free, MaxDevices)
	if n := testing.AllocsPerRun(2000, func() {
		for id := range l.Ranked(l.arrival()) {
			cpu, mem, now := l.Free(id)
			n := copy(free, now)
			free[0].Core = Whole - free[0].Core
			l.Set(id, cpu, mem, free[:n])
			return
		}
	}); n != 0 {
		t.Errorf("the first of the ranking and a change allocate %v times", n)
	}
}

// The same calls give the same answers.
func TestPlaceIsDeterministic(t *testing.T) {
	play := func() []pod {
		r := rand.New(rand.NewSource(3))
		classes, weights := diverse(r, 80)
		l := newLoad(3, machines(r, 40), classes, weights)
		l.fill(0.8)
		return l.running
	}
	first, second := play(), play()
	for i := range first {
		if first[i] != second[i] {
			t.Fatalf("pod %d: %+v, then %+v", i, first[i], second[i])
		}
	}
}

// Ranked yields what Best would, were the nodes before it gone.
func TestRanked(t *testing.T) {
	for seed := range int64(6) {
		r := rand.New(rand.NewSource(seed))
		classes, weights := diverse(r, 40)
		l := newLoad(seed, machines(r, 40), classes, weights)
		l.fill(0.6)
		for range 40 {
			q := l.arrival()
			var want []pod
			for id, devices := range l.Ranked(q) {
				want = append(want, pod{q, id, devices})
			}
			saved := append([]node(nil), l.nodes...)
			for i, p := range want {
				id, devices, ok := l.Best(q)
				if !ok || id != p.node || devices != p.devices {
					t.Fatalf("seed %d: number %d of %+v is node %d devices %b, Best says %d %b", seed, i, q, p.node, p.devices, id, devices)
				}
				l.Set(id, -1, -1, nil)
			}
			if id, _, ok := l.Best(q); ok {
				t.Fatalf("seed %d: Ranked leaves out node %d", seed, id)
			}
			for id, n := range saved {
				l.Set(NodeID(id), n.cpu, n.mem, nil)
			}
		}
	}
}

// A node whose owner says that nothing is free takes nothing, and comes back.
func TestSet(t *testing.T) {
	l := newLoad(1, eights(1, "A"), nil, nil)
	none, all := make([]Free, 8), make([]Free, 8)
	for d := range all {
		all[d] = Free{Whole, 80 << 10}
	}
	for _, promised := range []Milli{0, -1 << 30} {
		l.Set(0, promised, MiB(promised), none)
		if _, _, ok := l.Best(share(10)); ok {
			t.Errorf("a node with nothing free, and %d CPU, takes a pod", promised)
		}
	}
	l.Set(0, 0, 0, all)
	if _, _, ok := l.Best(share(Whole)); !ok {
		t.Error("a node that is free again takes no pod")
	}
}
