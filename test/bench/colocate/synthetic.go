// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand/v2"
	"strconv"
	"time"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/bench/colocate/sim"
	"vernier.dev/vernier/test/bench/usage"
)

// duties are the published distributions of duty that synthetic pods have, in percent.
var duties = map[string]sim.Quantile{
	"genai":  {{0, 0}, {0.668, 0}, {0.9, 24.7}, {0.99, 78.6}, {1, 100}},
	"philly": sim.Philly,
}

var (
	// peaks are of the memory of the trace's pods, in MiB. A pod uses usualMem of its peak while it rests.
	peaks    = sim.Quantile{{0, 1 << 10}, {0.1, 21 << 10}, {0.5, 37 << 10}, {0.95, 46 << 10}, {1, 48 << 10}}
	usualMem = 0.6
)

// synthetic makes a hundred pods of a day, which are there all the time. A pod keeps a duty for four samples on
// average. The same seed gives the same pods; an unknown name gives none.
func synthetic(name string, seed uint64) (pods []usage.Pod) {
	duty := duties[name]
	if duty == nil {
		return nil
	}
	random := rand.New(rand.NewPCG(seed, 0))
	for i := range 100 {
		p, peak, now := usage.Pod{Name: strconv.Itoa(i)}, peaks.At(random.Float64()), 0.0
		for at := time.Duration(0); at < 24*time.Hour; at += usage.Interval {
			if at == 0 || random.IntN(4) == 0 {
				now = duty.At(random.Float64())
			}
			mem := peak
			if now == 0 {
				mem *= usualMem
			}
			p.Points = append(p.Points, usage.Point{At: at, Duty: now, Mem: api.MiB(mem)})
		}
		pods = append(pods, p)
	}
	return pods
}
