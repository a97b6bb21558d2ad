// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
)

// TestNoGlobalTouched: a process that uses CUDA under the library has the signal
// handlers, the environment, the umask, threads, limits, folder and so on that it
// has without; only the counters are open too, and what NVML opens in the first
// process of a container, which learns from it what a context takes; both until
// exec.
func TestNoGlobalTouched(t *testing.T) {
	t.Parallel()
	c := newContainer(t, share{50, 100})
	var lines [2][]string
	for i, preload := range []string{"", "libvgpu-test.so"} {
		out := must.Get(c.command(preload, "globals").Output())(t)
		lines[i] = strings.Split(strings.TrimSpace(string(out)), "\n")
	}
	if len(lines[0]) < 100 || lines[0][0] != "cuda 0" {
		t.Fatalf("natively:\n%s", strings.Join(lines[0], "\n"))
	}
	for _, own := range []string{"descriptor of counters flags 1", "descriptor of state flags 1"} { // the latter NVML's
		if i := slices.Index(lines[1], own); i >= 0 {
			lines[1] = slices.Delete(lines[1], i, i+1)
		} else {
			t.Errorf("no %q", own)
		}
	}
	for i, line := range lines[1] {
		if i >= len(lines[0]) || line != lines[0][i] {
			t.Fatalf("%q, natively %q", line, lines[0][min(i, len(lines[0])-1)])
		}
	}
}

// TestImports: the library doesn't so much as refer to the functions by which a
// process is changed for good, started or ended.
func TestImports(t *testing.T) {
	t.Parallel()
	b := must.Get(build())(t)
	symbols := run(t, "nm", "-D", "--undefined-only", filepath.Join(b.dir, "libvgpu.so"))
	imported := regexp.MustCompile(` [UwW] (\w+)`).FindAllStringSubmatch(symbols, -1)
	if len(imported) < 20 {
		t.Fatalf("imports %v", imported)
	}
	forbidden := regexp.MustCompile(`atexit|on_exit|atfork|^_?exit|^_Exit|abort|assert|sig(action|nal|procmask|altstack)|pthread_(sigmask|create|kill)|` +
		`umask|env(iron)?$|^clearenv|setlocale|chdir|rlimit|prio|itimer|alarm|prctl|fork|clone|^exec|^system$|^popen|setu?g?id|^raise|^kill|dup|fcntl64`)
	for _, symbol := range imported {
		// A thread's, gone with it: atexit's and C++'s are of the process.
		if symbol[1] == "__cxa_thread_atexit_impl" {
			continue
		}
		if forbidden.MatchString(symbol[1]) {
			t.Errorf("refers to %s", symbol[1])
		}
	}
}

// TestNobodyReads: a refusal that nobody reads, or that would have to wait for a
// reader, ends neither the process nor its work.
func TestNobodyReads(t *testing.T) {
	t.Parallel()
	for _, full := range []bool{false, true} {
		c := newContainer(t, share{0, 100})
		must.Do(t, os.Remove(filepath.Join(c.dir, "limits")))
		reads, writes, err := os.Pipe()
		must.Do(t, err)
		if full {
			fill(t, writes)
		} else {
			_ = reads.Close()
		}
		p := c.prepare("libvgpu-test.so")
		p.cmd.Stderr = writes
		p.begin()
		p.want("init", notPermitted)
		p.want("alloc 1 1", notPermitted)
		_ = reads.Close()
		_ = writes.Close()
	}
}

// fill writes to a pipe until it is full.
func fill(t *testing.T, pipe *os.File) {
	t.Helper()
	raw, err := pipe.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { // doesn't block until Fd is called
			for full := error(nil); full == nil; {
				_, full = unix.Write(int(fd), make([]byte, 4096))
			}
		})
	}
	must.Do(t, err)
}
