// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"errors"
	"fmt"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
)

// wantHeld compares what the device holds with so many MiB.
func (c *container) wantHeld(mib int) {
	c.t.Helper()
	if held := c.held(0); held != mib {
		c.t.Errorf("the device holds %d MiB, want %d", held, mib)
	}
}

// TestMemoryOfADescriptor: memory whose handle is released stays charged as long as a
// descriptor of it is open, by this process or by another that was sent it, and is
// uncharged once none is.
func TestMemoryOfADescriptor(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p, q := c.start(), c.start()
	p.do("create 1 60 0", "export 1 1", "export 2 1", "close 1", "release 1")
	c.wantHeld(60)
	p.wantUsed(60, 100)
	p.want("create 2 60 0", outOfMemory)
	c.wantHeld(60)
	p.do("close 2", "create 2 60 0", "release 2")
	p.wantUsed(0, 100)

	q.want("listen 7", ok)
	p.do("create 1 60 0", "export 1 1", "release 1")
	p.want("send 1 7", ok) // closed here, and nobody has taken it out of the socket
	p.wantUsed(60, 100)
	c.wantHeld(60)
	q.want("receive 3", ok)
	p.wantUsed(60, 100)
	q.want("close 3", ok)
	p.wantUsed(0, 100)
	c.wantHeld(0)

	p.do("create 1 60 0", "export 1 1", "release 1", "send 1 7")
	q.do("receive 3", "import 3", "map 3 60", "close 3")
	p.wantUsed(60, 100) // the importer's now
	q.wantUsed(60, 100)
	c.wantHeld(60)
	p.want("alloc 5 60", outOfMemory)
	q.do("release 3", "unmap 3 60")
	q.want("alloc 3 1000", outOfMemory) // what others have left is taken off for who needs it
	q.wantUsed(0, 100)
	p.want("alloc 5 100", ok)
	c.wantHeld(100)
}

// TestDescriptorsOfMappedMemory: of what keeps memory the last counts, whichever that
// is, and importing it back doesn't charge it again.
func TestDescriptorsOfMappedMemory(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.do("create 1 60 0", "map 1 60", "export 1 1", "release 1", "unmap 1 60")
	p.wantUsed(60, 100)
	p.want("import 1", ok)
	p.wantUsed(60, 100)
	p.want("close 1", ok)
	p.wantUsed(60, 100)
	c.wantHeld(60)
	p.want("release 1", ok)
	p.want("alloc 2 1000", outOfMemory)
	p.wantUsed(0, 100)
	c.wantHeld(0)

	p.do("create 1 60 0", "map 1 60", "export 1 1", "close 1", "release 1")
	p.wantUsed(60, 100)
	p.want("unmap 1 60", ok)
	p.wantUsed(0, 100)
	c.wantHeld(0)
}

// TestDescriptorOutlivesItsMaker: memory whose maker was killed stays charged while a
// descriptor of it is in a socket, or in a process that hasn't imported it; whoever
// imports it isn't charged once more; and once nobody has it, it isn't charged.
func TestDescriptorOutlivesItsMaker(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	q, other := c.start(), c.start()
	q.want("listen 7", ok)
	pass := func(end func(p *process)) {
		t.Helper()
		p := c.start()
		p.do("create 1 60 0", "export 1 1")
		p.want("export 2 1", ok) // another of the same memory goes with its maker
		p.want("send 1 7", ok)
		end(p)
		p.kill()
		other.want("alloc 1 41", outOfMemory)
		other.wantUsed(60, 100)
		c.wantHeld(60)
		if u := c.usage(); u.Devices[0].UsedBytes != 60*mib {
			t.Errorf("the counters say %d bytes, want 60 MiB", u.Devices[0].UsedBytes)
		}
	}
	released := func(p *process) { p.want("release 1", ok) }
	living := func(*process) {}

	for _, end := range []func(p *process){living, released} {
		pass(end)
		q.want("receive 3", ok)
		other.want("alloc 1 41", outOfMemory)
		q.want("close 3", ok)
		other.wantUsed(0, 100)
		c.wantHeld(0)

		pass(end)
		q.do("receive 3", "import 3", "map 3 60")
		q.wantUsed(60, 100)
		q.want("close 3", ok)
		other.want("alloc 1 41", outOfMemory)
		other.wantUsed(60, 100)
		q.want("release 3", ok)
		other.want("alloc 1 41", outOfMemory)
		c.wantHeld(60)
		q.want("unmap 3 60", ok)
		other.want("alloc 1 100", ok)
		c.wantHeld(100)
		other.want("free 1", ok)
	}

	pass(living) // and nobody ever takes it out of the socket
	q.kill()
	other.want("alloc 1 100", ok)
	c.wantHeld(100)
}

// TestDescriptorsAreLookedAtTogether: one look at all descriptors that keep memory
// opens their file once.
func TestDescriptorsAreLookedAtTogether(t *testing.T) {
	t.Parallel()
	const descriptors = 20
	c := newContainer(t, share{0, 100})
	p := c.start()
	for i := range descriptors {
		p.do(fmt.Sprintf("create %d 2 0", i), fmt.Sprintf("export %d %d", i, i), fmt.Sprintf("release %d", i))
	}
	opened := c.opened(c.state + ".passed")
	p.wantUsed(2*descriptors, 100)
	if n := opened(); n != 1 {
		t.Errorf("the descriptors' file was opened %d times by one cuMemGetInfo, want 1", n)
	}
	for i := range descriptors {
		p.want(fmt.Sprintf("close %d", i), ok)
	}
	p.wantUsed(0, 100)
	opened()
	p.wantUsed(0, 100)
	if n := opened(); n != 0 {
		t.Errorf("the file was opened %d times where no descriptor is left, want 0", n)
	}
}

// opened counts how often a file is opened, between one call of what it returns and
// the next.
func (c *container) opened(path string) func() int {
	c.t.Helper()
	fd := must.Get(unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK))(c.t)
	c.t.Cleanup(func() { _ = unix.Close(fd) })
	// With the closing in between: events that are alike and follow each other count once.
	must.Get(unix.InotifyAddWatch(fd, path, unix.IN_OPEN|unix.IN_CLOSE))(c.t)
	return func() int {
		events, n := make([]byte, 1<<16), 0
		size, err := unix.Read(fd, events)
		if err != nil && !errors.Is(err, unix.EAGAIN) {
			c.t.Fatal(err)
		}
		for at := 0; at < size; at += unix.SizeofInotifyEvent + int(binary.LittleEndian.Uint32(events[at+12:])) {
			if binary.LittleEndian.Uint32(events[at+4:])&unix.IN_OPEN != 0 {
				n++
			}
		}
		return n
	}
}
