// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// crowd is processes that begin with CUDA at once: tests/programs/crowd.c. It returns
// what they said, when those that weren't killed have begun or failed, and a way to end
// them.
func (c *container) crowd(processes, killed, mib int) (string, func() string) {
	c.t.Helper()
	var stderr strings.Builder
	cmd := c.command("libvgpu-test.so", "crowd", fmt.Sprint(processes), fmt.Sprint(killed), fmt.Sprint(mib))
	cmd.Stderr = &stderr
	in, out := pipes(c.t, cmd)
	must.Do(c.t, cmd.Start())
	c.t.Cleanup(func() { _ = cmd.Process.Kill() })
	if !out.Scan() {
		c.t.Fatalf("the crowd said nothing: %v; stderr: %s", cmd.Wait(), &stderr)
	}
	return out.Text(), func() string {
		_ = in.Close()
		must.Report(c.t, cmd.Wait())
		return stderr.String()
	}
}

// TestCrowd: of hundreds of processes that begin at once, with just the room that they
// need, none is refused and none waits for another, whichever are killed meanwhile; what
// is charged is theirs that live, and nothing in the end.
func TestCrowd(t *testing.T) {
	t.Parallel()
	for name, test := range map[string]struct{ processes, contextMiB int }{
		"many":     {300, 0},
		"contexts": {100, 4}, // each looks what one takes, until that is known
	} {
		for _, killed := range []int{0, test.processes / 3} {
			t.Run(fmt.Sprintf("%s, %d killed", name, killed), func(t *testing.T) {
				t.Parallel()
				limit := test.processes * (test.contextMiB + 1)
				var c *container
				if test.contextMiB == 0 {
					c = newBareContainer(t, share{0, limit})
				} else {
					c = newContainerOn(t, test.contextMiB, share{0, limit})
				}
				living := test.processes - killed
				said, end := c.crowd(test.processes, killed, 1)
				if want := fmt.Sprintf("init 0 context 0 memory 0 done %d refused 0", living); said != want {
					t.Errorf("the crowd said %q, want %q", said, want)
				}
				used := living * (test.contextMiB + 1)
				if u := c.usage(); len(u.Processes) != living || u.Devices[0].UsedBytes != uint64(used)*mib {
					t.Errorf("%d processes use %d MiB, want %d and %d", len(u.Processes), u.Devices[0].UsedBytes/mib, living, used)
				}
				if test.contextMiB != 0 && c.held(0) != used {
					t.Errorf("the device holds %d MiB, want %d", c.held(0), used)
				}
				if stderr := end(); stderr != "" {
					t.Errorf("stderr: %s", stderr)
				}
				if u := c.usage(); len(u.Processes) != 0 || u.Devices[0].UsedBytes != 0 {
					t.Errorf("in the end there are %d processes with %d bytes", len(u.Processes), u.Devices[0].UsedBytes)
				}
				p := c.start()
				p.want(fmt.Sprintf("alloc 1 %d", limit-test.contextMiB), ok)
			})
		}
	}
}

// TestHostileCrowdBeyondTheSlots: who finds every slot taken is refused and says so; when
// others have ended, the next ones have their slots.
func TestHostileCrowdBeyondTheSlots(t *testing.T) {
	t.Parallel()
	c := newBareContainer(t, share{0, 2000})
	said, end := c.crowd(layout.MaxProcesses+2, 0, 1)
	if want := fmt.Sprintf("init 2 context 0 memory 0 done %d refused 2", layout.MaxProcesses); said != want {
		t.Errorf("the crowd said %q, want %q", said, want)
	}
	stderr := end()
	if want := "counters: every slot is taken"; strings.Count(stderr, "\n") != 2 || strings.Count(stderr, want) != 2 {
		t.Errorf("stderr is %q, want two lines with %q", stderr, want)
	}
	p := c.start()
	p.wantUsed(0, 2000)
	if u := c.usage(); len(u.Processes) != 1 {
		t.Errorf("%d processes, want 1", len(u.Processes))
	}
}

// TestCrowdOfFirstContexts: of processes that begin at once, before anybody knows what a
// context takes, those have one that there is room for, and all of them are charged: also
// where NVML knows processes by PIDs that they don't have.
func TestCrowdOfFirstContexts(t *testing.T) {
	t.Parallel()
	for _, pids := range []string{"own", "host"} {
		t.Run(pids, func(t *testing.T) {
			t.Parallel()
			for !crowdOfFirstContexts(t, pids) {
			}
		})
	}
}

// crowdOfFirstContexts is false where the machine was too busy: the others may have waited
// no longer for the first one.
func crowdOfFirstContexts(t *testing.T, pids string) bool {
	t.Helper()
	c := newContainerOn(t, 4, share{0, 1})
	c.ctl("create", "--context-mib", "4", "--pids", pids, "--gpu", "A100-SXM4-80GB,count=1")
	c.allow([]share{{0, 40}})
	began := time.Now()
	processes := 100 // ten times as many as there is room for
	if sanitized {
		processes = 20 // more are never through in time
	}
	said, end := c.crowd(processes, 0, 1)
	took, u, held := time.Since(began), c.usage(), c.held(0)
	if stderr := end(); stderr != "" {
		t.Errorf("stderr: %s", stderr)
	}
	// Nobody gives anything back: who was refused found less than a context's left.
	if took <= firstContextPatience && (held > 40 || held <= 40-4 || u.Devices[0].UsedBytes != uint64(held)*mib || u.Devices[0].PeakBytes > 40*mib) {
		t.Errorf("the device holds %d MiB of 40, charged are %d with a peak of %d; %s", held, u.Devices[0].UsedBytes/mib, u.Devices[0].PeakBytes/mib, said)
	}
	return took <= firstContextPatience
}

// firstContextPatience is PATIENCE_MS in overhead.c, less the first look.
const firstContextPatience = 9999 * time.Millisecond

// TestFirstContextIsAwaited: a context isn't even tried while another process of the
// container is about to learn what one takes.
func TestFirstContextIsAwaited(t *testing.T) {
	t.Parallel()
	for !firstContextIsAwaited(t) {
	}
}

// firstContextIsAwaited is false where it took longer to see the process wait than that
// waits: this process was stopped, or had no core.
func firstContextIsAwaited(t *testing.T) bool {
	t.Helper()
	c := newContainerOn(t, 40, share{0, 100})
	counters, err := os.OpenFile(filepath.Join(c.dir, "counters"), os.O_RDWR, 0)
	if err == nil {
		err = unix.FcntlFlock(counters.Fd(), unix.F_SETLK, &unix.Flock_t{Type: unix.F_WRLCK, Start: layout.MaxProcesses, Len: 1})
	}
	must.Do(t, err)
	defer func() { _ = counters.Close() }()
	p := c.startRaw("libvgpu-test.so")
	p.want("init", ok)
	asked := time.Now()
	p.send("primary 0 0")
	answer := make(chan bool)
	go func() { answer <- p.out.Scan() }()
	for waits := false; !waits; {
		select {
		case <-answer:
			if time.Since(asked) > firstContextPatience {
				return false
			}
			t.Fatalf("the context was answered with %q while another one is the first", p.out.Text())
		default:
		}
		call, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", p.cmd.Process.Pid))
		waits = strings.HasPrefix(string(call), fmt.Sprint(sysPoll, " "))
		must.Do(t, err)
	}
	_ = counters.Close()
	if <-answer; p.out.Text() != "primary 0" {
		t.Errorf("said %q", p.out.Text())
	}
	p.want("current 0", ok)
	p.wantUsed(40, 100)
	return true
}
