// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// clock is the other side of clock/clock.c: it takes part as the first thread, and
// nobody else runs while it doesn't sleep.
type clock struct {
	path string
	b    []byte
}

const (
	clockThreads = 8  // offset of how many threads ever took part
	clockThread  = 16 // offset of the first of them
	clockBytes   = 16 * 65
	clockBegins  = 1000 * time.Second
)

func newClock(t *testing.T) *clock {
	t.Helper()
	c := &clock{path: filepath.Join(t.TempDir(), "clock")}
	header := make([]byte, clockBytes)
	binary.LittleEndian.PutUint64(header, uint64(clockBegins))
	header[clockThreads] = 1
	err := os.WriteFile(c.path, header, 0o600)
	var f *os.File
	if err == nil {
		f, err = os.OpenFile(c.path, os.O_RDWR, 0)
	}
	if err == nil {
		defer func() { _ = f.Close() }()
		c.b, err = unix.Mmap(int(f.Fd()), 0, clockBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	}
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// environment is what puts a program on the clock: one that only reads it, or one
// whose threads take part.
func (c *clock) environment(watches bool) []string {
	env := []string{"CLOCK=" + c.path}
	if watches {
		env = append(env, "CLOCK_WATCH=1")
	}
	return env
}

func (c *clock) long(offset int) *atomic.Uint64 {
	return (*atomic.Uint64)(unsafe.Pointer(&c.b[offset]))
}
func (c *clock) word(offset int) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&c.b[offset]))
}
func (c *clock) now() time.Duration { return time.Duration(c.long(0).Load()) }

// await returns when so many threads take part.
func (c *clock) await(threads int) {
	for int(c.word(clockThreads).Load()) <= threads {
		runtime.Gosched()
	}
}

// over: all others have ended.
func (c *clock) over() bool {
	for i := 1; i < int(c.word(clockThreads).Load()); i++ {
		if c.long(clockThread+16*i).Load() != math.MaxUint64 {
			return false
		}
	}
	return true
}

// sleep lets the others run until then.
func (c *clock) sleep(until time.Duration) {
	c.long(clockThread).Store(uint64(until))
	first, n := 0, min(64, int(c.word(clockThreads).Load()))
	for i := range n {
		if c.long(clockThread+16*i).Load() < c.long(clockThread+16*first).Load() {
			first = i
		}
	}
	if first != 0 {
		word := c.word(clockThread + 16*first + 8)
		word.Store(1)
		_, _, _ = unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(word)), 1, 1, 0, 0, 0)
		own := c.word(clockThread + 8)
		for own.Swap(0) == 0 {
			most := unix.Timespec{Sec: 100}
			_, _, err := unix.Syscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(own)), 0, 0, uintptr(unsafe.Pointer(&most)), 0, 0)
			if err == unix.ETIMEDOUT {
				panic("nobody goes on: a thread waits for another one by other means than the clock")
			}
		}
	}
	if until > c.now() {
		c.long(0).Store(uint64(until))
	}
}
