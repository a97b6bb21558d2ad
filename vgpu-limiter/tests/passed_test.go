// SPDX-License-Identifier: Apache-2.0

package tests

import "testing"

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
	p.want("create 1 60 0", ok)
	p.want("export 1 1", ok)
	p.want("export 2 1", ok)
	p.want("close 1", ok)
	p.want("release 1", ok)
	c.wantHeld(60)
	p.wantUsed(60, 100)
	p.want("create 2 60 0", outOfMemory)
	c.wantHeld(60)
	p.want("close 2", ok)
	p.want("create 2 60 0", ok)
	p.want("release 2", ok)
	p.wantUsed(0, 100)

	q.want("listen 7", ok)
	p.want("create 1 60 0", ok)
	p.want("export 1 1", ok)
	p.want("release 1", ok)
	p.want("send 1 7", ok) // closed here, and nobody has taken it out of the socket
	p.wantUsed(60, 100)
	c.wantHeld(60)
	q.want("receive 3", ok)
	p.wantUsed(60, 100)
	q.want("close 3", ok)
	p.wantUsed(0, 100)
	c.wantHeld(0)

	p.want("create 1 60 0", ok)
	p.want("export 1 1", ok)
	p.want("release 1", ok)
	p.want("send 1 7", ok)
	q.want("receive 3", ok)
	q.want("import 3", ok)
	q.want("map 3 60", ok)
	q.want("close 3", ok)
	p.wantUsed(60, 100) // the importer's now
	q.wantUsed(60, 100)
	c.wantHeld(60)
	p.want("alloc 5 60", outOfMemory)
	q.want("release 3", ok)
	q.want("unmap 3 60", ok)
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
	p.want("create 1 60 0", ok)
	p.want("map 1 60", ok)
	p.want("export 1 1", ok)
	p.want("release 1", ok)
	p.want("unmap 1 60", ok)
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

	p.want("create 1 60 0", ok)
	p.want("map 1 60", ok)
	p.want("export 1 1", ok)
	p.want("close 1", ok)
	p.want("release 1", ok)
	p.wantUsed(60, 100)
	p.want("unmap 1 60", ok)
	p.wantUsed(0, 100)
	c.wantHeld(0)
}
