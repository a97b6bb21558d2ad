// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// mounted lists the mounts below a folder.
func mounted(t *testing.T, dir string) (found []string) {
	t.Helper()
	all := must.Get(os.ReadFile("/proc/self/mountinfo"))(t)
	for line := range strings.Lines(string(all)) {
		if at := strings.Fields(line)[4]; strings.HasPrefix(at, dir+"/") {
			found = append(found, at)
		}
	}
	return found
}

func needsRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounts need root")
	}
}

// What a tenant writes into its counters takes none of the node's disk and no more than
// the layout has; untouched they take a page.
func TestHostileCountersFile(t *testing.T) {
	needsRoot(t)
	l := newLimiter(t, t.TempDir(), nil)
	at := inject(t, l, container("1")).counters()
	var info unix.Stat_t
	must.Do(t, unix.Stat(at, &info))
	if info.Blocks*512 > 2*int64(os.Getpagesize()) || info.Size != layout.CountersBytes {
		t.Errorf("untouched they have %d bytes of %d", info.Blocks*512, info.Size)
	}
	var system unix.Statfs_t
	must.Do(t, unix.Statfs(at, &system))
	page := int64(os.Getpagesize())
	if most := (layout.CountersBytes + page - 1) / page; system.Type != unix.TMPFS_MAGIC || int64(system.Blocks) != most {
		t.Errorf("on file system %x of %d blocks, want a tmpfs of %d", system.Type, system.Blocks, most)
	}
	file := must.Get(os.OpenFile(at, os.O_WRONLY, 0))(t)
	defer func() { must.Do(t, file.Close()) }()
	written := int64(0)
	for piece := make([]byte, 1<<20); written < 64<<20; {
		n, err := file.Write(piece)
		if written += int64(n); err != nil {
			if !errors.Is(err, unix.ENOSPC) {
				t.Errorf("writing past the end: %v", err)
			}
			break
		}
	}
	if written > layout.CountersBytes+page {
		t.Errorf("%d bytes were written where %d fit", written, layout.CountersBytes)
	}
}

// The counters are mounted as long as the run is there: over an agent's end, until the run
// has ended, its pod was released, or it is swept.
func TestCountersAreMountedAndGo(t *testing.T) {
	needsRoot(t)
	for name, end := range map[string]func(*Limiter, mode.Container) error{
		"ended":    func(l *Limiter, c mode.Container) error { return errors.Join(l.Ended(c), l.Release(podID)) },
		"released": func(l *Limiter, _ mode.Container) error { return l.Release(podID) },
		"swept": func(l *Limiter, _ mode.Container) error {
			return l.Sweep(func() []mode.Container { return nil })
		},
	} {
		dir := t.TempDir()
		run := inject(t, newLimiter(t, dir, nil), container("1"))
		if got := mounted(t, dir); len(got) != 1 || got[0] != run.counters() {
			t.Errorf("%s: mounts %v", name, got)
		}
		next := newLimiter(t, dir, nil) // another agent
		if got := mounted(t, dir); len(got) != 1 {
			t.Errorf("%s: after a restart %v", name, got)
		}
		// As a crash between the steps leaves it.
		must.Do(t, os.Mkdir(run.scratch(), 0o700))
		must.Do(t, unix.Mount("vernier-counters", run.scratch(), "tmpfs", 0, "size=4096"))
		must.Do(t, end(next, container("1")))
		if got := mounted(t, dir); len(got) != 0 {
			t.Errorf("%s: left %v", name, got)
		}
		if _, err := os.Stat(string(run)); name != "ended" && !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: the folder is left: %v", name, err)
		}
	}
}

// TestCountersMemory prints what the counters of 256 slices take while nobody has touched
// them, and holds what can be told exactly: two pages of data each at most.
func TestCountersMemory(t *testing.T) {
	needsRoot(t)
	l := newLimiter(t, t.TempDir(), nil)
	before, data := memory(t), int64(0)
	for i := range 256 {
		c := container(fmt.Sprint(i))
		c.Name = fmt.Sprintf("c-%d", i)
		var info unix.Stat_t
		must.Do(t, unix.Stat(inject(t, l, c).counters(), &info))
		data += info.Blocks * 512
	}
	t.Logf("data %d KiB; the machine's shared memory, slab and per-CPU memory: %+d KiB", data>>10, memory(t)-before)
	if data > 256*2*int64(os.Getpagesize()) {
		t.Errorf("%d bytes of data", data)
	}
}

// memory is what of the machine's memory the kernel has for files in memory and for itself,
// in KiB.
func memory(t *testing.T) (sum int64) {
	t.Helper()
	all := must.Get(os.ReadFile("/proc/meminfo"))(t)
	for line := range strings.Lines(string(all)) {
		var n int64
		if name, rest, _ := strings.Cut(line, ":"); name == "Shmem" || name == "Slab" || name == "Percpu" {
			must.Get(fmt.Sscan(rest, &n))(t)
			sum += n
		}
	}
	return sum
}

// Use is read from the counters of that run, and not from damaged ones.
func TestUsage(t *testing.T) {
	l := newLimiter(t, t.TempDir(), nil)
	c := container("1")
	if _, err := l.Usage(c); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("before its creation: %v", err)
	}
	dir := inject(t, l, c)
	if u, err := l.Usage(c); err != nil || len(u.Devices) != len(c.Grants) {
		t.Errorf("%+v, %v", u, err)
	}
	fewer := c
	fewer.Grants = c.Grants[:1]
	if _, err := l.Usage(fewer); err == nil {
		t.Error("counters of other devices are taken for the container's")
	}
	must.Do(t, os.Truncate(dir.counters(), 10))
	if _, err := l.Usage(c); err == nil {
		t.Error("damaged counters are read")
	}
}

// A tenant writes what it likes into its counters: figures that cannot be are not read.
func TestHostileFigures(t *testing.T) {
	l := newLimiter(t, t.TempDir(), nil)
	c := container("1")
	dir := inject(t, l, c)
	file := must.Get(os.OpenFile(dir.counters(), os.O_RDWR, 0))(t)
	defer func() { must.Do(t, file.Close()) }()
	content := must.Get(os.ReadFile(dir.counters()))(t)
	const headerBytes, devices = 64, 4096
	for name, damage := range map[string]func(b []byte){
		"devices": func(b []byte) { fill(b[headerBytes:devices], 0xff) },
		"all":     func(b []byte) { fill(b, 0xff) },
		"busy":    func(b []byte) { b[headerBytes+72+7] = 0x7f },
		"peak":    func(b []byte) { b[headerBytes+24+6] = 1 },
		"refused": func(b []byte) { b[headerBytes+8+7] = 1 },
	} {
		damaged := slices.Clone(content)
		damage(damaged)
		must.Get(file.WriteAt(damaged, 0))(t)
		if u, err := l.Usage(c); err == nil {
			t.Errorf("%s: read %+v", name, u)
		}
	}
	must.Get(file.WriteAt(content, 0))(t)
	if _, err := l.Usage(c); err != nil {
		t.Errorf("good counters: %v", err)
	}
	for _, size := range []int64{0, 1 << 62} {
		if err := file.Truncate(size); err != nil {
			continue
		}
		if _, err := l.Usage(c); err == nil {
			t.Errorf("counters of %d bytes are read", size)
		}
	}
}

func fill(b []byte, with byte) {
	for i := range b {
		b[i] = with
	}
}

// A process with very many locks on its counters holds nobody up.
func TestHostileLocks(t *testing.T) {
	l := newLimiter(t, t.TempDir(), nil)
	c := container("1")
	file := must.Get(os.OpenFile(inject(t, l, c).counters(), os.O_RDWR, 0))(t)
	defer func() { must.Do(t, file.Close()) }()
	// All slots claimed, and locks that are in the way of each question. They are of open
	// files, since a process is not asked about its own.
	claimed := make([]byte, 1024*576)
	for i := range 1024 {
		claimed[i*576] = 1
	}
	must.Get(file.WriteAt([]byte{0, 4, 0, 0}, 24))(t)
	must.Get(file.WriteAt(claimed, 4096))(t)
	for i := range int64(10000) {
		lock := unix.Flock_t{Type: unix.F_RDLCK, Start: 1<<40 + 2*i, Len: 1}
		must.Do(t, unix.FcntlFlock(file.Fd(), unix.F_OFD_SETLK, &lock))
	}
	began := time.Now()
	_, err := l.Usage(c)
	if took := time.Since(began); err == nil && took > 10*time.Second || took > time.Minute {
		t.Errorf("it took %v: %v", took, err)
	} else {
		t.Logf("%v: %v", took, err)
	}
}
