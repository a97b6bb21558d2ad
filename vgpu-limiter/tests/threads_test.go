// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"testing"
	"time"
)

// TestLaunchesOfThreadsThatEnd: what a thread has launched by itself is charged when it ends.
func TestLaunchesOfThreadsThatEnd(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{50, 100})
	p := c.start()
	p.do("stream 1", "launch_by_threads 1 2 60 30", "destroy_stream 1")
	if used := c.usage().Devices[0]; used.Launches != 30*60 || used.Busy < 30*60*2*time.Microsecond*9/10 {
		t.Errorf("%d launches and %v are charged, want %d and 3.6ms", used.Launches, used.Busy, 30*60)
	}
}

// TestCapturesOfThreadsThatEnd: a capture whose thread ends goes on, nothing of the library
// gets into it, and when another thread has ended it, launches are limited again.
func TestCapturesOfThreadsThatEnd(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{50, 100})
	p := c.start()
	p.do("stream 1", "stream 2")
	for range 3 {
		p.want("launch 1 20 30", ok) // that thread has an allowance on the stream
		p.do("capture_by_threads 1 20 30", "launch 2 20 30", "graph 1 1")
	}
	p.do("destroy_stream 1", "destroy_stream 2")
	if launches := c.usage().Devices[0].Launches; launches != 3*61 {
		t.Errorf("%d launches are charged, want %d", launches, 3*61)
	}
}

// TestLaunchesWhileStreamsEnd: that other threads destroy their streams costs no thread the
// charge of what it has launched on its own.
func TestLaunchesWhileStreamsEnd(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{90, 100})
	p := c.start()
	p.want("launch_on_own_streams 4 4 2000", ok)
	// Under a sanitizer threads come together more often, and what overlaps counts once.
	least := 4 * 2000 * 4 * 4 * time.Microsecond * 9 / 10
	if sanitized {
		least = least * 8 / 10
	}
	if used := c.usage().Devices[0]; used.Launches != 4*2000*4 || used.Busy < least {
		t.Errorf("%d launches and %v are charged, want %d and 128ms", used.Launches, used.Busy, 4*2000*4)
	}
}
