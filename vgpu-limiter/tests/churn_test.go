// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// churn starts a process whose threads allocate, launch and free without end.
func (c *container) churn(threads int) *process {
	c.t.Helper()
	p := c.start()
	p.want(fmt.Sprintf("churn %d", threads), ok)
	return p
}

// TestKilledAtAnyInstant: processes that are killed while they allocate, launch
// and free block nobody, and leave nothing behind.
func TestKilledAtAnyInstant(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{90, 200})
	observer := c.start()
	observer.want("stream 1", ok)
	victims := make([]*process, 3) // hold at most 3 × 2 × 5 MiB
	for i := range victims {
		victims[i] = c.churn(2)
	}
	for round := range 20 {
		for range round % 7 {
			observer.want("info", ok) // different instants
		}
		victim := &victims[round%len(victims)]
		(*victim).kill()
		observer.do("alloc 1 150", "launch 1 10 2", "synchronize 1", "free 1")
		*victim = c.churn(2)
	}
	for _, v := range victims {
		if got := v.call("churned"); got[0] != ok {
			t.Errorf("a process failed with %d", got[0])
		}
		v.kill()
	}
	observer.want("alloc 1 200", ok)
	observer.want("alloc 2 1", outOfMemory)
	if u := c.usage(); len(u.Processes) != 1 || u.Devices[0].UsedBytes != 200*mib || u.Devices[0].PeakBytes != 200*mib {
		t.Errorf("counters: %+v", u)
	}
	c.wantHeld(200)
}

// TestHostileStoppedAtAnyInstant: processes that are stopped while they allocate, launch
// and free block nobody, neither in their container nor in another one on the device. The
// driver is one in which nobody waits for anybody.
func TestHostileStoppedAtAnyInstant(t *testing.T) {
	t.Parallel()
	c, other := newBareContainer(t, share{40, 200}), newBareContainer(t, share{50, 200})
	loop := pace.New()
	for _, one := range []*container{c, other} {
		path := func(name string) string { return filepath.Join(one.dir, name) }
		err := layout.CreatePace(path("pace"), 1)
		if err == nil {
			var attached *pace.Container
			if attached, err = loop.Attach(path("limits"), path("counters"), path("pace")); err == nil {
				t.Cleanup(attached.Detach)
			}
		}
		must.Do(t, err)
	}
	go loop.Run(t.Context())
	observers := []*process{c.start(), other.start()}
	for _, o := range observers {
		o.want("stream 1", ok)
	}
	workers := make([]*process, 4) // hold at most 4 × 2 × 5 MiB
	for i := range workers {
		workers[i] = c.churn(2)
	}
	for round := range 100 {
		for range round % 7 {
			observers[0].want("info", ok) // different instants
		}
		workers[round%4].signal(unix.SIGSTOP)
		for _, o := range observers {
			o.do("alloc 1 150", "launch 1 10 20", "free 1")
		}
		workers[(round+1)%4].signal(unix.SIGCONT) // three remain stopped
	}
	for _, w := range workers {
		w.signal(unix.SIGCONT)
		// Three of four were stopped at any time: this may be its first round.
		for got := w.call("churned"); got[0] != ok || got[1] == 0; got = w.call("churned") {
			if got[0] != ok {
				t.Fatalf("a process failed with %d", got[0])
			}
		}
		w.kill()
	}
	observers[0].want("alloc 1 200", ok)
	observers[1].want("alloc 1 200", ok)
}

// TestReadersStopNobody: while 32 processes work, whoever reads the counters sees
// figures that never go back nor beyond the limit, and the processes go on.
func TestReadersStopNobody(t *testing.T) {
	t.Parallel()
	const processes = 32
	c := newContainer(t, share{90, 64})
	workers := make([]*process, processes)
	for i := range workers {
		workers[i] = c.churn(1)
	}
	limits := must.Get(layout.ReadFile(filepath.Join(c.dir, "limits")))(t)
	var readers sync.WaitGroup
	for range 4 {
		readers.Go(func() {
			var before layout.DeviceUsage
			for range 50 {
				u, err := layout.ReadUsage(filepath.Join(c.dir, "counters"))
				if err != nil || len(u.Processes) != processes {
					t.Errorf("%d processes, %v; want %d", len(u.Processes), err, processes)
					return
				}
				now := u.Devices[0]
				// The sum of figures that are read one after the other: a MiB that
				// moves from one process to another may be in both.
				if most := limits.Devices[0].MemoryBytes + processes*5*mib; now.UsedBytes > most {
					t.Errorf("%d bytes used, want at most %d", now.UsedBytes, most)
				}
				if now.Launches < before.Launches || now.Throttled < before.Throttled || now.MemoryRefusals < before.MemoryRefusals ||
					now.PeakBytes < before.PeakBytes || now.PeakBytes > limits.Devices[0].MemoryBytes {
					t.Errorf("%+v came after %+v", now, before)
				}
				before = now
			}
		})
	}
	readers.Wait()
	for _, w := range workers {
		began := w.call("churned")
		for now := began; now[1] == began[1]; now = w.call("churned") {
			if now[0] != ok {
				t.Fatalf("a process failed with %d", now[0])
			}
		}
	}
	// How soon they are in each other's way depends on the CPUs that they get: with few, they
	// leave the device idle for more than the quota does.
	for u := c.usage().Devices[0]; u.Launches == 0 || u.Busy == 0 || u.MemoryRefusals == 0 || u.Throttled < time.Millisecond; u = c.usage().Devices[0] {
		for _, w := range workers {
			if got := w.call("churned"); got[0] != ok {
				t.Fatalf("a process failed with %d; counters: %+v", got[0], u)
			}
		}
		workers[0].want("launch 0 20000 5", ok)
	}
}

// TestNVMLAddsUp: while processes allocate and free, and another container holds
// more than theirs may, NVML's figures add up and name their own only.
func TestNVMLAddsUp(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{0, 24})
	c.neighbour(share{0, 1000}).start().want("alloc 1 1000", ok)
	own := map[uint64]bool{}
	workers := []*process{c.start(), c.start(), c.start()}
	for _, w := range workers {
		w.want("alloc 1 4", ok) // held at whatever instant NVML is asked
		own[uint64(w.cmd.Process.Pid)] = true
	}
	for _, w := range workers {
		w.want("churn 2", ok)
	}
	for range 20 {
		out, err := c.command("libvgpu-test.so", "views").CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		var processes, held uint64
		for line := range strings.Lines(string(out)) {
			var code, total, free, used, pid uint64
			if n, _ := fmt.Sscanf(line, "memory %d %d %d %d", &code, &total, &free, &used); n != 4 {
				_, _ = fmt.Sscanf(line, "memory_v2 %d %d %d %d", &code, &total, &free, &used)
			}
			if code != 0 || free+used != total || total != 0 && total != 24*mib {
				t.Errorf("NVML shows %s", line)
			}
			if n, _ := fmt.Sscanf(line, "process %d %d", &pid, &used); n == 2 {
				processes++
				held += used
				if !own[pid] || used > 24*mib {
					t.Errorf("NVML shows %s", line)
				}
			}
		}
		if processes > 3 || held == 0 || !strings.Contains(string(out), "memory_v2 0 ") {
			t.Errorf("NVML shows\n%s", out)
		}
	}
}
