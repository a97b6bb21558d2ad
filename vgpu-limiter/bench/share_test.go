// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// tenant is one container under load: what its processes run and how many.
type tenant struct {
	quota     uint32
	load      string // arguments of load after SECONDS
	processes int
}

// windows is for how many seconds after the first one a load is watched.
const windows = 3

// done reads what the device has done for each of its clients, and when. The
// device's own account, not ours.
func (p place) done(b *testing.B) (now float64, byPID map[int]float64) {
	b.Helper()
	out := p.run(b, false, filepath.Join(p.sim, "simgpuctl"), "status")
	number := func(text string) float64 {
		return must.Get(strconv.ParseFloat(text, 64))(b)
	}
	now = number(regexp.MustCompile(`now_ns=(\d+)`).FindStringSubmatch(out)[1])
	byPID = map[int]float64{}
	for _, m := range regexp.MustCompile(`(?m)^client .*pid=(\d+) .*done_ns=(\d+)`).FindAllStringSubmatch(out, -1) {
		byPID[int(number(m[1]))] = number(m[2])
	}
	return now, byPID
}

// period is the refill period that the container was told last, in ms.
func (p place) period(b *testing.B) float64 {
	b.Helper()
	file := must.Get(os.ReadFile(p.path("pace")))(b)
	return float64(binary.LittleEndian.Uint64(file[64:])>>28&0xfffff) / 1e3
}

// BenchmarkShare is the share of the device that each container really gets, in
// windows of one second: its mean, the worst window's distance from the quota in
// percentage points, and the longest that one launch took in milliseconds, beside the
// longest refill period. It is by the machine's clock; tests/shares_test.go has one of
// its own.
func BenchmarkShare(b *testing.B) {
	var cases []struct {
		name    string
		tenants []tenant
	}
	add := func(name string, tenants ...tenant) {
		cases = append(cases, struct {
			name    string
			tenants []tenant
		}{name, tenants})
	}
	for _, quota := range []uint32{5, 30, 90} {
		for _, load := range []string{"10 1", "100 108", "1000 20000", "10000 108"} {
			add(fmt.Sprintf("alone/%d/%s", quota, load), tenant{quota, load, 1})
		}
	}
	for _, quota := range []uint32{10, 50, 70} {
		add(fmt.Sprintf("alone/%d/1000", quota), tenant{quota, "1000 108", 1})
		add(fmt.Sprintf("alone/%d/100000", quota), tenant{quota, "100000 108", 1})
	}
	for _, kind := range []string{"graph", "cooperative", "sync", "mixed", "data"} {
		add("alone/30/1000 "+kind, tenant{30, "1000 108 1 " + kind, 1})
	}
	for _, quota := range []uint32{5, 90} {
		for _, kind := range []string{"10000 108 1 graph", "2000 108 1 fresh", "50 108 1 rare", "1000 108 4"} {
			add(fmt.Sprintf("alone/%d/%s", quota, kind), tenant{quota, kind, 1})
		}
	}
	add("alone/30/100000", tenant{30, "100000 108", 1})
	add("streams/30/30", tenant{30, "30 108 8", 1})
	add("processes/30/1000", tenant{30, "1000 108", 3})
	add("processes/60/100", tenant{60, "100 108", 4})
	add("two/1ms", tenant{30, "1000 108", 1}, tenant{60, "1000 108", 1})
	add("two/10us+1ms", tenant{30, "10 108", 1}, tenant{60, "1000 108", 1})
	add("two/20ms+100us", tenant{30, "20000 108", 1}, tenant{60, "100 108", 1})
	add("two/100ms+100ms", tenant{30, "100000 108", 1}, tenant{60, "100000 108", 1})
	add("two/100ms+100us", tenant{30, "100000 108", 1}, tenant{60, "100 108", 1})
	add("two/5ms+5ms", tenant{30, "5000 108", 1}, tenant{60, "5000 108", 1})
	add("two/mixed+sync", tenant{30, "500 108 1 mixed", 1}, tenant{60, "500 108 1 sync", 1})
	add("two/data+streams", tenant{30, "500 108 1 data", 1}, tenant{60, "500 108 3", 1})
	add("two/full", tenant{30, "1000 108", 1}, tenant{70, "1000 108", 1})
	add("three/1ms", tenant{20, "1000 108", 1}, tenant{30, "1000 108", 1}, tenant{40, "1000 108", 1})
	add("four/100us", tenant{10, "100 108", 1}, tenant{20, "100 108", 1}, tenant{30, "100 108", 1}, tenant{40, "100 108", 1})
	for _, c := range cases {
		b.Run(strings.ReplaceAll(c.name, " ", "_"), func(b *testing.B) { share(b, "A100-SXM4-80GB", c.tenants) })
		if len(c.tenants) > 1 { // also where one launch runs after the other, whoever made them
			b.Run(strings.ReplaceAll("serial-"+c.name, " ", "_"), func(b *testing.B) { share(b, "A100-SXM4-80GB,serial=1", c.tenants) })
		}
	}
}

func share(b *testing.B, gpu string, tenants []tenant) {
	first := newPlaceOn(b, gpu, tenants[0].quota)
	for b.Loop() {
		loop := pace.New()
		ctx, stop := context.WithCancel(b.Context())
		go loop.Run(ctx)
		owner := map[int]int{}
		var loads []*load
		for i, t := range tenants {
			p := first
			if i > 0 {
				p = first.neighbour(b, t.quota)
			}
			c := must.Get(loop.Attach(p.path("limits"), p.path("counters"), p.path("pace")))(b)
			defer c.Detach()
			for range t.processes {
				l := p.load(b, windows+1.3, t.load)
				owner[l.cmd.Process.Pid] = i
				loads = append(loads, l)
			}
		}
		for _, l := range loads {
			l.begin(b)
		}
		worst, opening, mean, period := first.watch(b, tenants, owner)
		stall := 0.0
		for _, l := range loads {
			stall = max(stall, l.longest(b))
		}
		stop()
		for i := range tenants {
			suffix := ""
			if len(tenants) > 1 {
				suffix = "-" + strconv.Itoa(i+1)
			}
			if mean[i] == 0 {
				b.Fatalf("tenant %d: the device knows of no work of its; are the programs those of this tree? (make clean)", i+1)
			}
			b.ReportMetric(mean[i], "percent"+suffix)
			b.ReportMetric(worst[i], "off"+suffix)
			b.ReportMetric(opening[i], "first"+suffix)
		}
		b.ReportMetric(stall, "stall-ms")
		b.ReportMetric(period, "period-ms")
	}
	b.ReportMetric(0, "ns/op")
}

// watch looks at the device once a second while the loads run. It returns what each
// tenant got in percent, the farthest from its quota that a window was, and what it
// got in the first window, in which all of them began; and the longest refill period
// that was in force at the end of a window, in ms.
func (p place) watch(b *testing.B, tenants []tenant, owner map[int]int) (worst, opening, mean []float64, period float64) {
	b.Helper()
	n := len(tenants)
	worst, opening, mean = make([]float64, n), make([]float64, n), make([]float64, n)
	start, before := make([]float64, n), make([]float64, n)
	// A fixed grid: a window that what is read at its end makes longer would hide
	// a stall.
	grid := time.NewTicker(time.Second)
	defer grid.Stop()
	began, _ := p.done(b)
	last, opened := began, began
	for w := range windows + 1 {
		<-grid.C
		now, byPID := p.done(b)
		period = max(period, p.period(b))
		done := make([]float64, n)
		for pid, ns := range byPID {
			if i, ours := owner[pid]; ours {
				done[i] += ns
			}
		}
		if w == 0 {
			opened = now
			copy(start, done)
		}
		for i, t := range tenants {
			if w == 0 {
				opening[i] = 100 * done[i] / (now - began)
				continue
			}
			worst[i] = max(worst[i], math.Abs(100*(done[i]-before[i])/(now-last)-float64(t.quota)))
			mean[i] = 100 * (done[i] - start[i]) / (now - opened)
		}
		last = now
		copy(before, done)
	}
	return worst, opening, mean, period
}
