// SPDX-License-Identifier: Apache-2.0

package audit

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"
)

// Operations of FUSE.
const (
	fuseLookup  = 1
	fuseForget  = 2
	fuseGetattr = 3
	fuseOpen    = 14
	fuseInit    = 26
)

// tenantsFiles mounts a file system with one file, and counts who asks it for the file's
// attributes. A tenant's would not answer.
func tenantsFiles(t *testing.T) (dir string, asked *atomic.Int32) {
	t.Helper()
	dir, asked = t.TempDir(), &atomic.Int32{}
	fuse, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Skipf("needs FUSE: %v", err)
	}
	if err := unix.Mount("test", dir, "fuse", 0, "rootmode=40000,user_id=0,group_id=0,fd="+strconv.Itoa(fuse)); err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH|unix.MNT_FORCE); err != nil {
			t.Error(err)
		}
		<-served
		_ = unix.Close(fuse)
	})
	attributes := func(mode uint32) []byte {
		a := make([]byte, 88)
		binary.NativeEndian.PutUint32(a[60:], mode)
		binary.NativeEndian.PutUint32(a[64:], 1) // links
		return a
	}
	go func() {
		defer close(served)
		for in := make([]byte, 1<<17); ; {
			n, err := unix.Read(fuse, in)
			if err == unix.EINTR || err == unix.ENOENT {
				continue
			}
			if err != nil || n < 40 {
				return // unmounted
			}
			var answer []byte
			failed := int32(0)
			switch node := binary.NativeEndian.Uint64(in[16:]); binary.NativeEndian.Uint32(in[4:]) {
			case fuseInit:
				answer = make([]byte, 64)
				binary.NativeEndian.PutUint32(answer, 7)
				binary.NativeEndian.PutUint32(answer[4:], 31)
				binary.NativeEndian.PutUint32(answer[20:], 4096) // a write at most
			case fuseLookup: // what it says is not to be kept
				answer = append(make([]byte, 40), attributes(unix.S_IFREG|0o644)...)
				binary.NativeEndian.PutUint64(answer, 2)
			case fuseGetattr:
				mode := uint32(unix.S_IFDIR | 0o755)
				if node != 1 {
					asked.Add(1)
					mode = unix.S_IFREG | 0o644
				}
				answer = append(make([]byte, 16), attributes(mode)...)
			case fuseOpen:
				answer = make([]byte, 16)
			case fuseForget:
				continue
			default:
				failed = -int32(unix.ENOSYS)
			}
			out := make([]byte, 16, 16+len(answer))
			binary.NativeEndian.PutUint32(out, uint32(16+len(answer)))
			binary.NativeEndian.PutUint32(out[4:], uint32(failed))
			copy(out[8:], in[8:16])
			_, _ = unix.Write(fuse, append(out, answer...))
		}
	}()
	return dir, asked
}

// A file system of a tenant's, or of a server that has gone, is asked nothing: it could
// hold up the look at everybody.
func TestHostileFileSystemIsNotAsked(t *testing.T) {
	m := newMachine(t)
	dir, asked := tenantsFiles(t)
	c := m.runs("plain")
	c.do("open", filepath.Join(dir, "file"), strconv.Itoa(unix.O_RDONLY))
	asked.Store(0)
	m.looks()
	if n := asked.Load(); n != 0 || m.round.readings[id("plain")] == nil {
		t.Errorf("it was asked %d times", n)
	}
	c.do("close")
	// What the test rests on.
	if _, err := os.Stat(filepath.Join(dir, "file")); err != nil || asked.Load() == 0 {
		t.Errorf("it counts nothing: %v", err)
	}
}
