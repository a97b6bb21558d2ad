// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// TestPrograms: programs as people run them (bench/program/steps.c) get their quotas, or
// what they want where that is less, within 2 points in each second but the first; no
// launch call takes longer than two periods.
func TestPrograms(t *testing.T) {
	t.Parallel()
	const seconds = 5
	for _, test := range []struct {
		tenant
		want, call float64 // percent; ms
	}{
		{tenant{5, "train 100 40 30"}, 5, 20},
		{tenant{20, "train 100 40 30"}, 20, 20},   // works by itself for longer than a period
		{tenant{35, "train 200 60 30"}, 33.2, 20}, // as without a quota
		{tenant{50, "train 100 40 1"}, 50, 20},
		{tenant{20, "serve 4 10 50 300"}, 20, 22},
		{tenant{90, "serve 4 10 50 300"}, 90, 20},
		{tenant{90, "serve 8 30 10 300"}, 90, 20},
		{tenant{40, "sleep 4 20 100"}, 36.7, 20}, // what launches wait for others' is charged
	} {
		t.Run(fmt.Sprint(test.quota, "x", strings.ReplaceAll(test.load, " ", "_")), func(t *testing.T) {
			t.Parallel()
			got := measure(t, false, seconds, []tenant{test.tenant})
			t.Logf("seconds: %.1f, longest call %.1f ms", got.windows, got.stalls[0])
			for second, window := range got.windows {
				if second > 0 && math.Abs(window[0]-test.want) > 2 {
					t.Errorf("second %d: %.2f, want %.1f", second, window[0], test.want)
				}
			}
			if got.stalls[0] > test.call {
				t.Errorf("a launch call of %.1f ms, want no more than %.0f", got.stalls[0], test.call)
			}
		})
	}
}
