// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"strconv"
	"testing"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// heldBytes is what the device really holds; held is the same in MiB, rounded up.
func (c *container) heldBytes(device int) int {
	c.t.Helper()
	n, err := strconv.Atoi(c.status(device, "used_bytes"))
	if err != nil {
		c.t.Fatal(err)
	}
	return n
}

func (c *container) held(device int) int { return (c.heldBytes(device) + mib - 1) / mib }

// TestEveryPathIsCharged takes memory on every path, beside a limit of 1 GiB:
// 600 MiB fit, 600 more don't and never reach the device, and after giving back
// the first it is all there again.
func TestEveryPathIsCharged(t *testing.T) {
	t.Parallel()
	const edge = 1 << 13 // 8192 × 8192 × 16 bytes = 1 GiB
	for name, calls := range map[string]struct{ take, more, give string }{
		"plain":           {"alloc 1 600", "alloc 2 600", "free 1"},
		"pitched":         {"pitch 1 524000 1200", "pitch 2 524000 1200", "free 1"},
		"managed":         {"managed 1 600", "managed 2 600", "free 1"},
		"asynchronous":    {"async 1 600 0", "async 2 600 0", "free_async 1 0"},
		"own pool":        {"from_pool 1 600 1 0", "from_pool 2 600 1 0", "free_async 1 0"},
		"virtual":         {"create 1 600 0", "create 2 600 0", "release 1"},
		"tile pool":       {"tiles 1 600", "tiles 2 600", "release 1"},
		"2D array":        {fmt.Sprintf("array 1 %d 4800 0 0", edge), fmt.Sprintf("array 2 %d 4800 0 0", edge), "destroy_array 1"},
		"3D array":        {"array 1 1024 600 64 0", "array 2 1024 600 64 0", "destroy_array 1"},
		"mipmapped array": {fmt.Sprintf("mipmap 1 %d 3600 0 10", edge), fmt.Sprintf("mipmap 2 %d 3600 0 10", edge), "destroy_mipmap 1"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, share{0, 1024})
			p := c.start()
			p.do("pool 1 0", calls.take)
			before := c.held(0)
			if before < 590 || before > 610 {
				t.Fatalf("the device holds %d MiB, want about 600", before)
			}
			if info := p.call("info"); info[2]-info[1] != c.heldBytes(0) {
				t.Errorf("cuMemGetInfo says %d bytes are used, the device holds %d", info[2]-info[1], c.heldBytes(0))
			}
			p.want(calls.more, outOfMemory)
			if after := c.held(0); after != before {
				t.Errorf("the refused call left %d MiB on the device, %d before", after, before)
			}
			u := c.usage()
			if need := u.Devices[0].NeedBytes / mib; need < uint64(before+590) || need > uint64(before+610) {
				t.Errorf("%d MiB are needed, want about %d", need, before+600)
			}
			if u.Devices[0].MemoryRefusals == 0 || len(u.Processes) != 1 || u.Processes[0].HostPID != p.cmd.Process.Pid ||
				u.Devices[0].UsedBytes < uint64(before-1)*mib {
				t.Errorf("counters: %+v", u)
			}
			p.do(calls.give, "synchronize 0", "trim_pool 1", "alloc 3 1024")
			p.want("alloc 4 1", outOfMemory)
			if now := c.held(0); now != 1024 {
				t.Errorf("the device holds %d MiB, want 1024", now)
			}
		})
	}
}

// TestArraysExactly: what the driver says that an array needs is charged, not
// what its description makes one expect.
func TestArraysExactly(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	for i, array := range []string{"array 1 1001 999 0 0", "array 2 17 33 65 0", "array 3 5 0 0 0", "mipmap 4 1001 999 0 10", "mipmap 5 63 31 15 6"} {
		p.want(array, ok)
		if info := p.call("info"); info[2]-info[1] != c.heldBytes(0) {
			t.Errorf("after %d arrays cuMemGetInfo says %d bytes are used, the device holds %d", i+1, info[2]-info[1], c.heldBytes(0))
		}
	}
	p.do("destroy_array 1", "destroy_mipmap 4")
	if info := p.call("info"); info[2]-info[1] != c.heldBytes(0) {
		t.Errorf("cuMemGetInfo says %d bytes are used, the device holds %d", info[2]-info[1], c.heldBytes(0))
	}
}

// TestVirtualMemory: memory stays charged as long as a handle or a mapping
// refers to it, and not longer.
func TestVirtualMemory(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.do("create 1 60 0", "map 1 60", "release 1")
	p.wantUsed(60, 100) // create, map, release: the escape of other limiters
	p.want("create 2 60 0", outOfMemory)
	p.want("retain 3 1", ok) // a handle again, from an address within the mapping
	p.want("unmap 1 60", ok)
	p.wantUsed(60, 100)
	p.want("release 3", ok)
	p.wantUsed(0, 100)
	p.want("release 3", invalidValue)
	p.wantUsed(0, 100)
	c.wantHeld(0)
}

// TestMulticast: what is bound to a multicast object stays charged without a handle
// or a mapping, until it is unbound.
func TestMulticast(t *testing.T) {
	t.Parallel()
	c := newLinkedContainer(t, 0, share{0, 100})
	p := c.start()
	p.want("multicast 9 60", ok)
	p.wantUsed(0, 100)
	p.do("create 1 30 0", "map 1 30", "bind 9 1 30", "bind_mapped 9 1 30", "release 1", "unmap 1 30")
	p.wantUsed(30, 100)
	p.want("create 2 72 0", outOfMemory)
	p.want("unbind 9 30 30", ok)
	p.wantUsed(30, 100)
	p.want("unbind 9 0 30", ok)
	p.wantUsed(0, 100)
	p.want("create 2 100 0", ok)
	c.wantHeld(100)
	p.want("release 2", ok)

	// An object that goes lets go of what is bound to it.
	p.do("create 1 60 0", "bind 9 1 60", "release 1")
	p.wantUsed(60, 100)
	p.want("release 9", ok)
	p.wantUsed(0, 100)
	p.want("create 2 100 0", ok)
	c.wantHeld(100)
}

// TestMulticastWaits: a binding that waits in the driver for a device that another thread
// has yet to add keeps that thread from nothing, and what it binds stays charged.
func TestMulticastWaits(t *testing.T) {
	t.Parallel()
	c := newLinkedContainer(t, 0, share{0, 100}, share{0, 100})
	p := c.start()
	p.do("create 1 60 0", "bind_awaited 9 1 60")
	p.wantUsed(60, 100)
	p.want("release 1", ok)
	p.wantUsed(60, 100)
	p.want("create 2 60 0", outOfMemory)
	p.want("unbind 9 0 60", ok)
	p.wantUsed(0, 100)
	c.wantHeld(0)
}

// TestPools: what was allocated from a destroyed pool stays charged until it is
// freed, by whichever call.
func TestPools(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.do("pool 1 0", "from_pool 1 30 1 0", "from_pool 2 30 1 0")
	p.want("from_pool 3 60 1 0", outOfMemory)
	p.want("destroy_pool 1", ok)
	p.wantUsed(60, 100)
	p.want("free_async 1 0", ok)
	p.wantUsed(30, 100)
	p.want("free 2", ok)
	p.wantUsed(0, 100)
	p.want("async 1 100 0", ok)
	p.want("alloc 2 1", outOfMemory)
	p.do("free 1", "alloc 2 60", "free_async 2 0")
	p.wantUsed(0, 100)
	c.wantHeld(0)
}

// TestNeed: what was charged at a refusal and what was refused are kept, the most of them, and
// nothing of what fits.
func TestNeed(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	for _, step := range []struct {
		call string
		want int
		need uint64
	}{
		{"alloc 1 90", ok, 0},
		{"alloc 2 50", outOfMemory, 140 * mib},
		{"alloc 2 20", outOfMemory, 140 * mib},
		{"alloc 2 10", ok, 140 * mib},
		{"alloc 3 41", outOfMemory, 141 * mib},
		{"alloc 3 8796093022208", outOfMemory, layout.MaxMemoryBytes},
	} {
		p.want(step.call, step.want)
		if need := c.usage().Devices[0].NeedBytes; need != step.need {
			t.Errorf("after %s %d bytes are needed, want %d", step.call, need, step.need)
		}
	}
}

// TestPoolThatKeeps: what a pool keeps of what was freed stays charged, is charged
// once when it is used again, and is given back for whatever else needs it.
func TestPoolThatKeeps(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.do("pool 1 0", "from_pool 1 60 1 0", "free_async 1 0")
	p.wantUsed(60, 100)
	for range 3 {
		p.want("from_pool 1 30 1 0", ok)
		p.wantUsed(60, 100)
		p.want("free_async 1 0", ok)
	}
	p.want("from_pool 1 80 1 0", ok)
	p.wantUsed(80, 100)
	p.want("from_pool 2 21 1 0", outOfMemory)
	p.want("free_async 1 0", ok)
	q := c.start()
	q.want("alloc 1 21", outOfMemory) // only the process itself can make its pool give back
	if refused := c.usage().Devices[0].MemoryRefusals; refused != 2 {
		t.Errorf("%d refusals counted, want 2", refused)
	}
	p.want("alloc 2 90", ok)
	p.wantUsed(90, 100)
	p.do("free 2", "from_pool 1 40 1 0", "free_async 1 0", "async 3 90 0", "trim_pool 1")
	p.wantUsed(90, 100)
	if held, refused := c.held(0), c.usage().Devices[0].MemoryRefusals; held != 90 || refused != 2 {
		t.Errorf("the device holds %d MiB, %d requests were refused, want 90 and 2", held, refused)
	}
}

// TestPoolsGiveBack: whatever needs the memory that a pool keeps gets it.
func TestPoolsGiveBack(t *testing.T) {
	t.Parallel()
	for name, needs := range map[string][]string{
		"graph":       {"graph_alloc 1 60 0 1", "graph_launch 1 0"},
		"upload":      {"graph_alloc 1 60 0 1", "graph_upload 1 0"},
		"instantiate": {"graph_alloc 1 60 0 3"},
		"module":      {"module 1 60"},
		"kernel":      {"lazy_module 1 60", "function 1"},
		"array":       {"array 1 1024 1024 4 0"},
		"import":      {"external 1 60"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newContainer(t, share{0, 100}).start()
			p.do("pool 1 0", "from_pool 1 60 1 0", "free_async 1 0")
			p.wantUsed(60, 100)
			for _, call := range needs {
				p.want(call, ok)
			}
		})
	}
}

// TestSmallAllocations: what the driver takes for a byte is charged.
func TestSmallAllocations(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1})
	p := c.start()
	for i := range 2048 {
		p.want(fmt.Sprintf("alloc_bytes %d 1", i), ok)
	}
	p.want("alloc_bytes 5000 1", outOfMemory)
	if held := c.heldBytes(0); held != mib {
		t.Errorf("the device holds %d bytes, want 1 MiB", held)
	}
}

// TestUnknownPointers: what the library doesn't know is the driver's to answer,
// and a second free changes nothing.
func TestUnknownPointers(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.do("alloc 1 60", "free 1")
	p.want("free 1", invalidValue)
	p.want("free 9", ok) // NULL
	p.wantUsed(0, 100)
	p.want("alloc 1 101", outOfMemory)
	p.want("alloc_bytes 1 -1", outOfMemory) // no counter wraps
	p.want("alloc_bytes 1 0", invalidValue)
	p.wantUsed(0, 100)
}

// TestDevices: devices have their own limits; memory is charged to the device of
// the allocation, not of the thread; a device without a share gives nothing.
func TestDevices(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100}, share{0, 50}, share{})
	p := c.start()
	p.want("create 1 60 1", outOfMemory) // device 1, from a thread on device 0
	p.want("create 1 50 1", ok)
	p.wantUsed(0, 100)
	p.do("primary 1 1", "current 1")
	p.wantUsed(50, 50)
	p.want("total 1", ok)
	p.want("primary 2 2", notPermitted)
	p.want("context 2 2", notPermitted)
	p.want("create 1 1 2", notPermitted)
	p.want("pool 2 2", notPermitted)
	p.want("total 2", notPermitted)
	p.want("primary 3 3", noDevice)
	if c.held(0) != 0 || c.held(1) != 50 || c.held(2) != 0 {
		t.Errorf("the devices hold %d, %d and %d MiB, want 0, 50 and 0", c.held(0), c.held(1), c.held(2))
	}
}

// TestContexts: a context takes its memory with it, whoever destroys it how.
func TestContexts(t *testing.T) {
	t.Parallel()
	for name, calls := range map[string][2]string{
		"destroyed": {"context 1 0", "destroy_context 1"},
		"released":  {"primary 1 1", "release_primary 1"},
		"reset":     {"primary 1 1", "reset_primary 1"},
	} {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, share{0, 100}, share{0, 100})
			p := c.start()
			p.do("alloc 1 10", calls[0], "current 1", "alloc 2 60", "array 3 1024 1024 0 0 0", calls[1], "current 0")
			p.wantUsed(10, 100)
			if u := c.usage(); u.Devices[0].UsedBytes+u.Devices[1].UsedBytes != 10*mib {
				t.Errorf("counters: %+v", u.Devices)
			}
		})
	}
}

// TestNoContext: without a context the driver's own error comes back.
func TestNoContext(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.startRaw("libvgpu-test.so")
	p.want("init", ok)
	p.want("alloc 1 1", noContext)
	p.want("info", noContext)
}
