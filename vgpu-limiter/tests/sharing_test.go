// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"strings"
	"testing"
)

// sharing is one way in which an owner lets another process use 60 MiB: what each
// of them calls, in this order, and how each lets go.
type sharing struct {
	owner, importer string // before the pass: to make it, to be ready for it
	pass            []string
	open            []string
	free, close     string
}

func sharings() map[string]sharing {
	return map[string]sharing{
		"IPC": {owner: "alloc 1 60", pass: []string{"ipc_get 7 1"}, open: []string{"ipc_open 2 7"},
			free: "free 1", close: "ipc_close 2"},
		"virtual": {owner: "create 1 60 0", importer: "listen 7", pass: []string{"export 1 1", "send 1 7"},
			open: []string{"receive 2", "import 2", "close 2", "map 2 60"}, free: "release 1", close: "unmap 2 60"},
		"fabric": {owner: "create_fabric 1 60 0", pass: []string{"export_fabric 7 1"},
			open: []string{"import_fabric 2 7", "map 2 60"}, free: "release 1", close: "unmap 2 60"},
		"pool": {owner: "from_pool 1 60 1 0", importer: "listen 7",
			pass: []string{"export_pool 1 1", "send 1 7", "export_pointer 8 1"},
			open: []string{"receive 2", "import_pool 2", "import_pointer 2 8 2"}, close: "free_async 2 0"},
	}
}

// isMapped reports whether memory has handles and mappings, which keep it each.
func (s sharing) isMapped() bool { return strings.HasPrefix(s.close, "unmap") }

func (s sharing) run(c *container, d *container) (owner, importer *process) {
	owner, importer = c.start(), d.start()
	for _, p := range []*process{owner, importer} {
		p.want("directory "+c.dir, ok)
	}
	owner.do("pool 1 0", s.owner)
	if s.importer != "" {
		importer.want(s.importer, ok)
	}
	for _, line := range s.pass {
		owner.want(line, ok)
	}
	return owner, importer
}

// TestSharedInAContainer: memory that processes of a container share is charged
// once: to its owner, and to those who still use it when that has died or freed it.
func TestSharedInAContainer(t *testing.T) {
	t.Parallel()
	for name, s := range sharings() {
		for _, ends := range []string{"closed first", "freed first", "killed"} {
			if ends == "freed first" && s.free == "" {
				continue // a pool's memory must not be freed under its importers
			}
			t.Run(name+" "+ends, func(t *testing.T) {
				c := newLinkedContainer(t, 0, share{0, 100})
				owner, importer := s.run(c, c)
				for _, line := range s.open {
					importer.want(line, ok)
				}
				importer.wantUsed(60, 100)
				if s.isMapped() { // the mapping keeps it
					importer.want("release 2", ok)
				}
				switch ends {
				case "killed":
					owner.kill()
				case "freed first":
					owner.want(s.free, ok)
				case "closed first":
					importer.want(s.close, ok)
					importer.wantUsed(60, 100)
					importer.want("alloc 3 41", outOfMemory)
					owner.kill()
					importer.want("alloc 3 100", ok)
					return
				}
				third := c.start()
				third.want("alloc 1 41", outOfMemory)
				third.wantUsed(60, 100)
				if u := c.usage(); u.Devices[0].UsedBytes != 60*mib || c.held(0) != 60 {
					t.Errorf("the counters say %d bytes, the device holds %d MiB, want 60 MiB", u.Devices[0].UsedBytes, c.held(0))
				}
				third.want("alloc 1 40", ok)
				importer.want(s.close, ok)
				third.want("alloc 2 60", ok)
				c.wantHeld(100)
			})
		}
	}
}

// TestSharedAndOpenedAgain: on a driver that counts how often a process has opened a
// handle, the process holds the memory until it has closed it as often.
func TestSharedAndOpenedAgain(t *testing.T) {
	t.Parallel()
	c := newBareContainer(t, share{0, 100})
	owner, importer := c.start(), c.start()
	owner.do("alloc 1 60", "ipc_get 7 1")
	for range 3 {
		importer.want("ipc_open 2 7", ok)
	}
	importer.want("ipc_close 2", ok)
	owner.want("free 1", ok)
	for range 2 {
		owner.want("alloc 1 41", outOfMemory)
		owner.wantUsed(60, 100)
		importer.want("ipc_close 2", ok)
	}
	owner.want("alloc 1 100", ok)
	importer.want("ipc_close 2", invalidValue)
}

// TestSharedByManyImporters: whoever of them is left holds it, and only once.
func TestSharedByManyImporters(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	owner := c.start()
	owner.do("alloc 1 60", "ipc_get 7 1")
	var importers []*process
	for range 5 {
		p := c.start()
		p.want("ipc_open 2 7", ok)
		importers = append(importers, p)
	}
	late := c.start()
	late.want("ipc_open 2 7", outOfMemory) // one too many to be written down: charged by itself
	owner.kill()
	for i, p := range importers {
		late.want("alloc 1 41", outOfMemory)
		late.wantUsed(60, 100)
		if i%2 == 0 {
			p.kill()
		} else {
			p.want("ipc_close 2", ok)
		}
	}
	late.want("alloc 1 100", ok)
	c.wantHeld(100)
}

// TestPassedToManyImporters: one too many to be written down is charged by itself, before
// it maps anything, and stays so when the others have gone.
func TestPassedToManyImporters(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 130})
	owner := c.start()
	owner.want("create 1 60 0", ok)
	pass := func(to int) *process {
		p := c.start()
		p.want(fmt.Sprintf("listen %d", to), ok)
		owner.do(fmt.Sprintf("export %d 1", to), fmt.Sprintf("send %d %d", to, to))
		p.want("receive 3", ok)
		return p
	}
	var importers []*process
	for i := range 5 {
		p := pass(10 + i)
		p.do("import 3", "close 3")
		importers = append(importers, p)
	}
	late := pass(20)
	late.want("alloc 1 11", ok)
	late.want("import 3", outOfMemory)
	late.wantUsed(71, 130)
	late.do("free 1", "import 3", "close 3")
	late.wantUsed(120, 130)
	owner.kill()
	for _, p := range importers {
		p.kill()
	}
	late.want("alloc 1 71", outOfMemory)
	late.wantUsed(60, 130)
	c.wantHeld(60)
	late.want("map 3 60", ok)
	late.wantUsed(60, 130)
	late.do("release 3", "unmap 3 60")
	late.wantUsed(0, 130)
}

// TestSharedFromOutside: what nobody in the container is charged for is charged to
// the process that opens it.
func TestSharedFromOutside(t *testing.T) {
	t.Parallel()
	for name, s := range sharings() {
		t.Run(name, func(t *testing.T) {
			c := newLinkedContainer(t, 0, share{0, 100})
			neighbour := c.neighbour(share{0, 100})
			_, importer := s.run(c, neighbour)
			importer.want("alloc 1 41", ok)
			for i, line := range s.open {
				if i < len(s.open)-1 {
					importer.want(line, ok)
				} else {
					importer.want(line, outOfMemory)
				}
			}
			importer.wantUsed(41, 100)
			importer.do("free 1", s.open[len(s.open)-1])
			importer.wantUsed(60, 100)
			importer.want("alloc 1 41", outOfMemory)
			if s.isMapped() {
				importer.want("release 2", ok)
			}
			importer.want(s.close, ok)
			importer.wantUsed(0, 100)
		})
	}
}

// TestExternalMemory: memory of another driver is charged at its size.
func TestExternalMemory(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.want("external 1 60", ok)
	p.want("external 2 41", outOfMemory)
	p.wantUsed(60, 100)
	p.want("destroy_external 1", ok)
	p.wantUsed(0, 100)
}

// TestManyShared: more allocations are shared than there are records, one after the other: those of the dead and the freed are used again.
func TestManyShared(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 1000})
	for range 3 {
		p := c.start()
		for i := range 300 {
			p.do(fmt.Sprintf("alloc %d 1", i), fmt.Sprintf("ipc_get 7 %d", i))
			if i%2 == 0 {
				p.want(fmt.Sprintf("free %d", i), ok)
			}
		}
		q := c.start()
		q.want("ipc_open 2 7", ok)
		q.wantUsed(150, 1000)
		p.kill()
		q.want("ipc_close 2", ok)
		q.kill()
	}
}

// TestSharedWhileAContextEnds: a thread that shares memory and one that destroys a context
// with memory of others don't wait for each other.
func TestSharedWhileAContextEnds(t *testing.T) {
	t.Parallel()
	const handles = 40
	c := newContainer(t, share{0, 1000})
	owner, importer := c.start(), c.start()
	for i := range handles {
		owner.do(fmt.Sprintf("alloc_bytes %d 1", i), fmt.Sprintf("ipc_get %d %d", i, i))
	}
	importer.want(fmt.Sprintf("share_beside %d 4000", handles), ok)
}
