// SPDX-License-Identifier: Apache-2.0

package tests

import "testing"

// TestArraysBeyondTheLimit: what doesn't fit never reaches the device, not even
// as the twin that the driver is asked about.
func TestArraysBeyondTheLimit(t *testing.T) {
	t.Parallel()
	c := newBareContainer(t, share{0, 200})
	p := c.start()
	p.want("array 1 4096 5000 0 0", outOfMemory) // 312 MiB
	p.want("array 1 64 64 5000 0", outOfMemory)
	p.want("array 1 1024 1024 0 0", ok) // 16 MiB, of which the driver says 64
	p.wantUsed(64, 200)
	p.want("alloc 2 100", ok)
	p.want("array 3 1024 1024 0 0", outOfMemory)
	p.wantUsed(164, 200)
	p.want("destroy_array 1", ok)
	p.wantUsed(100, 200)
}

// TestPoolsThatSayNothing: on a driver that doesn't say what a pool has reserved,
// what comes of it is charged by itself.
func TestPoolsThatSayNothing(t *testing.T) {
	t.Parallel()
	c := newBareContainer(t, share{0, 100})
	p := c.start()
	p.do("stream 1", "pool 1 0", "from_pool 2 60 1 1")
	p.want("from_pool 3 60 1 1", outOfMemory)
	p.want("alloc 4 60", outOfMemory)
	p.want("from_pool 3 40 1 1", ok)
	p.wantUsed(100, 100)
	p.want("free_async 2 1", ok)
	p.wantUsed(40, 100)
	p.want("free 3", ok)
	p.wantUsed(0, 100)
}

// TestPoolsThatCannotBeAsked: on a driver that doesn't say which pool it takes memory
// from, that memory is charged by itself.
func TestPoolsThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	c := newBareContainer(t, share{0, 100})
	p := c.start()
	p.want("async 1 60 0", ok)
	p.want("async 2 60 0", outOfMemory)
	p.want("async 2 40 0", ok)
	p.wantUsed(100, 100)
	p.do("free_async 1 0", "free 2")
	p.wantUsed(0, 100)
}

// TestCapturesThatCannotBeAsked: on a driver that can't be asked about captures,
// launches after a capture are the quota's again.
func TestCapturesThatCannotBeAsked(t *testing.T) {
	t.Parallel()
	c := newBareContainer(t, share{50, 100})
	p := c.start()
	p.do("stream 1", "capture 1 10 5", "launch 1 10 100", "synchronize 1")
	if u := c.usage().Devices[0]; u.Launches == 0 {
		t.Error("no launch after the capture was charged")
	}
}

// TestLaunchesAfterAFault: after a kernel with a fault every launch says what the driver
// says of it, also one of a kind that the library could not measure.
func TestLaunchesAfterAFault(t *testing.T) {
	t.Parallel()
	c := newBareContainer(t, share{50, 100})
	p := c.start()
	p.do("stream 1", "launch 1 700 1")
	const illegalAddress = 700
	p.want("launch 1 20 1", illegalAddress)
	p.want("launch 0 20 1", illegalAddress)
}
