// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"
)

// busy is the time for which the device has worked.
func (c *container) busy() time.Duration {
	c.t.Helper()
	ns, err := strconv.ParseInt(c.status(0, "busy_ns"), 10, 64)
	if err != nil {
		c.t.Fatal(err)
	}
	return time.Duration(ns)
}

// starved is for how long the process has wanted a CPU and had none. What a program
// gets of the device is held against that: the limiter can't give what the machine
// doesn't let the program ask for.
func (p *process) starved() time.Duration {
	p.t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", p.cmd.Process.Pid))
	var ran, waited int64
	if err == nil {
		_, err = fmt.Sscan(string(b), &ran, &waited)
	}
	if err != nil {
		p.t.Fatal(err)
	}
	return time.Duration(waited)
}

// TestQuota: however a container keeps the device busy, it gets, beyond what it may
// save up, no more than its quota; and no less, nor is it charged for more than it
// had, but for the time in which the machine didn't let it run. How long a launch may
// wait is held by the bucket's own test, which has a clock of its own.
func TestQuota(t *testing.T) {
	t.Parallel()
	const milliseconds = 800
	for name, test := range map[string]struct {
		quotas []int
		calls  []string
	}{
		"10 µs":           {[]int{10, 30}, []string{"burn 1 10 800"}},
		"100 µs":          {[]int{10, 30}, []string{"burn 1 100 800"}},
		"1 ms":            {[]int{10, 30, 95}, []string{"burn 1 1000 800"}},
		"20 ms":           {[]int{10, 30, 95}, []string{"burn 1 20000 800"}},
		"1 ms, 3 streams": {[]int{30, 95}, []string{"burn 3 1000 800"}},
		"graphs":          {[]int{10, 30, 95}, []string{"capture 1 200 5", "burn 1 0 800"}},
	} {
		for _, quota := range test.quotas {
			t.Run(name+"/"+strconv.Itoa(quota), func(t *testing.T) {
				t.Parallel()
				c := newContainer(t, share{quota, 100})
				p := c.start()
				for _, place := range []string{"1", "2", "3"} {
					p.want("stream "+place, ok)
				}
				burn := test.calls[len(test.calls)-1]
				for _, call := range test.calls[:len(test.calls)-1] {
					p.want(call, ok)
				}
				starved := p.starved()
				took := time.Duration(p.call(burn)[0]) * time.Millisecond
				starved = p.starved() - starved
				busy, u := c.busy(), c.usage().Devices[0]
				t.Logf("quota %d %%: %.1f %%; %v without a CPU", quota, 100*float64(busy)/float64(took), starved)
				if took < milliseconds*time.Millisecond {
					t.Fatalf("burning answered %v", took)
				}
				// A refill in advance, one saved, and a launch or two.
				if most := took*time.Duration(quota)/100 + 60*time.Millisecond; busy > most {
					t.Errorf("the device worked %v in %v, want no more than %v", busy, took, most)
				}
				// Four fifths, and a launch not yet paid off.
				if least := max(0, took-starved)*time.Duration(quota)/125 - 20*time.Millisecond; busy < least {
					t.Errorf("the device worked %v in %v, want at least %v", busy, took, least)
				}
				if u.Busy < busy/2 || u.Busy > busy*2+20*time.Millisecond+starved || u.Launches == 0 {
					t.Errorf("counters: %+v; the device worked %v", u, busy)
				}
			})
		}
	}
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
	p.want("stream 1", ok)
	p.want("primary 1 1", ok)
	p.want("current 1", ok)
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
		p.want("stream 1", ok)
		p.want(fmt.Sprintf("launch_kinds 1 %d 5000", kinds), ok)
		p.want("synchronize 1", ok)
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

// TestNoQuota: without a quota nothing is measured and nothing waits.
func TestNoQuota(t *testing.T) {
	t.Parallel()
	for _, core := range []int{0, 100} {
		c := newContainer(t, share{core, 100})
		p := c.start()
		p.want("stream 1", ok)
		starved := p.starved()
		took := time.Duration(p.call("burn 1 1000 300")[0]) * time.Millisecond
		u := c.usage().Devices[0]
		if u.Throttled != 0 || u.Launches != 0 {
			t.Errorf("core %d: counters %+v", core, u)
		}
		if busy := c.busy(); busy < (took-(p.starved()-starved))/2 {
			t.Errorf("core %d: the device worked %v of %v", core, busy, took)
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
		p.want("stream 1", ok)
		p.want("launch 1 10 3", ok)
		p.want("synchronize 1", ok)
		p.want("destroy_stream 1", ok)
	}
	p.want("context 1 0", ok)
	p.want("current 1", ok)
	p.want("stream 1", ok)
	p.want("launch 1 10 3", ok)
	p.want("destroy_context 1", ok)
	p.want("current 0", ok)
	p.want("launch 0 10 3", ok)
}
