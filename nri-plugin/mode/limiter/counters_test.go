// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// mounted lists the mounts below a folder.
func mounted(t *testing.T, dir string) (found []string) {
	t.Helper()
	all, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
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
	must(t, unix.Stat(at, &info))
	if info.Blocks*512 > 2*int64(os.Getpagesize()) || info.Size != layout.CountersBytes {
		t.Errorf("untouched they have %d bytes of %d", info.Blocks*512, info.Size)
	}
	var system unix.Statfs_t
	must(t, unix.Statfs(at, &system))
	page := int64(os.Getpagesize())
	if most := (layout.CountersBytes + page - 1) / page; system.Type != unix.TMPFS_MAGIC || int64(system.Blocks) != most {
		t.Errorf("on file system %x of %d blocks, want a tmpfs of %d", system.Type, system.Blocks, most)
	}
	file, err := os.OpenFile(at, os.O_WRONLY, 0)
	must(t, err)
	defer func() { must(t, file.Close()) }()
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
		must(t, os.Mkdir(run.scratch(), 0o700))
		must(t, unix.Mount("vernier-counters", run.scratch(), "tmpfs", 0, "size=4096"))
		must(t, end(next, container("1")))
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
		must(t, unix.Stat(inject(t, l, c).counters(), &info))
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
	all, err := os.ReadFile("/proc/meminfo")
	must(t, err)
	for line := range strings.Lines(string(all)) {
		var n int64
		if name, rest, _ := strings.Cut(line, ":"); name == "Shmem" || name == "Slab" || name == "Percpu" {
			_, err := fmt.Sscan(rest, &n)
			must(t, err)
			sum += n
		}
	}
	return sum
}
