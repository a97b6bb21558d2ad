// SPDX-License-Identifier: Apache-2.0

package tests

import (
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
	"vernier.dev/vernier/vgpu-limiter/layout"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// tenant is a container under load: what it runs, as arguments of bench/program/load.c
// after SECONDS, of steps.c where the first is a word, or nothing of replay.c.
type tenant struct {
	quota int
	load  string
}

// program is what it runs, and how many threads of that launch.
func (t tenant) program() (name string, threads int) {
	f := strings.Fields(t.load)
	switch {
	case len(f) == 0:
		return "replay", 1
	case f[0] == "train" || f[0] == "pause":
		return "steps", 1
	case f[0] == "serve" || f[0] == "sleep":
		threads, _ = strconv.Atoi(f[1])
		return "steps", threads
	case len(f) > 2:
		threads, _ = strconv.Atoi(f[2])
		return "load", threads
	}
	return "load", 1
}

// node is containers on one device with the loop that a node agent runs, all by one
// clock that isn't the machine's.
type node struct {
	t          *testing.T
	clock      *clock
	loop       *pace.Loop
	other      *pace.Loop    // of another user's vgpu-run, where there is one
	next       time.Duration // when the loop looks again
	containers []*container
	attached   []*pace.Container
	longest    time.Duration // refill period that was in force
}

func newNode(t *testing.T, serial bool) *node {
	t.Helper()
	if sanitized {
		t.Skip("the clock's threads go one at a time")
	}
	b := must.Get(build())(t)
	n := &node{t: t, clock: newClock(t, b)}
	n.loop, n.next = pace.NewAt(n.clock.now), n.clock.now()
	first := &container{t: t, dir: t.TempDir(), built: b, clock: n.clock}
	first.state = filepath.Join(first.dir, "state")
	gpu := "A100-SXM4-80GB"
	if serial {
		gpu += ",serial=1"
	}
	first.ctl("create", "--gpu", gpu)
	n.containers = append(n.containers, first)
	return n
}

// idleSlice is the quota of a container with an idle slice.
const idleSlice = -1

// add attaches a container with a quota.
func (n *node) add(quota int, bursts bool) *container {
	n.t.Helper()
	c := n.containers[0]
	if c.attached {
		c = &container{t: n.t, dir: n.t.TempDir(), state: c.state, built: c.built, clock: n.clock}
		n.containers = append(n.containers, c)
	}
	c.attached = true
	limit := layout.DeviceLimit{UUID: c.status(0, "uuid"), Core: uint32(max(quota, 0)), MemoryBytes: 1000 * mib, MayBurst: bursts, Idle: quota == idleSlice}
	c.write([]layout.DeviceLimit{limit})
	err := layout.CreatePace(filepath.Join(c.dir, "pace"), 1)
	var attached *pace.Container
	if err == nil {
		attached, err = n.loop.Attach(filepath.Join(c.dir, "limits"), filepath.Join(c.dir, "counters"), filepath.Join(c.dir, "pace"))
	}
	must.Do(n.t, err)
	n.t.Cleanup(attached.Detach)
	n.attached = append(n.attached, attached)
	n.loop.Step() // as it does all the time, also before a program begins
	return c
}

// start starts a program in a container by the node's clock.
func (n *node) start(c *container, program string, args ...string) *process {
	n.t.Helper()
	return n.startUnder(c, filepath.Join(c.built.dir, "libvgpu-test.so")+":", program, args...)
}

// startOther starts one that no limit holds.
func (n *node) startOther(program string, args ...string) *process {
	n.t.Helper()
	return n.startUnder(n.containers[0], "", program, args...)
}

func (n *node) startUnder(c *container, preload, program string, args ...string) *process {
	n.t.Helper()
	p := &process{t: n.t, cmd: c.command("libvgpu-test.so", program, args...), stderr: &strings.Builder{}}
	preload += filepath.Join(c.built.dir, "libclock.so")
	p.cmd.Env = append(p.cmd.Env, append(n.clock.environment(false), "LD_PRELOAD="+preload)...)
	p.cmd.Stderr = p.stderr
	p.begin()
	return p
}

// run lets everybody go on until then.
func (n *node) run(until time.Duration) {
	n.t.Helper()
	for n.next < until {
		n.clock.sleep(n.next)
		step := n.loop.Step()
		if n.other != nil {
			step = min(step, n.other.Step())
		}
		n.next += step
		n.longest = max(n.longest, n.period())
	}
	n.clock.sleep(until)
}

// finish lets everybody go on until all have ended.
func (n *node) finish() {
	n.t.Helper()
	for !n.clock.over() {
		n.run(n.next + time.Second)
	}
}

// period is the refill period that the first container was told last.
func (n *node) period() time.Duration {
	n.t.Helper()
	b := must.Get(os.ReadFile(filepath.Join(n.containers[0].dir, "pace")))(n.t)
	return time.Duration(binary.LittleEndian.Uint64(b[64:])>>28&0xfffff) * time.Microsecond
}

// done is what the device has done for each process, by its own account.
func (n *node) done() map[int]float64 {
	n.t.Helper()
	done := map[int]float64{}
	for _, m := range regexp.MustCompile(`(?m)^client .*pid=(\d+) .*done_ns=(\d+)`).FindAllStringSubmatch(n.containers[0].ctl("status"), -1) {
		pid, err := strconv.Atoi(m[1])
		if err == nil {
			done[pid], err = strconv.ParseFloat(m[2], 64)
		}
		must.Do(n.t, err)
	}
	return done
}

// shared is what a load's containers got.
type shared struct {
	windows [][]float64   // percent, by second and container
	stalls  []float64     // longest launch call of each, ms
	period  time.Duration // the longest refill period that was in force
}

func measure(t *testing.T, serial bool, seconds int, tenants []tenant) shared {
	t.Helper()
	n := newNode(t, serial)
	var running []*process
	for _, tenant := range tenants {
		program, _ := tenant.program()
		running = append(running, n.start(n.add(tenant.quota, false), program, append([]string{strconv.Itoa(seconds + 1)}, strings.Fields(tenant.load)...)...))
	}
	n.begin(running, tenants)
	var got shared
	began, before := n.clock.now(), map[int]float64{}
	for w := range seconds {
		n.run(began + time.Duration(w+1)*time.Second)
		done := n.done()
		var window []float64
		for _, l := range running {
			pid := l.cmd.Process.Pid
			window = append(window, 100*(done[pid]-before[pid])/float64(time.Second))
		}
		got.windows = append(got.windows, window)
		before = done
	}
	got.period = n.longest
	n.finish()
	for _, l := range running {
		var launches, ns float64
		if !l.out.Scan() {
			t.Fatal("load says nothing of its launches")
		}
		must.Get(fmt.Sscan(l.out.Text(), &launches, &ns))(t)
		got.stalls = append(got.stalls, ns/1e6)
	}
	return got
}

// loads are what TestShares holds within 2 points: each second but the first (window),
// and the first (first). The mean of those after the first is to be within 1.2.
var loads = []struct {
	window, first bool
	tenants       []tenant
}{
	{true, true, []tenant{{5, "10 1"}}},
	{true, true, []tenant{{90, "10 1"}}},
	{true, true, []tenant{{30, "100 108"}}},
	{true, true, []tenant{{5, "1000 20000"}}},
	{true, true, []tenant{{90, "1000 20000"}}},
	{true, true, []tenant{{5, "10000 108"}}},
	{true, true, []tenant{{90, "10000 108"}}},
	{true, true, []tenant{{30, "100000 108"}}},
	{true, true, []tenant{{70, "100000 108"}}},
	{false, false, []tenant{{5, "100000 108"}}},
	{false, false, []tenant{{35, "100000 108"}}},
	{false, false, []tenant{{87, "100000 108"}}},
	{true, true, []tenant{{30, "1000 108 1 cooperative"}}},
	{true, true, []tenant{{30, "1000 108 1 sync"}}},
	{true, true, []tenant{{30, "1000 108 1 mixed"}}},
	{true, true, []tenant{{30, "1000 108 1 data"}}},
	{true, true, []tenant{{5, "50 108 1 rare"}}},
	{true, true, []tenant{{90, "50 108 1 rare"}}},
	{true, true, []tenant{{5, "10000 108 1 graph"}}},
	{true, true, []tenant{{90, "10000 108 1 graph"}}},
	{true, true, []tenant{{5, "2000 108 1 fresh"}}},
	{true, true, []tenant{{90, "2000 108 1 fresh"}}},
	{true, true, []tenant{{5, "1000 108 4"}}},
	{true, true, []tenant{{90, "1000 108 4"}}},
	{true, true, []tenant{{30, "300 108 4"}}},
	{true, true, []tenant{{30, "300 108 8"}}},
	{true, true, []tenant{{90, "300 108 8"}}},
	{false, false, []tenant{{50, "500 108 8 rare"}}},
	{false, false, []tenant{{20, "500 108 2 rare"}}},
	{true, true, []tenant{{20, "10 108 4 sync"}}},
	{true, true, []tenant{{60, "50 108 4 sync"}}},
	{true, true, []tenant{{20, "20 108 1 ends"}}},
	{true, true, []tenant{{60, "1000 108 1 ends"}}},
	{true, true, []tenant{{60, "20 108 8 ends"}}},
	{true, true, []tenant{{20, "20 108 4 few"}}},
	{true, true, []tenant{{60, "5 108 4 few"}}},
	{true, true, []tenant{{30, "1000 108"}, {60, "1000 108"}}},
	{true, true, []tenant{{30, "10 108"}, {60, "1000 108"}}},
	{true, true, []tenant{{90, "1000 108"}, {5, "20 1"}}},
	{true, true, []tenant{{30, "5000 108"}, {60, "5000 108"}}},
	{true, false, []tenant{{30, "20000 108"}, {60, "100 108"}}},
	{true, false, []tenant{{30, "20000 108"}, {60, "20000 108"}}},
	{true, false, []tenant{{25, "20000 108"}, {45, "50000 108"}}},
	{true, false, []tenant{{30, "100000 108"}, {60, "100 108"}}},
	{false, false, []tenant{{30, "100000 108"}, {60, "100000 108"}}},
	{false, false, []tenant{{15, "100000 108"}, {75, "30000 108"}}},
	{true, true, []tenant{{30, "500 108 1 mixed"}, {60, "500 108 1 sync"}}},
	{true, true, []tenant{{30, "500 108 1 data"}, {60, "500 108 3"}}},
	{false, false, []tenant{{30, "5000 108 1 data"}, {60, "3000 108 1 data"}}},
	{false, false, []tenant{{50, "50 108 1 rare"}, {40, "1000 108"}}},
	{false, true, []tenant{{30, "1000 108"}, {70, "1000 108"}}},
	{true, true, []tenant{{20, "1000 108"}, {30, "1000 108"}, {40, "1000 108"}}},
	{false, false, []tenant{{20, "20000 108"}, {30, "20000 108 1 data"}, {40, "20000 108"}}},
	{false, false, []tenant{{33, "7000 108"}, {33, "11000 108 1 graph"}, {33, "1700 108"}}},
	{true, true, []tenant{{10, "100 108"}, {20, "100 108"}, {30, "100 108"}, {40, "100 108"}}},
}

// TestShares: containers get their quotas, alone and side by side, whatever their
// launches take, on a device that divides its time and on one that runs a launch after
// the other. Each second but the first, in which nobody knows what launches take, where
// whole launches can fill the quota in a second; on average where they can't, or where
// lengths are random. No launch call takes longer than longestCall.
func TestShares(t *testing.T) {
	t.Parallel()
	const seconds = 7
	for _, test := range loads {
		for _, serial := range []bool{false, true}[:min(2, len(test.tenants))] {
			var names []string
			for _, tenant := range test.tenants {
				names = append(names, strconv.Itoa(tenant.quota)+"x"+strings.ReplaceAll(tenant.load, " ", "_"))
			}
			name := strings.Join(names, "+") + map[bool]string{false: "/shared", true: "/serial"}[serial]
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				got := measure(t, serial, seconds, test.tenants)
				for i, tenant := range test.tenants {
					sum, worst, quota := 0.0, 0.0, float64(tenant.quota)
					for _, window := range got.windows[1:] {
						sum += window[i]
						worst = max(worst, math.Abs(window[i]-quota))
					}
					mean, first := sum/(seconds-1), math.Abs(got.windows[0][i]-quota)
					t.Logf("%d: mean %.2f, worst second %.2f off, first %.2f, longest call %.0f ms, periods of %v", tenant.quota, mean, worst, got.windows[0][i], got.stalls[i], got.period)
					if math.Abs(mean-quota) > 1.2 || test.window && worst > 2 || test.first && first > 2 {
						t.Errorf("quota %d: %.2f on average, a second %.2f off, the first one %.2f; seconds: %.1f", tenant.quota, mean, worst, first, got.windows)
					}
					if most := longestCall(t, tenant, got.period); got.stalls[i] > most {
						t.Errorf("quota %d: a launch call of %.0f ms, want no more than %.0f", tenant.quota, got.stalls[i], most)
					}
				}
			})
		}
	}
}

// longestLaunch is how long a launch of a container takes at most, in ms.
func longestLaunch(t *testing.T, tenant tenant) float64 {
	t.Helper()
	f := strings.Fields(tenant.load)
	us := must.Get(strconv.ParseFloat(f[0], 64))(t)
	if len(f) > 3 {
		us *= map[string]float64{"data": 2, "rare": 100, "mixed": 1.5, "sync": 1, "graph": 1, "fresh": 1, "cooperative": 1, "ends": 1, "few": 1}[f[3]]
	}
	return us / 1e3
}

// longestCall is how long a launch call may take beside others' launches, in ms: two
// refill periods and the launch, or until one launch of each stream is paid for and the
// period after that begins. Where launches are 100 times as long at random, each of several
// streams may have some under way of which nobody expected it.
func longestCall(t *testing.T, tenant tenant, period time.Duration) float64 {
	t.Helper()
	f, ms, p := strings.Fields(tenant.load), longestLaunch(t, tenant), period.Seconds()*1e3
	streams := 1.0
	if len(f) > 2 {
		streams, _ = strconv.ParseFloat(f[2], 64)
	}
	more := 2.0
	if strings.HasSuffix(tenant.load, "rare") {
		more += (streams - 1) * 8 * ms
	}
	return max(2*p+ms, p+streams*ms*100/float64(tenant.quota)) + more
}
