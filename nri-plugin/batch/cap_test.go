// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"slices"
	"testing"
	"time"
)

// The cap falls with the others' use at once, rises when there has been more room
// for a while and then only to the least of it, and has a floor.
func TestCap(t *testing.T) {
	type look struct {
		after  time.Duration
		others MilliCPU
		n      int
		want   MilliCPU
	}
	for name, looks := range map[string][]look{
		"first":                   {{0, 2000, 1, 6000}},
		"falls at once":           {{0, 2000, 1, 6000}, {5, 4000, 1, 4000}, {5, 7000, 1, 1000}},
		"less than a step":        {{0, 2000, 1, 6000}, {5, 2400, 1, 6000}, {5, 1700, 1, 6000}, {60, 1700, 1, 6000}},
		"rises when it has held":  {{0, 4000, 1, 4000}, {5, 1000, 1, 4000}, {25, 1000, 1, 4000}, {5, 1000, 1, 7000}},
		"rises to the least":      {{0, 4000, 1, 4000}, {5, 1000, 1, 4000}, {10, 3000, 1, 4000}, {20, 0, 1, 5000}},
		"a relapse starts anew":   {{0, 4000, 1, 4000}, {5, 1000, 1, 4000}, {10, 4000, 1, 4000}, {5, 1000, 1, 4000}, {25, 1000, 1, 4000}, {5, 1000, 1, 7000}},
		"floor of the node":       {{0, 10000, 1, 500}, {5, 9000, 1, 500}},
		"floor of the containers": {{0, 10000, 1, 500}, {5, 10000, 20, 1000}},
		"none":                    {{0, 2000, 0, 6000}},
	} {
		c, at := Cap{Share: 80}, time.Unix(0, 0)
		for i, l := range looks {
			at = at.Add(l.after * time.Second)
			if got := c.Follow(at, 10000, l.others, l.n); got != l.want {
				t.Errorf("%s, look %d: %d, want %d", name, i, got, l.want)
			}
		}
	}
}

func TestDivide(t *testing.T) {
	for _, c := range []struct {
		whole  MilliCPU
		limits []MilliCPU
		want   []MilliCPU
	}{
		{1000, nil, []MilliCPU{}},
		{1000, []MilliCPU{0}, []MilliCPU{1000}},
		{1000, []MilliCPU{0, 0, 0}, []MilliCPU{330, 330, 340}},
		{1000, []MilliCPU{0, 100, 0}, []MilliCPU{450, 100, 450}},
		{1000, []MilliCPU{4000, 2000}, []MilliCPU{500, 500}},
		{1000, []MilliCPU{100, 200}, []MilliCPU{100, 200}},
	} {
		got := divide(c.whole, c.limits)
		if !slices.Equal(got, c.want) {
			t.Errorf("%d over %d: %d, want %d", c.whole, c.limits, got, c.want)
		}
	}
}
