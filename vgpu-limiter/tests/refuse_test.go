// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// wantRefused compares what a process that is refused gets: CUDA's own error from
// every call, and one line that says why.
func wantRefused(t *testing.T, p *process, why string) {
	t.Helper()
	for _, call := range []string{"init", "alloc 1 1", "launch 0 10 1", "total 0", "init"} {
		p.want(call, notPermitted)
	}
	if said := p.end(); strings.Count(said, "\n") != 1 || !strings.Contains(said, why) {
		t.Errorf("said %q, want one line with %q", said, why)
	}
}

// TestNoSlotLeft: with as many processes as there can be, the next is refused, and
// the one after that isn't once one of them has ended.
func TestNoSlotLeft(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{30, 100})
	// This process stands for all the others.
	file := must.Get(os.OpenFile(filepath.Join(c.dir, "counters"), os.O_RDWR, 0))(t)
	defer func() { _ = file.Close() }()
	all := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Len: layout.MaxProcesses}
	must.Do(t, unix.FcntlFlock(file.Fd(), unix.F_SETLK, &all))
	wantRefused(t, c.startRaw("libvgpu-test.so"), "every slot is taken")
	last := unix.Flock_t{Type: unix.F_UNLCK, Whence: io.SeekStart, Start: layout.MaxProcesses - 1, Len: 1}
	must.Do(t, unix.FcntlFlock(file.Fd(), unix.F_SETLK, &last))
	p := c.start()
	p.want("alloc 1 100", ok)
	p.want("alloc 2 1", outOfMemory)
}

// TestForbiddenFiles: files that the process may not open refuse it as missing
// ones do. (Root may open everything, so this takes another user.)
func TestForbiddenFiles(t *testing.T) {
	t.Parallel()
	needRoot(t)
	nobody := &syscall.Credential{Uid: 12345, Gid: 54321}
	for _, file := range []string{"limits", "counters"} {
		c := newContainer(t, share{30, 100})
		p := c.prepare("libvgpu-test.so")
		c.asUser(p.cmd, nobody)
		must.Do(t, os.Chmod(filepath.Join(p.cmd.Dir, file), 0o400))
		p.begin()
		wantRefused(t, p, file+": Permission denied")
	}
}

// TestFolderForFile: a folder in place of a file.
func TestFolderForFile(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"limits", "counters"} {
		c := newContainer(t, share{30, 100})
		path := filepath.Join(c.dir, file)
		must.Do(t, os.Remove(path))
		must.Do(t, os.Mkdir(path, 0o755))
		wantRefused(t, c.startRaw("libvgpu-test.so"), file)
	}
}
