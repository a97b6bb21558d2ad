// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"
)

// rest is what a test of idle slices measures of the windows after the first.
func (s shared) rest(i int) (mean, least, most float64) {
	least = math.Inf(1)
	for _, window := range s.windows[1:] {
		mean += window[i] / float64(len(s.windows)-1)
		least, most = min(least, window[i]), max(most, window[i])
	}
	return mean, least, most
}

// TestIdleSlice: beside idle slices a container has in its worst second what it has alone, within 3
// points. The idle slices have at least nine tenths of what it leaves, of gaps of a few milliseconds
// eight; and nothing where quotas leave nothing.
func TestIdleSlice(t *testing.T) {
	t.Parallel()
	const seconds = 5
	for _, test := range []struct {
		tenants []tenant
		idle    []string
	}{
		{[]tenant{{50, "1000 108"}}, []string{"1000 108"}},
		{[]tenant{{50, "1000 108"}}, []string{"100 108", "500 108"}},
		{[]tenant{{50, "100 108"}}, []string{"1000 108"}},
		{[]tenant{{30, "1000 108"}, {40, "300 108"}}, []string{"500 108"}},
		{[]tenant{{100, "1000 108"}}, []string{"1000 108"}},
		{[]tenant{{30, "1000 108"}, {70, "1000 108"}}, []string{"500 108"}},
		{[]tenant{{60, "serve 4 8 500 20"}}, []string{"1000 108"}},
		{[]tenant{{60, "train 20 16 5"}}, []string{"500 108"}},
		{[]tenant{{100, "pause 500 20000"}}, []string{"1000 108"}},
	} {
		for _, serial := range []bool{false, true} {
			device := map[bool]string{false: "shared", true: "serial"}[serial]
			t.Run(strings.ReplaceAll(fmt.Sprintf("%v beside %v on %s", test.tenants, test.idle, device), " ", "_"), func(t *testing.T) {
				t.Parallel()
				tenants := append([]tenant{}, test.tenants...)
				for _, load := range test.idle {
					tenants = append(tenants, tenant{idleSlice, load})
				}
				alone, beside := measure(t, serial, seconds, test.tenants), measure(t, serial, seconds, tenants)
				owners, idle := 0.0, 0.0
				for i, tenant := range tenants {
					mean, least, most := beside.rest(i)
					if tenant.quota == idleSlice {
						t.Logf("idle: mean %.2f, %.2f to %.2f", mean, least, most)
						idle += mean
						continue
					}
					was, worst, _ := alone.rest(i)
					t.Logf("%d: alone %.2f, at the least %.2f; beside %.2f, at the least %.2f; longest calls %.2f and %.2f ms", tenant.quota, was, worst, mean, least, alone.stalls[i], beside.stalls[i])
					owners += mean
					if least < worst-3 {
						t.Errorf("quota %d: %.2f percent in its worst second, alone %.2f", tenant.quota, least, worst)
					}
				}
				most := 0.9
				if strings.HasPrefix(test.tenants[0].load, "train") {
					most = 0.8
				}
				if left := 100 - owners; idle < most*left-0.5 {
					t.Errorf("the idle slices have %.2f of the %.2f percent that are idle", idle, left)
				}
			})
		}
	}
}

// TestIdleSlice_FirstLaunch: the first launch after a pause comes at most 2 ms later beside idle
// slices, at the 99th percentile.
func TestIdleSlice_FirstLaunch(t *testing.T) {
	t.Parallel()
	const seconds = 10
	for _, load := range []string{"pause 200 10000", "pause 1000 30000", "pause 100 3000"} {
		for _, serial := range []bool{false, true} {
			t.Run(strings.ReplaceAll(fmt.Sprint(load, " ", serial), " ", "_"), func(t *testing.T) {
				t.Parallel()
				alone := measure(t, serial, seconds, []tenant{{50, load}})
				beside := measure(t, serial, seconds, []tenant{{50, load}, {idleSlice, "1000 108"}, {idleSlice, "300 108"}})
				mean, _, _ := beside.rest(0)
				idle, _, _ := beside.rest(1)
				more, _, _ := beside.rest(2)
				t.Logf("p99 %.2f ms later alone, %.2f ms beside; %.1f percent, idle slices %.1f and %.1f", alone.stalls[0], beside.stalls[0], mean, idle, more)
				if beside.stalls[0] > alone.stalls[0]+2 {
					t.Errorf("the first launch after a pause is %.2f ms late at p99, alone %.2f", beside.stalls[0], alone.stalls[0])
				}
			})
		}
	}
}

// TestIdleSlice_WithoutTheAgent: while nobody gives it turns an idle slice launches nothing, and its
// neighbour has its quota.
func TestIdleSlice_WithoutTheAgent(t *testing.T) {
	t.Parallel()
	n, tenants := newNode(t, true), []tenant{{50, "1000 108"}, {idleSlice, "1000 108"}}
	var running []*process
	for _, tenant := range tenants {
		running = append(running, n.start(n.add(tenant.quota, false), "load", "3", "1000", "108"))
	}
	n.begin(running, tenants)
	began := n.clock.now()
	n.clock.sleep(began + time.Second)
	before := n.done()
	n.clock.sleep(began + 2*time.Second)
	after := n.done()
	for i, want := range []float64{50, 0} {
		pid := running[i].cmd.Process.Pid
		if got := 100 * (after[pid] - before[pid]) / float64(time.Second); math.Abs(got-want) > 2 {
			t.Errorf("container %d has %.2f percent, want %.0f", i, got, want)
		}
	}
	// A launch that waits ends with its process.
	for _, l := range running {
		_ = l.cmd.Process.Kill()
	}
}

// TestIdleSlice_Shut: while it is shut an idle slice launches nothing, and then it has its part again.
func TestIdleSlice_Shut(t *testing.T) {
	t.Parallel()
	n, tenants := newNode(t, true), []tenant{{50, "1000 108"}, {idleSlice, "1000 108"}}
	var running []*process
	for _, tenant := range tenants {
		running = append(running, n.start(n.add(tenant.quota, false), "load", "5", "1000", "108"))
	}
	n.begin(running, tenants)
	began, pid := n.clock.now(), running[1].cmd.Process.Pid
	for second, shut := range []bool{false, true, false} {
		n.attached[1].Shut(shut)
		n.run(began + time.Duration(second)*time.Second + 100*time.Millisecond)
		before := n.done()
		n.run(began + time.Duration(second+1)*time.Second)
		if got := 100 * (n.done()[pid] - before[pid]) / float64(900*time.Millisecond); shut && got > 0 || !shut && got < 35 {
			t.Errorf("shut %v: it has %.2f percent", shut, got)
		}
	}
	n.finish()
}
