// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// busy is the time for which the device has worked.
func (c *container) busy() time.Duration {
	c.t.Helper()
	ns := must.Get(strconv.ParseInt(c.status(0, "busy_ns"), 10, 64))(c.t)
	return time.Duration(ns)
}

// TestQuota: however a container keeps the device busy, it gets, beyond what it may
// save up, no more than its quota, and no less; nor is it charged for more than it had.
// Nobody tells it of others here, and the clock isn't the machine's, which may let the
// program ask for less. How long a launch may wait is held by the bucket's own test.
func TestQuota(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct {
		quotas []int
		load   string
	}{
		"10 µs":           {[]int{10, 30}, "10 1"},
		"100 µs":          {[]int{10, 30}, "100 1"},
		"1 ms":            {[]int{10, 30, 95}, "1000 1"},
		"20 ms":           {[]int{10, 30, 95}, "20000 1"},
		"1 ms, 3 streams": {[]int{30, 95}, "1000 1 3"},
		"graphs":          {[]int{10, 30, 95}, "1000 1 1 graph"},
	} {
		for _, quota := range test.quotas {
			t.Run(name+"/"+strconv.Itoa(quota), func(t *testing.T) {
				t.Parallel()
				took, busy, u := burnAlone(t, quota, test.load)
				t.Logf("quota %d %%: %.1f %%, %v in %v; charged %v", quota, 100*float64(busy)/float64(took), busy, took, u.Busy)
				// A refill in advance, and a launch.
				if most := took*time.Duration(quota)/100 + 30*time.Millisecond; busy > most {
					t.Errorf("the device worked %v in %v, want no more than %v", busy, took, most)
				}
				if least := took * time.Duration(quota) / 100; busy < least {
					t.Errorf("the device worked %v in %v, want at least %v", busy, took, least)
				}
				if u.Busy < busy*95/100 || u.Busy > busy*105/100 || u.Launches == 0 {
					t.Errorf("counters: %+v; the device worked %v", u, busy)
				}
			})
		}
	}
}

// TestNoQuota: without a quota nothing is measured and nothing waits.
func TestNoQuota(t *testing.T) {
	t.Parallel()
	for _, core := range []int{0, 100} {
		took, busy, u := burnAlone(t, core, "1000 1")
		if u.Throttled != 0 || u.Launches != 0 {
			t.Errorf("core %d: counters %+v", core, u)
		}
		if busy < took*99/100 {
			t.Errorf("core %d: the device worked %v of %v", core, busy, took)
		}
	}
}

// burnAlone lets a load keep the device as busy as it may for a second of a clock that
// isn't the machine's, in a container without neighbours and without a node's loop: for
// how long it went on, how long the device worked and what the counters say.
func burnAlone(t *testing.T, quota int, load string) (took, busy time.Duration, u layout.DeviceUsage) {
	t.Helper()
	n := newNode(t, false)
	c := n.containers[0]
	c.write([]layout.DeviceLimit{{UUID: c.status(0, "uuid"), Core: uint32(quota), MemoryBytes: 1000 * mib}})
	args := strings.Fields(load)
	p := n.start(c, "load", append([]string{"1"}, args...)...)
	if !p.out.Scan() || p.out.Text() != "ready" {
		t.Fatalf("load says %q", p.out.Text())
	}
	p.send("")
	streams := 1
	if len(args) > 2 {
		streams, _ = strconv.Atoi(args[2])
	}
	n.clock.await(streams)
	began := n.clock.now()
	for !n.clock.over() {
		n.clock.sleep(n.clock.now() + time.Millisecond)
	}
	took = n.clock.now() - began
	return took, c.busy(), c.usage().Devices[0]
}

// TestFirstLaunches: of launches of which nothing is known yet, or of which it is
// known that they may take much longer than most, no more than one is under way at
// a time (and what a refill pays for): what they take is paid off before the next.
func TestFirstLaunches(t *testing.T) {
	t.Parallel()
	for name, how := range map[string]int{"graphs": 0, "sometimes long": 1, "other grids": 2, "long later": 3} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			long := 20 * time.Millisecond
			p := newContainer(t, share{20, 100}).start()
			p.want("stream 1", ok)
			count := 8
			if how == 1 {
				count = 40
			}
			if how == 3 {
				count, long = 800, 200*time.Microsecond
			}
			ahead := time.Duration(p.call(fmt.Sprintf("ahead %d %d %d", how, long.Microseconds(), count))[0]) * time.Microsecond
			t.Logf("%v of work at once", ahead)
			if most := 2*long + 5*time.Millisecond; ahead > most {
				t.Errorf("%v of work at once, want at most %v", ahead, most)
			}
		})
	}
}

// TestLaunchesThatAreNotThrough: a launch that the device doesn't get through keeps
// no other from being made, since the program may be what it waits for.
func TestLaunchesThatAreNotThrough(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{90, 100})
	p := c.start()
	p.want("stream 1", ok)
	p.want("launch 1 3600000000 1", ok) // an hour
	p.want("launch 1 10 3", ok)
	if u := c.usage().Devices[0]; u.Busy < 100*time.Millisecond {
		t.Errorf("charged %v for what hasn't ended", u.Busy)
	}
}

// TestStreamOfAnotherDevice: the quota is the one of the stream's device, whatever
// context is the thread's.
func TestStreamOfAnotherDevice(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{10, 100}, share{0, 100})
	p := c.start()
	p.do("stream 1", "primary 1 1", "current 1")
	took := time.Duration(p.call("burn 1 1000 800")[0]) * time.Millisecond
	p.want("synchronize 1", ok)
	u := c.usage().Devices[0]
	if busy := c.busy(); busy == 0 || busy > took/10+40*time.Millisecond || u.Launches == 0 {
		t.Errorf("the device worked %v in %v, want 10 %%; counters %+v", busy, took, u)
	}
}

// TestManyKinds: launches of many kinds in turn are counted as those of one are, also those of more kinds than a thread knows at a time.
func TestManyKinds(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{90, 100})
	p := c.start()
	for _, kinds := range []int{1, 3, 20, 70, 500} {
		before := c.usage().Devices[0].Launches
		p.do("stream 1", fmt.Sprintf("launch_kinds 1 %d 5000", kinds), "synchronize 1")
		p.want("destroy_stream 1", ok) // tells what isn't told yet
		if launches := c.usage().Devices[0].Launches - before; launches != 5000 {
			t.Errorf("%d kinds: %d launches are counted, want 5000", kinds, launches)
		}
	}
	for _, kinds := range []int{1, 100, 500} { // streams that share what the thread knows
		const streams = 3
		before := c.usage().Devices[0].Launches
		for i := range streams {
			p.want(fmt.Sprintf("stream %d", 1+i), ok)
		}
		p.want(fmt.Sprintf("launch_kinds 1 %d 9000 %d", kinds, streams), ok)
		for i := range streams {
			p.want(fmt.Sprintf("destroy_stream %d", 1+i), ok)
		}
		if launches := c.usage().Devices[0].Launches - before; launches != 9000 {
			t.Errorf("%d kinds on %d streams: %d launches are counted, want 9000", kinds, streams, launches)
		}
	}
}

// TestNeighbours: no container gets more than its quota when others are busy.
// (It may get less: its measured time holds the neighbours' turns; see README.)
func TestNeighbours(t *testing.T) {
	t.Parallel()
	a := newContainer(t, share{30, 100})
	b := a.neighbour(share{60, 100})
	done := make(chan time.Duration)
	for _, c := range []*container{a, b} {
		p := c.start()
		p.want("stream 1", ok)
		go func() { done <- time.Duration(p.call("burn 1 1000 800")[0]) * time.Millisecond }()
	}
	took := max(<-done, <-done)
	total := a.busy()
	for _, c := range []*container{a, b} {
		t.Logf("charged %v", c.usage().Devices[0].Busy)
	}
	t.Logf("the device worked %.1f %% of %v", 100*float64(total)/float64(took), took)
	if most := 90*took/100 + 80*time.Millisecond; total > most {
		t.Errorf("the device worked %v of %v", total, took)
	}
}

// TestStreamsComeAndGo: a stream's handle is used again for another one.
func TestStreamsComeAndGo(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{50, 100})
	p := c.start()
	for range 50 {
		p.do("stream 1", "launch 1 10 3", "synchronize 1", "destroy_stream 1")
	}
	p.do("context 1 0", "current 1", "stream 1", "launch 1 10 3", "destroy_context 1", "current 0",
		"launch 0 10 3")
}
