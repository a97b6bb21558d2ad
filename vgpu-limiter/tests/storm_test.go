// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bufio"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
)

// stormer is a process that makes random calls on every path: tests/programs/storm.c.
type stormer struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Scanner
	stderr strings.Builder
}

func (c *container) storm(seed, threads int) *stormer {
	c.t.Helper()
	s := &stormer{cmd: c.command("libvgpu-test.so", "storm", strconv.Itoa(seed), strconv.Itoa(threads))}
	s.in, s.out = pipes(c.t, s.cmd)
	s.cmd.Stderr = &s.stderr
	must.Do(c.t, s.cmd.Start())
	c.t.Cleanup(s.kill)
	s.send(c.t, "run 0") // has what lasts, before others take the rest
	s.rests(c.t)
	return s
}

func (s *stormer) kill() {
	if s.cmd.ProcessState == nil {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
	}
}

func (s *stormer) send(t *testing.T, line string) {
	t.Helper()
	must.Get(io.WriteString(s.in, line+"\n"))(t)
}

// rests waits until the process has done what it was told.
func (s *stormer) rests(t *testing.T) {
	t.Helper()
	if !s.out.Scan() {
		s.kill()
		t.Fatalf("a process has ended: %s", &s.stderr)
	}
	if s.out.Text() != "rests 0 -" {
		t.Errorf("a process says %q: an error that the driver alone doesn't give", s.out.Text())
	}
}

// wantTheTruth compares, with all processes at rest, what the library has charged
// with what the driver says that the device holds: of the container by its counters,
// of the container by what a process is told, and of each process unless memory is
// shared among them.
func (c *container) wantTheTruth(observer *process, processes []*stormer) {
	c.t.Helper()
	u := c.usage()
	for device := range u.Devices {
		observer.want(fmt.Sprintf("current %d", device), ok)
		observer.want("alloc 1 1000", outOfMemory) // what the dead have left, others take off when they need it
		info, held := observer.call("info"), c.heldBytes(device)
		if charged := info[2] - info[1]; charged != held || u.Devices[device].UsedBytes != uint64(held) {
			c.t.Errorf("device %d holds %d bytes, %d are charged (%+d), the counters say %d", device, held, charged, charged-held, u.Devices[device].UsedBytes)
		}
	}
	if len(u.Processes) != len(processes)+1 {
		c.t.Errorf("%d processes in the counters, want %d", len(u.Processes), len(processes)+1)
	}
}

// TestStorm: after random calls on every path, by threads and processes that free
// each other's memory, lend it to each other and are killed at any instant, what
// is charged is what the device holds, to the byte, and never beyond the limit.
func TestStorm(t *testing.T) {
	t.Parallel()
	for name, storm := range map[string]struct{ processes, threads, contextMiB, moves int }{
		"threads":   {1, 4, 0, 6000},
		"processes": {4, 3, 0, 3000},
		"modules":   {3, 1, 2, 3000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refusals := uint64(100) // far fewer than so many moves make
			if sanitized {
				storm.moves /= 4 // each takes the longer
				refusals /= 4
			}
			c := newLinkedContainer(t, storm.contextMiB, share{0, 20 * (storm.processes + 1)}, share{0, 16 * (storm.processes + 1)})
			observer := c.start()
			observer.want("primary 1 1", ok)
			seed := 0
			start := func() *stormer {
				seed++
				return c.storm(seed, storm.threads)
			}
			all := make([]*stormer, storm.processes)
			for i := range all {
				all[i] = start()
			}
			dice := rand.New(rand.NewPCG(1, 2))
			for round := range 12 {
				victim := -1
				if round%2 == 1 {
					victim = dice.IntN(len(all))
				}
				for i, s := range all {
					moves := storm.moves
					if i == victim {
						moves *= 1000 // doesn't end of itself
					}
					s.send(t, fmt.Sprintf("run %d", moves))
				}
				for i, s := range all {
					if i != victim {
						s.rests(t)
					}
				}
				if victim >= 0 {
					for range dice.IntN(20) {
						observer.want("info", ok) // different instants
					}
					all[victim].kill()
					all[victim] = start()
					all[victim].send(t, fmt.Sprintf("run %d", storm.moves))
					all[victim].rests(t)
				}
				c.wantTheTruth(observer, all)
			}
			for _, s := range all {
				s.send(t, "clear")
				s.rests(t)
			}
			c.wantTheTruth(observer, all)
			for device, d := range c.usage().Devices {
				contexts := uint64(storm.contextMiB * (len(all) + 1) * mib)
				if d.UsedBytes != contexts || d.MemoryRefusals < refusals {
					t.Errorf("device %d: %+v after everything was given back, want %d bytes of contexts, and refusals", device, d, contexts)
				}
			}
		})
	}
}

// statusNow is what simgpuctl says at one instant: with every process stopped. False
// where one of them has been stopped with a lock of the simulated driver, for which
// simgpuctl would wait.
func (c *container) statusNow(processes []*stormer) (string, bool) {
	c.t.Helper()
	defer func() {
		for _, s := range processes {
			_ = s.cmd.Process.Signal(unix.SIGCONT)
		}
	}()
	for _, i := range rand.Perm(len(processes)) { // who has a lock may go on while others are stopped
		s := processes[i]
		err := s.cmd.Process.Signal(unix.SIGSTOP)
		if err == nil {
			err = unix.Waitid(unix.P_PID, s.cmd.Process.Pid, nil, unix.WSTOPPED, nil)
		}
		must.Do(c.t, err)
	}
	for _, s := range processes {
		if holdsLock(c.t, s.cmd.Process.Pid) {
			return "", false
		}
	}
	return c.ctl("status") + fmt.Sprintf("counters: %+v", c.usage()), true
}

var writeLock = regexp.MustCompile(`OFDLCK +ADVISORY +WRITE`)

// holdsLock is whether a process that is stopped has an open file locked for writing, as
// the simulated driver does.
func holdsLock(t *testing.T, pid int) bool {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fdinfo/*", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("process %d has no files: %v", pid, err)
	}
	for _, file := range files {
		info := must.Get(os.ReadFile(file))(t)
		if writeLock.Match(info) {
			return true
		}
	}
	return false
}

// TestStormKeepsTheLimit: while it rages, the device never holds more than the limit.
func TestStormKeepsTheLimit(t *testing.T) {
	t.Parallel()
	limits := []int{24, 16}
	c := newLinkedContainer(t, 0, share{0, limits[0]}, share{0, limits[1]})
	all := make([]*stormer, 3)
	start := func(seed int) *stormer {
		s := c.storm(seed, 3)
		s.send(t, "run 1000000000")
		return s
	}
	for i := range all {
		all[i] = start(i)
	}
	for seen := 0; seen < 60; {
		status, told := c.statusNow(all)
		if !told {
			continue
		}
		for device, used := range regexp.MustCompile(`(?m)^device .* used_bytes=(\d+)`).FindAllStringSubmatch(status, -1) {
			if held, err := strconv.Atoi(used[1]); err != nil || held > limits[device]*mib {
				t.Errorf("device %d holds more than %d bytes:\n%s", device, limits[device]*mib, status)
			}
		}
		if seen++; seen%10 == 0 {
			victim := seen / 10 % len(all)
			all[victim].kill()
			all[victim] = start(seen)
		}
	}
}
