// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/api/advice"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/bench/usage"
)

// small has a pod that stays as it is, one that grows in the second half, and one that begins in it.
func small() []*pod {
	var all [3][]usage.Point // by name
	for i := range 1000 {
		at := time.Duration(i) * usage.Interval
		grown := api.MiB(0)
		if i >= 500 {
			grown = 2048
			all[1] = append(all[1], usage.Point{At: at, Duty: 90, Mem: 20480})
		}
		all[0] = append(all[0], usage.Point{At: at, Duty: 20, Mem: 10240 + grown})
		all[2] = append(all[2], usage.Point{At: at, Duty: float64(i % 20), Mem: 10240})
	}
	return halve([]usage.Pod{{Name: "more", Points: all[0]}, {Name: "new", Points: all[1]}, {Name: "same", Points: all[2]}})
}

// The figures can be worked out by hand: 15 % of 10,240 MiB do not reach the 12,288 MiB of one pod, nor the
// 20,480 of the new one.
func TestEvaluate(t *testing.T) {
	pods := small()
	each := [][]*pod{{pods[0]}, {pods[1]}, {pods[2]}}
	for _, tt := range []struct {
		rule      int
		workloads [][]*pod
		given     advice.Amount
		want      result
	}{
		{0, [][]*pod{pods}, advice.Amount{Core: 100, Mem: 81_920}, result{pods: 3, samples: 1500}},
		// No spread: the peak and 10 %. 98 % of the time used 20 % or less.
		{1, [][]*pod{pods}, advice.Amount{Core: 23, Mem: 11_264}, result{pods: 3, refused: 2, refusals: 1000, samples: 1500, limited: 500}},
		{2, [][]*pod{pods}, advice.Amount{Core: 23, Mem: 11_776}, result{pods: 3, refused: 2, refusals: 1000, samples: 1500, limited: 500}},
		// It gives more after the first refusal.
		{3, [][]*pod{pods}, advice.Amount{Core: 23, Mem: 11_776}, result{pods: 3, refused: 2, refusals: 2, samples: 1500, limited: 500}},
		// A pod without a first half is not judged alone.
		{1, each, advice.Amount{}, result{pods: 2, refused: 1, refusals: 500, samples: 1000}},
	} {
		by := rules[tt.rule]
		got := evaluate(tt.workloads, requests[0], by)
		if len(tt.workloads) == 1 {
			if given := by.advise(pods, device); given != tt.given {
				t.Errorf("%s: advises %v, want %v", by.name, given, tt.given)
			}
			if n := len(pods); int(got.freed.Mem) != n*int(device.Mem-tt.given.Mem) || int(got.freed.Core) != n*int(device.Core-tt.given.Core) {
				t.Errorf("%s: freed %v", by.name, got.freed)
			}
		}
		got.freed, got.requested = advice.Amount{}, advice.Amount{}
		if got != tt.want {
			t.Errorf("%s: got %+v, want %+v", by.name, got, tt.want)
		}
	}
}

func TestShow_IsTheSameEachTime(t *testing.T) {
	var once, twice bytes.Buffer
	show(&once, small())
	show(&twice, small())
	if once.String() != twice.String() || strings.Count(once.String(), "\n") != 2+2*len(requests)*len(rules) {
		t.Errorf("%s\nthen\n%s", once.String(), twice.String())
	}
	if want := "| the workload | 80 GiB | Vernier | 3 | 69.0 (86 %) | 2 (1000 times) | 77 | 33.33 |\n"; !strings.Contains(once.String(), want) {
		t.Errorf("no %s in\n%s", want, once.String())
	}
}
