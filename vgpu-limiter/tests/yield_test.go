// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"io"
	"math"
	"strings"
	"testing"
	"time"
)

// TestYield: beside 1, 4 and 16 busy containers without a quota, those with one have it
// within 2 points in each second but the first, as they have beside each other (on average,
// where their quotas leave nothing); the others have at least 1 point together.
func TestYield(t *testing.T) {
	t.Parallel()
	const seconds = 5
	for _, test := range []struct {
		tenants []tenant
		yields  []string
	}{
		{[]tenant{{50, "1000 108"}}, []string{"1000 108"}},
		{[]tenant{{50, "100 108"}}, []string{"10000 108"}},
		{[]tenant{{90, "1000 108 1 sync"}}, []string{"20 108"}},
		{[]tenant{{85, "1000 108 1 sync"}}, []string{"100 108 1 mixed"}},
		{[]tenant{{20, "1000 108"}, {30, "1000 108"}, {40, "1000 108"}}, []string{"2000 108 1 data", "10 108 4 sync"}},
		{[]tenant{{30, "20000 108"}}, []string{"1000 108"}},
		{[]tenant{{30, "1000 108"}, {60, "300 108"}}, []string{"1000 108", "50 108 1 sync"}},
		{[]tenant{{30, "1000 108"}, {70, "1000 108"}}, []string{"500 108"}},
		{[]tenant{{100, "1000 108"}}, []string{"1000 108"}},
	} {
		counts := []int{1, 4, 16}
		if len(test.tenants) == 1 && test.tenants[0].quota != 50 { // fewer are like 1, or like 16
			counts = []int{1, 16}
		}
		for _, n := range counts {
			for _, serial := range []bool{false, true} {
				tenants := append([]tenant{}, test.tenants...)
				full := 0
				for _, tenant := range tenants {
					full += tenant.quota
				}
				for i := range n {
					tenants = append(tenants, tenant{0, test.yields[i%len(test.yields)]})
				}
				device := map[bool]string{false: "shared", true: "serial"}[serial]
				t.Run(strings.ReplaceAll(fmt.Sprintf("%v beside %d x %v on %s", test.tenants, n, test.yields, device), " ", "_"), func(t *testing.T) {
					t.Parallel()
					got := measure(t, serial, seconds, tenants)
					together := 0.0
					for i, tenant := range tenants {
						sum, worst, want := 0.0, 0.0, math.Min(float64(tenant.quota), 99)
						for _, window := range got.windows[1:] {
							sum += window[i]
							worst = max(worst, math.Abs(window[i]-want))
						}
						mean := sum / (seconds - 1)
						t.Logf("%d: mean %.2f, worst second %.2f off, first %.2f, longest call %.0f ms, periods of %v", tenant.quota, mean, worst, got.windows[0][i], got.stalls[i], got.period)
						if tenant.quota == 0 {
							together += mean
						} else if math.Abs(mean-want) > 2 || full < 100 && (worst > 2 || math.Abs(mean-want) > 1.2) {
							t.Errorf("quota %d: %.2f on average, a second %.2f off; seconds: %.1f", tenant.quota, mean, worst, got.windows)
						}
					}
					if together < 1 {
						t.Errorf("containers without a quota have %.2f together", together)
					}
				})
			}
		}
	}
}

// TestYield_WhatNobodyWants: containers without a quota have what a neighbour leaves of
// its quota, and it has all that it has alone.
func TestYield_WhatNobodyWants(t *testing.T) {
	t.Parallel()
	const seconds = 5
	for _, load := range []string{"serve 4 8 500 8", "sleep 1 500 9500"} {
		t.Run(strings.ReplaceAll(load, " ", "_"), func(t *testing.T) {
			t.Parallel()
			alone := measure(t, true, seconds, []tenant{{50, load}})
			beside := measure(t, true, seconds, []tenant{{50, load}, {0, "1000 108"}, {0, "100 108"}})
			sum := func(windows [][]float64, i int) (sum float64) {
				for _, window := range windows {
					sum += window[i]
				}
				return sum / float64(len(windows))
			}
			had, has, others := sum(alone.windows, 0), sum(beside.windows, 0), sum(beside.windows, 1)+sum(beside.windows, 2)
			t.Logf("%.2f alone, %.2f beside %.2f; longest calls %.0f and %.0f ms", had, has, others, alone.stalls[0], beside.stalls[0])
			if has < had*0.85 || others < (100-had)*0.35 || beside.stalls[0] > 100 {
				t.Errorf("%.2f alone, %.2f beside %.2f; longest call %.0f ms", had, has, others, beside.stalls[0])
			}
		})
	}
}

// TestYield_WithoutTheAgent: when nobody says more, each goes by its plain quota: what the
// quotas leave, in equal parts; nothing hangs.
func TestYield_WithoutTheAgent(t *testing.T) {
	t.Parallel()
	n := newNode(t, false)
	var running []*process
	for _, quota := range []int{50, 0, 0} {
		running = append(running, n.start(n.add(quota, false), "load", "3", "1000", "108"))
	}
	for i, l := range running {
		if !l.out.Scan() || l.out.Text() != "ready" {
			t.Fatalf("load says %q", l.out.Text())
		}
		if _, err := io.WriteString(l.in, "\n"); err != nil {
			t.Fatal(err)
		}
		n.clock.await(i + 1)
	}
	began := n.clock.now()
	n.clock.sleep(began + time.Second)
	before := n.done()
	n.clock.sleep(began + 2*time.Second)
	after := n.done()
	for i, want := range []float64{50, 25, 25} {
		pid := running[i].cmd.Process.Pid
		// Nobody has turns, so what each measures holds others' work: it has no more, and
		// on a device that divides its time about half as much.
		got := 100 * (after[pid] - before[pid]) / float64(time.Second)
		if t.Logf("%.2f of %.0f", got, want); got > want+2 || got < want/4 {
			t.Errorf("container %d has %.2f percent, want up to %.0f", i, got, want)
		}
	}
	for !n.clock.over() {
		n.clock.sleep(n.clock.now() + time.Second)
	}
}
