// SPDX-License-Identifier: Apache-2.0

package tests

import (
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

// TestQuota: however a container keeps the device busy, it gets its quota and,
// beyond what it may save up, no more. How much less it uses depends on how
// promptly this machine runs it; but no launch waits longer than what the device
// has worked takes to be paid off.
func TestQuota(t *testing.T) {
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
				c := newContainer(t, share{quota, 100})
				p := c.start()
				for _, place := range []string{"1", "2", "3"} {
					p.want("stream "+place, ok)
				}
				var took time.Duration
				for _, call := range test.calls {
					answer := p.call(call)[0]
					if took = time.Duration(answer) * time.Millisecond; call[:4] != "burn" && answer != ok {
						t.Fatalf("%s answered %d", call, answer)
					}
				}
				if took < milliseconds*time.Millisecond {
					t.Fatalf("burning answered %v", took)
				}
				busy, u := c.busy(), c.usage().Devices[0]
				got := 100 * float64(busy) / float64(took)
				t.Logf("quota %d %%: %.1f %%", quota, got)
				// A refill in advance, one saved, and a launch or two.
				if most := time.Duration(quota)*took/100 + 60*time.Millisecond; busy > most {
					t.Errorf("the device worked %v in %v (%.1f %%), want %d %%", busy, took, got, quota)
				}
				if paid := busy * 100 / time.Duration(quota); u.Throttled > paid+20*time.Millisecond {
					t.Errorf("launches waited %v for %v of work, which takes %v to pay off", u.Throttled, busy, paid)
				}
				if u.Busy < busy/2 || u.Busy > busy*2+20*time.Millisecond || u.Launches == 0 {
					t.Errorf("counters: %+v; the device worked %v", u, busy)
				}
			})
		}
	}
}

// TestStreamOfAnotherDevice: the quota is the one of the stream's device, whatever
// context is the thread's.
func TestStreamOfAnotherDevice(t *testing.T) {
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

// TestNoQuota: without a quota nothing is measured and nothing waits.
func TestNoQuota(t *testing.T) {
	for _, core := range []int{0, 100} {
		c := newContainer(t, share{core, 100})
		p := c.start()
		p.want("stream 1", ok)
		took := time.Duration(p.call("burn 1 1000 300")[0]) * time.Millisecond
		u := c.usage().Devices[0]
		if got := 100 * float64(c.busy()) / float64(took); got < 50 || u.Throttled != 0 || u.Launches != 0 {
			t.Errorf("core %d: the device worked %.0f %% of the time; counters %+v", core, got, u)
		}
	}
}

// TestNeighbours: no container gets more than its quota when others are busy.
// (It may get less: its measured time holds the neighbours' turns; see README.)
func TestNeighbours(t *testing.T) {
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
