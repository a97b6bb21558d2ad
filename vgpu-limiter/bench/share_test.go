// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"math"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/vgpu-limiter/pace"
)

// tenant is one container under load: what its processes run and how many.
type tenant struct {
	quota     uint32
	load      string // arguments of load after SECONDS
	processes int
}

// windows is for how many seconds after the first one a load is watched.
const windows = 4

// done reads what the device has done for each of its clients, and when. The
// device's own account, not ours.
func (p place) done(b *testing.B) (now float64, byPID map[int]float64) {
	b.Helper()
	out := p.run(b, false, filepath.Join(p.sim, "simgpuctl"), "status")
	number := func(text string) float64 {
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			b.Fatal(err)
		}
		return n
	}
	now = number(regexp.MustCompile(`now_ns=(\d+)`).FindStringSubmatch(out)[1])
	byPID = map[int]float64{}
	for _, m := range regexp.MustCompile(`(?m)^client .*pid=(\d+) .*done_ns=(\d+)`).FindAllStringSubmatch(out, -1) {
		byPID[int(number(m[1]))] = number(m[2])
	}
	return now, byPID
}

// BenchmarkShare is the share of the device that each container really gets, in
// windows of one second: its mean, the worst window's distance from the quota in
// percentage points, and the longest that one launch took in milliseconds.
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
	for _, quota := range []uint32{5, 10, 30, 50, 70, 90} {
		for _, load := range []string{"10 1", "100 108", "1000 20000", "10000 108"} {
			add(fmt.Sprintf("alone/%d/%s", quota, load), tenant{quota, load, 1})
		}
	}
	for _, kind := range []string{"graph", "cooperative", "sync", "mixed", "data"} {
		add("alone/30/1000 108 1 "+kind, tenant{30, "1000 108 1 " + kind, 1})
	}
	add("alone/30/sync 50", tenant{30, "50 108 1 sync", 1})
	add("alone/30/100ms", tenant{30, "100000 108", 1})
	add("streams/30/1000", tenant{30, "1000 108 3", 1})
	add("streams/30/30", tenant{30, "30 108 8", 1})
	add("processes/30/1000", tenant{30, "1000 108", 3})
	add("processes/60/100", tenant{60, "100 108", 4})
	add("two/1ms", tenant{30, "1000 108", 1}, tenant{60, "1000 108", 1})
	add("two/10us+1ms", tenant{30, "10 108", 1}, tenant{60, "1000 108", 1})
	add("two/20ms+100us", tenant{30, "20000 108", 1}, tenant{60, "100 108", 1})
	add("two/100ms+100ms", tenant{30, "100000 108", 1}, tenant{60, "100000 108", 1})
	add("two/mixed+sync", tenant{30, "500 108 1 mixed", 1}, tenant{60, "500 108 1 sync", 1})
	add("two/data+streams", tenant{30, "500 108 1 data", 1}, tenant{60, "500 108 3", 1})
	add("three/1ms", tenant{20, "1000 108", 1}, tenant{30, "1000 108", 1}, tenant{40, "1000 108", 1})
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
		var outputs []*strings.Builder
		var wait []func() error
		for i, t := range tenants {
			p := first
			if i > 0 {
				p = first.neighbour(b, t.quota)
			}
			c, err := loop.Attach(p.path("limits"), p.path("counters"), p.path("pace"))
			if err != nil {
				b.Fatal(err)
			}
			defer c.Detach()
			for range t.processes {
				out := &strings.Builder{}
				cmd := p.command(true, filepath.Join(p.bin, "load"), append([]string{strconv.Itoa(windows + 2)}, strings.Fields(t.load)...)...)
				cmd.Stdout = out
				if err := cmd.Start(); err != nil {
					b.Fatal(err)
				}
				owner[cmd.Process.Pid] = i
				outputs, wait = append(outputs, out), append(wait, cmd.Wait)
			}
		}
		mean, worst := make([]float64, len(tenants)), make([]float64, len(tenants))
		var began, last float64
		start, before := make([]float64, len(tenants)), make([]float64, len(tenants))
		// A fixed grid: a window that what is read at its end makes longer would hide
		// a stall. The first second is for starting.
		grid := time.NewTicker(time.Second)
		defer grid.Stop()
		for w := range windows + 1 {
			<-grid.C
			now, byPID := first.done(b)
			done := make([]float64, len(tenants))
			for pid, ns := range byPID {
				if i, ours := owner[pid]; ours {
					done[i] += ns
				}
			}
			if w == 0 {
				began = now
				copy(start, done)
			}
			for i, t := range tenants {
				if w > 0 {
					worst[i] = max(worst[i], math.Abs(100*(done[i]-before[i])/(now-last)-float64(t.quota)))
					mean[i] = 100 * (done[i] - start[i]) / (now - began)
				}
			}
			last = now
			copy(before, done)
		}
		stall := 0.0
		for i := range wait {
			if err := wait[i](); err != nil {
				b.Fatal(err)
			}
			var launches, longest float64
			if _, err := fmt.Sscan(outputs[i].String(), &launches, &longest); err != nil {
				b.Fatal(err)
			}
			stall = max(stall, longest/1e6)
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
		}
		b.ReportMetric(stall, "stall-ms")
	}
	b.ReportMetric(0, "ns/op")
}
