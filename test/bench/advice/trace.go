// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"slices"
	"time"

	"vernier.dev/vernier/test/bench/usage"
)

// pod is the samples of a pod, in the order of time, before the middle of the trace and after it.
type pod struct {
	name          string
	first, second []usage.Point
}

// halve divides each pod's samples at the middle of the trace.
func halve(all []usage.Pod) (pods []*pod) {
	end := time.Duration(0)
	for _, p := range all {
		end = max(end, p.Points[len(p.Points)-1].At)
	}
	for _, p := range all {
		middle, _ := slices.BinarySearchFunc(p.Points, end/2, func(p usage.Point, at time.Duration) int { return cmp.Compare(p.At, at) })
		pods = append(pods, &pod{p.Name, p.Points[:middle], p.Points[middle:]})
	}
	return pods
}
