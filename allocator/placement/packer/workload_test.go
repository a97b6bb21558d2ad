// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math/rand"
	"strings"
)

// allowsOne reads Models as names between bars.
func allowsOne(models, model string) bool {
	return strings.Contains("|"+models+"|", "|"+model+"|")
}

// requests makes as many classes as the public trace has, of the same kind: whole
// devices above all, shares of a few sizes, some nodes full of devices, each with
// CPU and memory of the host in several amounts.
func requests(r *rand.Rand, n int) (classes []Request, weights []int) {
	sizes := []Milli{50, 110, 160, 220, 230, 320, 370, 460, 470, 550, 590, 650, 810}
	seen := map[Request]bool{}
	for len(classes) < n {
		q := Request{GPUs: 1, Core: Whole, CPU: Milli(1+r.Intn(12)) * 1000, HostMem: MiB(1+r.Intn(16)) * 2048}
		weight := 1 + r.Intn(100)
		switch k := r.Intn(20); {
		case k < 2:
			q.GPUs, weight = 0, weight/2+1
		case k < 3:
			q.GPUs, weight = 2<<r.Intn(3), 1+weight/20
			q.CPU, q.HostMem = q.CPU*Milli(q.GPUs)/2, q.HostMem*MiB(q.GPUs)/2
		case k < 13:
			q.Core = sizes[r.Intn(len(sizes))]
		}
		if q.GPUs == 0 {
			q.Core = 0
		}
		q.MemShare = q.Core
		if !seen[q] {
			seen[q] = true
			classes, weights = append(classes, q), append(weights, weight)
		}
	}
	return classes, weights
}

// load is a cluster with pods that come and go.
type load struct {
	*Engine
	r       *rand.Rand
	draw    []Request
	running []pod
	// left is room for what is free of a node.
	left [MaxDevices]Free
}

type pod struct {
	Request
	node    NodeID
	devices uint64
}

func newLoad(seed int64, machines []Machine, classes []Request, weights []int) *load {
	l := &load{Engine: New(allowsOne), r: rand.New(rand.NewSource(seed))}
	for i, c := range classes {
		for range weights[i] {
			l.draw = append(l.draw, c)
		}
	}
	for _, m := range machines {
		l.AddNode(m)
	}
	return l
}

func (l *load) arrival() Request { return l.draw[l.r.Intn(len(l.draw))] }

// place learns the request, and puts the pod on the best node if there is room.
func (l *load) place(q Request) bool {
	l.Learn(q)
	id, devices, ok := l.Best(q)
	if ok {
		p := pod{q, id, devices}
		l.show(p, 1)
		l.running = append(l.running, p)
	}
	return ok
}

// show sets the pod's node to what is free with the pod, or with sign -1 without it.
func (l *load) show(p pod, sign int64) {
	cpu, mem, free := l.freeWith(p, sign)
	l.Set(p.node, cpu, mem, free)
}

// freeWith is what is free of the pod's node with the pod, or with sign -1 without it. The
// devices are good until the next call.
func (l *load) freeWith(p pod, sign int64) (cpu Milli, mem MiB, free []Free) {
	cpu, mem, now := l.Free(p.node)
	free = l.left[:copy(l.left[:], now)]
	need := p.memOn(l.kinds[l.nodes[p.node].kind].DeviceMem)
	for d := range free {
		if p.devices>>d&1 == 1 {
			free[d].Core -= Milli(sign) * p.Core
			free[d].Mem -= MiB(sign) * need
		}
	}
	return cpu - Milli(sign)*p.CPU, mem - MiB(sign)*p.HostMem, free
}

// leave lets a random pod go.
func (l *load) leave() {
	i := l.r.Intn(len(l.running))
	p := l.running[i]
	l.running[i] = l.running[len(l.running)-1]
	l.running = l.running[:len(l.running)-1]
	l.show(p, -1)
}

// full is the part of the devices that is taken.
func (l *load) full() float64 {
	free := 0
	for _, f := range l.fleets {
		free += f.free
	}
	return 1 - float64(free)/float64(l.total*steps)
}

// fill places pods until the cluster is as full as that, and then lets as many go
// and come as there are, so that it looks like one that has run for a while.
func (l *load) fill(to float64) {
	for l.full() < to {
		l.Reprice()
		l.place(l.arrival())
	}
	for range len(l.running) {
		l.steady(to)
	}
}

// steady lets one pod come, after others went to keep the cluster as full as it is.
func (l *load) steady(at float64) {
	for l.full() > at {
		l.leave()
	}
	l.Reprice()
	l.place(l.arrival())
}
