// SPDX-License-Identifier: Apache-2.0

// Package replay plays arrivals to a placement policy and measures how much of
// the GPUs it manages to give out.
package replay

import (
	"time"

	"vernier.dev/vernier/test/bench/placement/trace"
)

// Placer is a policy with its cluster.
type Placer interface {
	// Place books a pod of the class; false when no node has the room. Devices
	// are a set of bits.
	Place(class int) (node int, devices uint64, ok bool)
	// Release gives back what Place booked.
	Release(class, node int, devices uint64)
}

// Marks are the points, as parts of the cluster's capacity that has arrived, at
// which the allocated part is noted.
var Marks = []float64{0.90, 0.95, 1.00, Most}

// Most is the part of the capacity that arrives in all.
const Most = 1.30

// Result is one run.
type Result struct {
	// Allocated part of all GPUs at each of Marks.
	Allocated []float64
	// Decision is the mean time of one, pods that were refused included.
	Decision time.Duration
	// Arrived and Failed are the GPU demand by kind of class, in devices.
	Arrived, Failed map[string]float64
}

// Fill places the arrivals in order. Nothing departs and nothing is tried again.
func Fill(w *trace.Workload, p Placer, arrivals []int) Result {
	r := Result{Arrived: map[string]float64{}, Failed: map[string]float64{}}
	capacity := float64(w.Capacity())
	var arrived, allocated float64
	var spent time.Duration
	for _, class := range arrivals {
		c := &w.Classes[class]
		start := time.Now()
		_, _, ok := p.Place(class)
		spent += time.Since(start)
		demand := float64(c.Demand())
		arrived += demand
		r.Arrived[c.Kind()] += demand / trace.Whole
		if ok {
			allocated += demand
		} else {
			r.Failed[c.Kind()] += demand / trace.Whole
		}
		for len(r.Allocated) < len(Marks) && arrived >= Marks[len(r.Allocated)]*capacity {
			r.Allocated = append(r.Allocated, allocated/capacity)
		}
	}
	r.Decision = spent / time.Duration(len(arrivals))
	return r
}
