// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"container/heap"
	"math/rand"

	"vernier.dev/vernier/test/bench/placement/trace"
)

// A churn runs for settle mean lifetimes until it is steady, and is then measured
// for another watch of them.
const settle, watch = 3, 7

// Churn lets pods come at random (Poisson) and stay for a random (exponential)
// while, so that load times the cluster's GPUs are asked for on average. It
// returns the part of the GPU demand that was refused once things were steady.
func Churn(w *trace.Workload, p Placer, seed int64, load float64) (rejected float64) {
	r := rand.New(rand.NewSource(seed))
	mean := 0.0
	for _, class := range w.Pods {
		mean += float64(w.Classes[class].Demand()) / float64(len(w.Pods))
	}
	rate := load * float64(w.Capacity()) / mean
	var running departures
	var arrived, refused float64
	for now := r.ExpFloat64() / rate; now < settle+watch; now += r.ExpFloat64() / rate {
		class, stays := w.Pods[r.Intn(len(w.Pods))], r.ExpFloat64()
		for len(running) > 0 && running[0].at <= now {
			d := heap.Pop(&running).(departure)
			p.Release(d.class, d.node, d.devices)
		}
		node, devices, ok := p.Place(class)
		if ok {
			heap.Push(&running, departure{now + stays, class, node, devices})
		}
		if now >= settle {
			demand := float64(w.Classes[class].Demand())
			arrived += demand
			if !ok {
				refused += demand
			}
		}
	}
	return refused / arrived
}

type departure struct {
	at          float64
	class, node int
	devices     uint64
}

// departures is a heap, the next first.
type departures []departure

func (d departures) Len() int           { return len(d) }
func (d departures) Less(i, j int) bool { return d[i].at < d[j].at }
func (d departures) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *departures) Push(x any)        { *d = append(*d, x.(departure)) }
func (d *departures) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
