// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"math"
	"slices"
	"time"

	"vernier.dev/vernier/api/advice"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/bench/colocate/sim"
	"vernier.dev/vernier/test/bench/usage"
)

// epoch is the trace's time 0. It lies so that the halves of a day are of one day.
var epoch = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// stage is a step of sharing, in addition to those before it.
type stage struct {
	name   string
	policy sim.Policy
	// slice is what a pod has, by the samples before it is placed.
	slice func(p usage.Pod, before []usage.Point) advice.Amount
}

// stages are all steps, for owners who ask for so much compute, 0 for each pod's peak.
func stages(core api.Percent) []stage {
	whole := func(usage.Pod, []usage.Point) advice.Amount {
		return advice.Amount{Core: api.WholeGPU, Mem: sim.DeviceMem}
	}
	requested := func(p usage.Pod, _ []usage.Point) advice.Amount { return exact(p, core) }
	advised := func(p usage.Pod, before []usage.Point) advice.Amount { return advised(exact(p, core), before) }
	return []stage{
		{"whole GPUs", sim.Policy{Whole: true}, whole},
		{"exact slices", sim.Policy{}, requested},
		{"advice", sim.Policy{}, advised},
		{"bursting", sim.Policy{Bursts: true}, advised},
		{"idle slices", sim.Policy{Bursts: true, Idle: true}, advised},
		{"lending", sim.Policy{Bursts: true, Idle: true, Lends: true}, advised},
	}
}

// exact is what an owner asks for who knows the pod's peaks: that of compute, unless it is given, and that of
// memory and a tenth more in whole GiB.
func exact(p usage.Pod, core api.Percent) advice.Amount {
	a := advice.Amount{Core: 1, Mem: 1 << 10}
	for _, s := range p.Points {
		a.Core = max(a.Core, api.Percent(math.Ceil(s.Duty)))
		a.Mem = max(a.Mem, (s.Mem*11/10+1023)/1024*1024)
	}
	return advice.Amount{Core: cmp.Or(core, a.Core), Mem: min(a.Mem, sim.DeviceMem)}
}

// advised is Vernier's advice by what was seen of a pod before, and the request without that.
func advised(request advice.Amount, before []usage.Point) advice.Amount {
	use := advice.Use{Pods: 1, Request: request}
	for _, s := range before {
		use.Observe(advice.Sample{At: epoch.Add(s.At), Lasted: usage.Interval, Core: s.Duty, Mem: s.Mem})
	}
	return advice.Recommend(&use, advice.Options{DeviceMem: sim.DeviceMem}).Amount
}

// halves are the pods before the middle of the trace and after it, with the slices of a stage, and for how many
// steps. All are placed again at the middle: from then on the advice holds, of which nothing is known before.
func halves(pods []usage.Pod, s stage) (lists [2][]sim.Pod, steps [2]int) {
	end := time.Duration(0)
	for _, p := range pods {
		end = max(end, p.Points[len(p.Points)-1].At)
	}
	middle := (end / 2).Truncate(usage.Interval)
	steps = [2]int{int(middle / usage.Interval), int((end-middle)/usage.Interval) + 1}
	for _, p := range pods {
		n, _ := slices.BinarySearchFunc(p.Points, middle, func(p usage.Point, at time.Duration) int { return cmp.Compare(p.At, at) })
		for half, points := range [2][]usage.Point{p.Points[:n], p.Points[n:]} {
			if len(points) == 0 {
				continue
			}
			before := p.Points[:half*n]
			made := sim.Pod{Slice: s.slice(p, before)}
			made.From, made.Samples = steadily(points, time.Duration(half)*middle)
			made.Know(before)
			lists[half] = append(lists[half], made)
		}
	}
	return lists, steps
}

// steadily is a sample for each step, from the first one on. What wasn't sampled is as it was.
func steadily(points []usage.Point, begin time.Duration) (from int, samples []usage.Point) {
	from = int((points[0].At - begin) / usage.Interval)
	for _, p := range points {
		for at := int((p.At - begin) / usage.Interval); from+len(samples) < at; {
			samples = append(samples, samples[len(samples)-1])
		}
		samples = append(samples, p)
	}
	return from, samples
}
