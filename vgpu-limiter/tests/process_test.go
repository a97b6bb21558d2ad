// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// TestThreads: eight threads racing for the last space get all of it, and not a
// byte more.
func TestThreads(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 777})
	p := c.start()
	if got := p.call("race 8"); got[0] != 777 {
		t.Errorf("the threads got %d MiB, want 777", got[0])
	}
	c.wantHeld(777)
}

// TestProcesses: processes of a container share its limit, and one that is
// killed frees what it held, for the counters' readers at once and for the
// others with the next call that needs it.
func TestProcesses(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	a, b := c.start(), c.start()
	a.want("alloc 1 60", ok)
	b.want("alloc 1 60", outOfMemory)
	b.want("alloc 1 40", ok)
	a.wantUsed(100, 100)
	a.kill()
	if u := c.usage(); u.Devices[0].UsedBytes != 40*mib || len(u.Processes) != 1 {
		t.Errorf("after the kill the counters say %+v", u)
	}
	b.want("alloc 2 61", outOfMemory)
	b.want("alloc 2 60", ok)
	c.start().wantUsed(100, 100)
}

// TestFork: a child of fork, which the driver refuses, leaves its parent's charges
// alone.
func TestFork(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.want("alloc 1 60", ok)
	p.want("fork", ok) // CUDA refuses the child; nothing is charged
	p.wantUsed(60, 100)
	p.want("free 1", ok)
	p.wantUsed(0, 100)
}

// TestExec: a program that becomes another one by exec has given its memory back,
// whether or not the new one uses CUDA.
func TestExec(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.want("alloc 1 60", ok)
	p.send("exec_self")
	p.do("init", "primary 0 0", "current 0")
	p.wantUsed(0, 100)
	p.want("alloc 1 100", ok)
	p.send("exec_cat")
	if got := p.echo("hello 1"); got != "hello 1" {
		t.Fatalf("cat answered %q", got)
	}
	q := c.start()
	q.want("alloc 1 100", ok)
	if p.echo("hello 2") != "hello 2" {
		t.Error("the process after exec is gone")
	}
}

// TestClosedDescriptors: a program that closes every descriptor, the library's
// as well, keeps its charges, and its files are not locked in place of ours.
func TestClosedDescriptors(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p, q := c.start(), c.start()
	p.do("alloc 1 60", "close_descriptors", "open_descriptors")
	q.want("alloc 1 60", outOfMemory)
	q.wantUsed(60, 100)
	p.want("alloc 2 41", outOfMemory)
	p.do("alloc 2 40", "free 1")
	q.want("alloc 1 60", ok)
	p.kill()
	q.want("alloc 2 40", ok)
}

// TestNoDescriptorLeft: a process that can't open a file any more takes nothing from
// one whose lock was lost with its descriptors.
func TestNoDescriptorLeft(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p, q := c.start(), c.start()
	p.do("alloc 1 60", "close_descriptors")
	q.want("use_up_descriptors", ok)
	q.want("alloc 1 41", outOfMemory)
	q.do("alloc 1 40", "free 1")
	p.want("alloc 2 40", ok)
	p.kill()
	q.want("alloc 1 100", ok) // it is seen to be gone all the same
}

// TestWithoutStandardOutput: a program that was started without standard input and
// output, as daemons are, writes its output into none of the library's files.
func TestWithoutStandardOutput(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	for _, closed := range []string{"<&- >&-", "<&-", ">&-", "<&- >&- 2>&-"} {
		cmd := c.command("libvgpu-test.so", "calls")
		demo := filepath.Join(c.sim, "cudademo")
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", "exec " + demo + " --alloc 1 " + closed}
		_ = cmd.Run() // that it can't write is an error to it
		c.start().wantUsed(0, 100)
	}
}

// TestCancelledThreads: a thread that is cancelled in a call leaves no lock held.
func TestCancelledThreads(t *testing.T) {
	t.Parallel()
	for _, call := range []string{"module", "launch"} {
		p := newContainer(t, share{5, 100}).start()
		for range 3 {
			p.do("cancel_"+call, "module 1 1", "launch 0 10 1")
		}
	}
}

// TestCancelledWaiting: a thread that is cancelled while its launch waits for the quota is
// waited for by nobody, and what it has launched is charged, nothing else.
func TestCancelledWaiting(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{5, 100})
	p := c.start()
	launches := 0
	for range 3 {
		made := p.call("cancel_waiting 20")[0]
		if made < 20 {
			t.Fatalf("%d launches were made, want 20", made)
		}
		p.want("launch 0 10 5", ok)
		launches += made + 5
	}
	p.end()
	if got := int(c.usage().Devices[0].Launches); got != launches {
		t.Errorf("%d launches are charged, want %d", got, launches)
	}
}

// TestFailsClosed: with anything wrong about its files, CUDA is refused with a
// CUDA error and one line that says which file.
func TestFailsClosed(t *testing.T) {
	t.Parallel()
	edit := func(name string, change func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, dir string) {
			path := filepath.Join(dir, name)
			b, err := os.ReadFile(path)
			if err == nil {
				err = os.Remove(path)
			}
			if b = change(b); err == nil && b != nil {
				err = os.WriteFile(path, b, 0o666)
			}
			must.Do(t, err)
		}
	}
	missing := func([]byte) []byte { return nil }
	empty := func([]byte) []byte { return []byte{} }
	truncated := func(b []byte) []byte { return b[:len(b)-1] }
	longer := func(b []byte) []byte { return append(b, 0) }
	zeroed := func(b []byte) []byte { return make([]byte, len(b)) }
	flipped := func(at int) func([]byte) []byte {
		return func(b []byte) []byte { b[at] ^= 1; return b }
	}
	for _, test := range []struct {
		file, name string
		change     func([]byte) []byte
	}{
		{"limits", "missing", missing}, {"limits", "empty", empty}, {"limits", "truncated", truncated},
		{"limits", "longer", longer}, {"limits", "zeroed", zeroed}, {"limits", "more memory", flipped(178)},
		{"limits", "version", flipped(8)},
		{"counters", "missing", missing}, {"counters", "truncated", truncated}, {"counters", "zeroed", zeroed},
		{"counters", "version", flipped(8)}, {"counters", "devices", flipped(16)},
	} {
		t.Run(test.file+" "+test.name, func(t *testing.T) {
			c := newContainer(t, share{30, 100})
			edit(test.file, test.change)(t, c.dir)
			p := c.startRaw("libvgpu-test.so")
			p.want("init", notPermitted)
			p.want("alloc 1 1", notPermitted)
			p.want("init", notPermitted)
			if said := p.end(); strings.Count(said, "\n") != 1 || !strings.Contains(said, test.file) {
				t.Errorf("said %q, want one line that names %s", said, test.file)
			}
		})
	}
}

// TestOverwrittenCounters: a tenant who overwrites the counters while it runs
// loses the right to take memory, and gains none.
func TestOverwrittenCounters(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.want("alloc 1 60", ok)
	counters, err := os.ReadFile(filepath.Join(c.dir, "counters"))
	if err == nil {
		clear(counters)
		err = os.WriteFile(filepath.Join(c.dir, "counters"), counters, 0o666)
	}
	must.Do(t, err)
	p.want("alloc 2 60", outOfMemory)
	p.want("alloc 2 1", outOfMemory)
	q := c.startRaw("libvgpu-test.so")
	q.want("init", notPermitted)
	c.wantHeld(60)
}

// TestWithoutCUDA: a program that uses no CUDA runs as ever where nothing of
// what the library needs is there, the driver least of all.
func TestWithoutCUDA(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	for _, name := range []string{"limits", "counters"} {
		must.Do(t, os.Remove(filepath.Join(c.dir, name)))
	}
	for _, library := range []string{"libvgpu.so", "libvgpu-test.so"} {
		cmd := c.command(library, "calls")
		cmd.Path, cmd.Args = "/bin/sh", []string{"sh", "-c", "echo $((6 * 7))"}
		cmd.Env = []string{"LD_PRELOAD=" + filepath.Join(c.built.dir, library)}
		if out, err := cmd.CombinedOutput(); err != nil || string(out) != "42\n" {
			t.Errorf("under %s: %v: %q", library, err, out)
		}
	}
}

// TestManyProcesses: more processes than the container has slots for, one after
// the other, each killed: slots are used again.
func TestManyProcesses(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	for range 20 {
		p := c.start()
		p.want("alloc 1 100", ok)
		p.kill()
	}
	if u := c.usage(); len(u.Processes) != 0 || u.Devices[0].UsedBytes != 0 {
		t.Errorf("counters: %+v", u)
	}
	p := c.start()
	p.want("alloc 1 100", ok)
	if u := c.usage(); len(u.Processes) != 1 || u.Processes[0].Slot != 0 || fmt.Sprint(u.Processes[0].UsedBytes) != fmt.Sprint([]uint64{100 * mib}) {
		t.Errorf("counters: %+v", u)
	}
}

// TestBriefThreads: what a thread launches by goes with it.
func TestBriefThreads(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{30, 100})
	out, err := c.command("libvgpu-test.so", "brief", "300").CombinedOutput()
	var failed, pages int
	if _, scan := fmt.Sscan(string(out), &failed, &pages); err != nil || scan != nil || failed != 0 || pages > 100 {
		t.Errorf("%v; %s; want no launch that failed, and 100 pages at most", err, out)
	}
}
