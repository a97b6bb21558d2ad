// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math"
	"slices"
	"time"

	"vernier.dev/vernier/api/advice"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/bench/usage"
)

// device is the GPU that each pod of the trace has to itself: all of its compute, and 80 GiB.
var device = advice.Amount{Core: api.WholeGPU, Mem: 80 << 10}

// rule makes an advice of the first halves of the pods of one workload.
type rule struct {
	name   string
	advise func(pods []*pod, request advice.Amount) advice.Amount
	// after is the memory once a pod has needed more than it had. Nil changes nothing.
	after func(need api.MiB) api.MiB
}

var rules = []rule{
	{name: "the request", advise: func(_ []*pod, request advice.Amount) advice.Amount { return request }},
	{name: "Vernier", advise: ours},
	{name: "p98 of memory, p95 of compute, + 15 %", advise: func(pods []*pod, _ advice.Amount) advice.Amount {
		return percentiles(0.95, points(pods).duties(), 0.98, points(pods).mems())
	}},
	{name: "p90 of compute, p90 of pods' peaks, + 15 %", advise: func(pods []*pod, _ advice.Amount) advice.Amount {
		var peaks []float64
		for _, p := range pods {
			if len(p.first) > 0 {
				peaks = append(peaks, float64(peak(p.first)))
			}
		}
		return percentiles(0.9, points(pods).duties(), 0.9, peaks)
	}, after: func(need api.MiB) api.MiB { return max(need*12/10, need+100) }},
}

// epoch is the trace's time 0. It lies so that the halves of a day are of one day.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// ours is the advice of Vernier, of the uses of pods, merged as the allocator does.
func ours(pods []*pod, request advice.Amount) advice.Amount {
	var all advice.Use
	for _, p := range pods {
		use := advice.Use{Pods: 1, Request: request}
		for _, s := range p.first {
			use.Observe(advice.Sample{At: epoch.Add(s.At), Lasted: usage.Interval, Core: s.Duty, Mem: s.Mem})
		}
		if use.Samples > 0 {
			all.Merge(&use)
		}
	}
	return advice.Recommend(&all, advice.Options{DeviceMem: device.Mem}).Amount
}

// percentiles are quantiles of the samples, and 15 % more, at most the device.
func percentiles(coreQ float64, cores []float64, memQ float64, mems []float64) advice.Amount {
	const margin = 1.15
	return advice.Amount{
		Core: api.Percent(math.Ceil(min(margin*quantile(cores, coreQ), float64(device.Core)))),
		Mem:  api.MiB(math.Ceil(min(margin*quantile(mems, memQ), float64(device.Mem)))),
	}
}

// quantile is the value with the part q of all at or below it. It sorts them.
func quantile(values []float64, q float64) float64 {
	slices.Sort(values)
	return values[max(0, int(math.Ceil(q*float64(len(values))))-1)]
}

type pointList []usage.Point

// points are all samples of the first halves.
func points(pods []*pod) (all pointList) {
	for _, p := range pods {
		all = append(all, p.first...)
	}
	return all
}

func (l pointList) duties() (all []float64) {
	for _, p := range l {
		all = append(all, p.Duty)
	}
	return all
}

func (l pointList) mems() (all []float64) {
	for _, p := range l {
		all = append(all, float64(p.Mem))
	}
	return all
}

func peak(l []usage.Point) (most api.MiB) {
	for _, p := range l {
		most = max(most, p.Mem)
	}
	return most
}
