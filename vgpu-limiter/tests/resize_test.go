// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// resizable gives the container a pace file, through which it is resized.
func (c *container) resizable(devices int) {
	c.t.Helper()
	must.Do(c.t, layout.CreatePace(filepath.Join(c.dir, "pace"), devices))
}

// resize does what the node agent does.
func (c *container) resize(device int, core uint32, bytes uint64) error {
	c.t.Helper()
	limits := filepath.Join(c.dir, "limits")
	to := must.Get(layout.ReadFile(limits))(c.t).Devices[device]
	to.Core, to.MemoryBytes = core, bytes
	return layout.Resize(limits, filepath.Join(c.dir, "counters"), filepath.Join(c.dir, "pace"), to)
}

// TestResizeIsSeen: CUDA and NVML show a running process the new total at its next call,
// allocations are held to it, and a total below what is used is refused with the figure.
func TestResizeIsSeen(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100}, share{0, 70})
	c.resizable(2)
	p := c.start()
	shows := func(used, total int) {
		t.Helper()
		p.wantUsed(used, total)
		if got := p.call("total 0"); got[1] != total*mib {
			t.Errorf("cuDeviceTotalMem says %d MiB, want %d", got[1]/mib, total)
		}
		if !sanitized {
			said := must.Get(c.command("libvgpu-test.so", "views").CombinedOutput())(t)
			for _, name := range []string{"memory", "memory_v2"} {
				if want := fmt.Sprintf("%s 0 %d %d %d\n", name, total*mib, (total-used)*mib, used*mib); !strings.Contains(string(said), want) {
					t.Errorf("NVML says\n%swant %s", said, want)
				}
			}
		}
	}
	p.want("alloc 1 100", ok)
	p.want("alloc 2 1", outOfMemory)
	must.Do(t, c.resize(0, 0, 150*mib))
	shows(100, 150)
	p.want("alloc 2 50", ok)
	p.want("alloc 3 1", outOfMemory)
	err := c.resize(0, 0, 149*mib)
	if infeasible, is := errors.AsType[*layout.InfeasibleError](err); !is || infeasible.UsedBytes != 150*mib {
		t.Errorf("%v, want it infeasible with 150 MiB", err)
	}
	shows(150, 150)
	p.want("free 2", ok)
	must.Do(t, c.resize(0, 0, 101*mib))
	shows(100, 101)
	p.want("alloc 2 2", outOfMemory)
	p.want("alloc 2 1", ok)
	c.wantHeld(101)
	q := c.start() // one that begins after it
	q.wantUsed(101, 101)
	q.want("alloc 1 1", outOfMemory)
	if got := q.call("total 1"); got[1] != 70*mib {
		t.Errorf("the other device has %d MiB, want 70", got[1]/mib)
	}
	if err := c.resize(0, 0, 0); err == nil {
		t.Error("the limits file's total is in force, below what is used")
	}
	p.want("free 2", ok)
	must.Do(t, c.resize(0, 0, 0))
	shows(100, 100)
	p.kill()
	if err := c.resize(0, 0, 60*mib); err == nil {
		t.Error("what a process has left is taken for nobody's, while another lives")
	}
	q.kill()
	must.Do(t, c.resize(0, 0, 60*mib))
	p = c.start()
	shows(0, 60)
	p.want("alloc 1 61", outOfMemory)
	p.want("alloc 1 60", ok)
}

// TestHostileLimit: a tenant that names the other limit in its counters has the same one, and
// can write neither.
func TestHostileLimit(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	c.resizable(1)
	p := c.start()
	for _, limit := range []int{50, 40, 60} {
		must.Do(t, c.resize(0, 0, uint64(limit)*mib))
		for range 2 {
			word := c.counters()[deviceWordsAt : deviceWordsAt+8]
			word[7] ^= 0x80
			c.overwrite(deviceWordsAt, word)
			p.want(fmt.Sprintf("alloc 1 %d", limit+1), outOfMemory)
			p.wantUsed(0, limit)
		}
	}
	pace := must.Get(os.Stat(filepath.Join(c.dir, "pace")))(t)
	if pace.Mode() != 0o644 {
		t.Errorf("mode %v, want it writable for the node side alone", pace.Mode())
	}
}

// TestResizeOfUnknownFile: a library that finds a pace file as of an agent that resizes
// nothing goes by its limits.
func TestResizeOfUnknownFile(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 100})
	p := c.start()
	p.wantUsed(0, 100)
	c.resizable(1)
	q := c.start()
	q.wantUsed(0, 100)
	must.Do(t, c.resize(0, 0, 50*mib))
	q.wantUsed(0, 50)
	p.wantUsed(0, 100) // it began without one
}

// TestResizeOfCore: from the next period on launches get the new percentage, more and less,
// also of a container without a quota, and back.
func TestResizeOfCore(t *testing.T) {
	t.Parallel()
	for _, steps := range [][]uint32{{30, 60, 5, 30}, {0, 40, 100, 20}, {100, 1, 99}} {
		t.Run(fmt.Sprint(steps), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, false)
			c := n.add(int(steps[0]), false)
			load := n.start(c, "load", strconv.Itoa(len(steps)+1), "100", "108")
			n.begin([]*process{load}, []tenant{{int(steps[0]), "100 108"}})
			for i, core := range steps {
				if i > 0 {
					must.Do(t, c.resize(0, core, 0))
				}
				n.run(n.clock.now() + 200*time.Millisecond) // what was launched without a quota is through
				before, began := n.done()[load.cmd.Process.Pid], n.clock.now()
				n.run(began + 800*time.Millisecond)
				got := 100 * (n.done()[load.cmd.Process.Pid] - before) / float64(n.clock.now()-began)
				t.Logf("%d percent: %.1f", core, got)
				if want := float64((core+99)%100 + 1); got < want-2 || got > want+2 {
					t.Errorf("%.1f percent, want %.0f", got, want)
				}
			}
			n.finish()
		})
	}
}

// TestResizeStorm: while processes make calls on every path and the limits change at any
// moment, the device never holds more than the limit in force.
func TestResizeStorm(t *testing.T) {
	t.Parallel()
	c := newLinkedContainer(t, 0, share{0, 24}, share{0, 16})
	c.resizable(2)
	all := make([]*stormer, 3)
	for i := range all {
		all[i] = c.storm(i, 3)
		all[i].send(t, "run 1000000000")
	}
	dice := rand.New(rand.NewPCG(5, 6))
	shrunk, grown, refused := 0, 0, 0
	for seen := 0; seen < 25; {
		for range 25 {
			device, bytes := dice.IntN(2), uint64(4*mib+dice.IntN(28*mib))
			before := must.Get(layout.InForce(filepath.Join(c.dir, "limits"), filepath.Join(c.dir, "pace")))(t).Devices[device].MemoryBytes
			switch err := c.resize(device, 0, bytes); {
			case err != nil:
				if _, infeasible := errors.AsType[*layout.InfeasibleError](err); !infeasible {
					t.Fatal(err)
				}
				refused++
			case bytes < before:
				shrunk++
			default:
				grown++
			}
		}
		status, known := c.statusNow(all)
		if !known {
			continue
		}
		seen++
		inForce := must.Get(layout.InForce(filepath.Join(c.dir, "limits"), filepath.Join(c.dir, "pace")))(t)
		for device, used := range regexp.MustCompile(`(?m)^device .* used_bytes=(\d+)`).FindAllStringSubmatch(status, -1) {
			if held, err := strconv.ParseUint(used[1], 10, 64); err != nil || held > inForce.Devices[device].MemoryBytes {
				t.Errorf("device %d holds more than %d bytes:\n%s", device, inForce.Devices[device].MemoryBytes, status)
			}
		}
	}
	t.Logf("%d times less, %d times more, %d times refused", shrunk, grown, refused)
	if shrunk == 0 || grown == 0 || refused == 0 {
		t.Error("not each of them has happened")
	}
}
