// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"container/heap"
	"iter"
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
	var running departures
	var arrived, refused float64
	for now, c := range coming(w, seed, load) {
		for running.until(now) {
			d := heap.Pop(&running).(departure)
			p.Release(d.class, d.node, d.devices)
		}
		node, devices, ok := p.Place(c.class)
		if ok {
			heap.Push(&running, departure{now + c.stays, c.class, node, devices})
		}
		if now >= settle {
			demand := float64(w.Classes[c.class].Demand())
			arrived += demand
			if !ok {
				refused += demand
			}
		}
	}
	if arrived == 0 {
		return 0 // so few are asked for that none came while it was watched
	}
	return refused / arrived
}

// Wanted lists the classes of the pods that would be running at some moments of
// the same churn, a mean lifetime apart, were none refused. As no policy knows how
// long a pod will stay, what can't be running then is, on average, what must be
// refused.
func Wanted(w *trace.Workload, seed int64, load float64) (moments [][]int) {
	var running departures
	next := float64(settle)
	for now, c := range coming(w, seed, load) {
		for running.until(now) {
			heap.Pop(&running)
		}
		heap.Push(&running, departure{at: now + c.stays, class: c.class})
		if now < next {
			continue
		}
		next++
		var classes []int
		for _, d := range running {
			classes = append(classes, d.class)
		}
		moments = append(moments, classes)
	}
	return moments
}

type comer struct {
	class int
	stays float64
}

// coming are the times and pods of a churn.
func coming(w *trace.Workload, seed int64, load float64) iter.Seq2[float64, comer] {
	r := rand.New(rand.NewSource(seed))
	mean := 0.0
	for _, class := range w.Pods {
		mean += float64(w.Classes[class].Demand()) / float64(len(w.Pods))
	}
	rate := load * float64(w.Capacity()) / mean
	return func(yield func(float64, comer) bool) {
		for now := r.ExpFloat64() / rate; now < settle+watch; now += r.ExpFloat64() / rate {
			if !yield(now, comer{w.Pods[r.Intn(len(w.Pods))], r.ExpFloat64()}) {
				return
			}
		}
	}
}

type departure struct {
	at          float64
	class, node int
	devices     uint64
}

// departures is a heap, the next first.
type departures []departure

// until tells whether the next departure is not after now.
func (d departures) until(now float64) bool { return len(d) > 0 && d[0].at <= now }

func (d departures) Len() int           { return len(d) }
func (d departures) Less(i, j int) bool { return d[i].at < d[j].at }
func (d departures) Swap(i, j int)      { d[i], d[j] = d[j], d[i] }
func (d *departures) Push(x any)        { *d = append(*d, x.(departure)) }
func (d *departures) Pop() any {
	last := (*d)[len(*d)-1]
	*d = (*d)[:len(*d)-1]
	return last
}
