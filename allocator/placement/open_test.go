// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
)

// Of the devices of a node, those of which nothing is granted are opened last.
func TestFit_OpensEmptyDevicesLast(t *testing.T) {
	half := dev(0, 50, gib80-28393) // of the issue: GPU 0 has 28,393 MiB granted
	pair := func(a, b v1alpha1.Percent) *Demand {
		return demand(ctr("x", App, 1, a, gib80/100*v1alpha1.MiB(a)), ctr("y", App, 1, b, gib80/100*v1alpha1.MiB(b)))
	}
	small, large := dev(0, 100, 16384), dev(1, 90, 60000)
	small.Mem, small.Model = 16384, "T4"
	for _, tt := range []struct {
		name   string
		demand *Demand
		node   *Node
		want   []int
	}{
		{"one container", demand(ctr("x", App, 1, 30, gib80*3/10)), node("n", dev(1, 100, gib80), half), []int{1}},
		{"a smaller one that is empty", demand(ctr("x", App, 1, 30, 8000)), node("n", small, large), []int{1}},
		{"two containers, no more than needed", pair(30, 30), node("n", half, dev(1, 100, gib80)), []int{1}},
		{"two containers, none on one in use", pair(48, 48), node("n", dev(0, 80, gib80), dev(1, 90, gib80), dev(2, 100, gib80)), []int{0, 1}},
		{"a pod that needs an empty one fills it up", pair(60, 30), node("n", half, dev(1, 100, gib80), dev(2, 100, gib80)), []int{1}},
		{"several are alike", demand(ctr("x", App, 2, 30, 8000)), node("n", small, large, dev(2, 100, gib80)), []int{1, 2}},
		{"several, where none are alike", demand(ctr("x", App, 2, 30, 8000)), node("n", small, large), []int{1, 0}},
	} {
		plan, _ := Fit(tt.demand, tt.node)
		if got := devicesOf(tt.node, &plan); !slices.Equal(got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
}
