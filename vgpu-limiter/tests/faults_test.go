// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// faulty is what a process does while system calls fail.
type faulty struct {
	container func(*testing.T) *container
	calls     string              // one a line, after those that begin
	held      func(done done) int // MiB of 100 that are charged afterwards
	then      string              // is called when nothing fails any more, and works
}

// done tells which calls have succeeded.
type done map[string]bool

func (d done) mib(mib int, calls ...string) int {
	for _, call := range calls {
		if !d[call] {
			return 0
		}
	}
	return mib
}

const beginning = "init\nprimary 0 0\ncurrent 0\n"

// run runs it with the n-th system call failing, or all from that on. It reports whether
// there were so many system calls.
func (f *faulty) run(t *testing.T, c *container, n int, on string) bool {
	t.Helper()
	cmd := c.command("libvgpu-test.so", "nth", strconv.Itoa(n), on, filepath.Join(c.built.dir, "calls"))
	last := f.check(t, c, cmd, fmt.Sprintf("failing system call %d (%s)", n, on), "nth 1", "nth 0", 1).last
	var seen, failed int
	if _, err := fmt.Sscanf(last, "nth %d %d", &seen, &failed); err != nil {
		t.Errorf("%q is the last line", last)
		return false
	}
	return failed >= 0
}

// checked is what has come of calls under faults.
type checked struct {
	did  done
	last string // the last line of output
}

// check runs it between two lines that begin and end what fails, and checks what must hold
// whatever does: each call is answered, by success or an error of the driver's; what has
// succeeded is charged or measured, nothing else is, and nothing goes beyond the limit.
// The program says so many lines more than it answers.
func (f *faulty) check(t *testing.T, c *container, cmd *exec.Cmd, faults, from, to string, more int) checked {
	t.Helper()
	calls := strings.Split(strings.TrimSpace(beginning+f.calls), "\n")
	then := strings.Fields(strings.ReplaceAll(f.then, " ", "_"))
	script := from + "\n" + strings.Join(calls, "\n") + "\n" + to + "\n" + strings.ReplaceAll(strings.Join(then, "\n"), "_", " ") + "\ninfo\nalloc 60000 101\n"
	before := c.usage().Devices[0]
	var stderr strings.Builder
	cmd.Stdin, cmd.Stderr = strings.NewReader(script), &stderr
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() == 77 {
		t.Skip("processes may not be traced here")
	}
	bad := func(format string, args ...any) {
		t.Helper()
		t.Errorf("%s, with %s of:\n%s%s", fmt.Sprintf(format, args...), faults, out, &stderr)
	}
	answers := strings.Split(strings.TrimSpace(string(out)), "\n")
	did, launches := done{}, uint64(0)
	if err != nil || len(answers) != len(calls)+len(then)+4+more {
		bad("%v", err)
		return checked{did, ""}
	}
	for i, call := range calls {
		name, code, _ := strings.Cut(answers[1+i], " ")
		if result, err := strconv.Atoi(code); err != nil || result < 0 || name != strings.Fields(call)[0] {
			bad("%q answered %q", call, answers[1+i])
		}
		did[call] = code == "0"
		if did[call] && name == "launch" {
			launches++
		}
	}
	last := answers[len(calls)+2:]
	attached := strings.HasPrefix(last[len(then)], "info 0 ")
	for i, call := range then {
		if name, _, _ := strings.Cut(call, "_"); attached && last[i] != name+" 0" {
			bad("%q answered %q", call, last[i])
		}
	}
	var left, total int
	_, _ = fmt.Sscanf(last[len(then)], "info 0 %d %d", &left, &total)
	if held := f.held(did); attached && (total != 100*mib || total-left != held*mib) {
		bad("%d of %d MiB are used, want %d", (total-left)/mib, total/mib, held)
	}
	if last[len(then)+1] == "alloc 0" {
		bad("101 MiB fit")
	}
	// The second of a kind that isn't known waits until the first has been measured.
	after := c.usage().Devices[0]
	if got := after.Launches - before.Launches; got != launches || (got > 1 && after.Busy == before.Busy) {
		bad("%d launches measured, want %d, and %v for them", got, launches, after.Busy-before.Busy)
	}
	if said := stderr.String(); strings.Count(said, "\n") > 1 || (said != "" && !strings.HasPrefix(said, "vernier: CUDA refused: ")) ||
		strings.Contains(said, "wrong size") || strings.Contains(said, "damaged") || (said == "" && !attached && did["primary 0 0"]) {
		bad("said %q", said)
	}
	return checked{did, answers[len(answers)-1]}
}

// TestAnySystemCallFails: whichever of the library's system calls fails, once or from then
// on, the program goes on, each of its calls is answered, and what succeeds is limited.
func TestAnySystemCallFails(t *testing.T) {
	t.Parallel()
	bare := func(core int) func(*testing.T) *container {
		return func(t *testing.T) *container { return newBareContainer(t, share{core, 100}) }
	}
	for name, f := range map[string]faulty{
		"memory": {bare(0), "alloc 1 10\nalloc 2 10\narray 3 1024 1024 0 0\nfree 2", func(d done) int {
			return d.mib(10, "alloc 1 10") + d.mib(10, "alloc 2 10") - d.mib(10, "alloc 2 10", "free 2") + d.mib(64, "array 3 1024 1024 0 0")
		}, ""},
		"launches": {bare(50), "stream 1\nstream 2\nlaunch 1 20 1\nlaunch 1 21 1\nlaunch 2 20 1\nlaunch 0 20 1", func(done) int { return 0 }, ""},
		"a handle that is made anew": {func(t *testing.T) *container { return newContainer(t, share{0, 100}) },
			"create 1 10 0\nmap 1 10\nrelease 1\nretain 3 1\nunmap 1 10", func(d done) int {
				if d["release 1"] && !d["retain 3 1"] && (!d["map 1 10"] || d["unmap 1 10"]) {
					return 0
				}
				return d.mib(10, "create 1 10 0")
			}, ""},
		"memory that is opened twice": {func(t *testing.T) *container {
			c := newContainer(t, share{0, 100})
			other := c.neighbour(share{0, 100})
			p := other.start()
			p.do("alloc 1 10", "ipc_get 1 1")
			handle, err := os.ReadFile(filepath.Join(other.dir, "handle.1"))
			if err == nil {
				err = os.WriteFile(filepath.Join(c.dir, "handle.1"), handle, 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			return c
		}, "ipc_open 1 1\nipc_open 2 1\nipc_close 1", func(d done) int {
			if !d["ipc_close 1"] || (d["ipc_open 1 1"] && d["ipc_open 2 1"]) {
				return max(d.mib(10, "ipc_open 1 1"), d.mib(10, "ipc_open 2 1"))
			}
			return 0
		}, ""},
		"a process without its lock": {func(t *testing.T) *container {
			c := newContainer(t, share{0, 100})
			p := c.start()
			p.do("alloc 1 60", "close_descriptors")
			return c
		}, "alloc 1 50\nalloc 2 30", func(d done) int { return 60 + d.mib(50, "alloc 1 50") + d.mib(30, "alloc 2 30") }, ""},
		"contexts and modules": {func(t *testing.T) *container { return newContainerOn(t, 7, share{0, 100}) },
			"module 1 5", func(d done) int { return 7 + d.mib(5, "module 1 5") + 3 }, "init\nprimary 0 0\ncurrent 0\nmodule 2 3"},
	} {
		for _, on := range []string{"one", "on"} {
			t.Run(name+", "+on, func(t *testing.T) {
				t.Parallel()
				c := f.container(t)
				n := 1
				for f.run(t, c, n, on) {
					n++
				}
				t.Logf("%d system calls", n-1)
			})
		}
	}
}
