// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/test/must"
)

// TestResourceLimits: under whatever limit on its resources, from when it begins or while it
// works, a program goes on, each of its calls is answered, and what succeeds is charged and
// measured; with more to be had everything succeeds.
func TestResourceLimits(t *testing.T) {
	t.Parallel()
	calls := "stream 1\nalloc 1 10\nlaunch 1 20 1\nalloc 2 20\narray 3 1024 1024 0 0\nlaunch 1 21 1\nfree 2\nlaunch 0 20 1"
	held := func(d done) int {
		return d.mib(10, "alloc 1 10") + d.mib(20, "alloc 2 20") - d.mib(20, "alloc 2 20", "free 2") + d.mib(64, "array 3 1024 1024 0 0")
	}
	for name, limit := range map[string]struct{ resource, step, most int }{
		"address space":   {unix.RLIMIT_AS, 16 << 10, 64 << 20},
		"data":            {unix.RLIMIT_DATA, 16 << 10, 64 << 20},
		"descriptors":     {unix.RLIMIT_NOFILE, 1, 64},
		"files' sizes":    {unix.RLIMIT_FSIZE, 1, 0},
		"locked memory":   {unix.RLIMIT_MEMLOCK, 1, 0},
		"processes":       {unix.RLIMIT_NPROC, 1, 0},
		"pending signals": {unix.RLIMIT_SIGPENDING, 1, 0},
	} {
		for _, early := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, early=%v", name, early), func(t *testing.T) {
				t.Parallel()
				for more := 0; !t.Failed(); more += limit.step {
					c := newBareContainer(t, share{50, 100})
					from := fmt.Sprintf("limit %d %d", limit.resource, more)
					f := faulty{calls: calls, held: held}
					if !early { // the context is there
						f.calls, from = from+"\n"+calls, "nth 2"
					}
					did := f.check(t, c, c.command("libvgpu-test.so", "calls"), fmt.Sprintf("%s limited to %d more", name, more),
						from, fmt.Sprintf("limit %d -1", limit.resource), 0).did
					failed := 0
					for _, success := range did {
						if !success {
							failed++
						}
					}
					if failed == 0 {
						t.Logf("everything succeeds with %d more", more)
						return
					}
					if more >= limit.most {
						t.Fatalf("%d calls fail with %d more", failed, more)
					}
				}
			})
		}
	}
}

// TestFullFile: the line that says why CUDA is refused ends no program whose output goes to
// a file that may not become larger.
func TestFullFile(t *testing.T) {
	t.Parallel()
	for name, limit := range map[string]int{"at the limit": 5, "beyond it": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newBareContainer(t, share{0, 100})
			path := filepath.Join(c.dir, "output")
			err := os.WriteFile(path, []byte("hello"), 0o600)
			if err == nil {
				err = os.Remove(filepath.Join(c.dir, "limits"))
			}
			must.Do(t, err)
			out := must.Get(os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0))(t)
			defer out.Close()
			p := c.prepare("libvgpu-test.so")
			p.cmd.Stderr = out
			p.begin()
			p.want(fmt.Sprintf("limit %d %d", unix.RLIMIT_FSIZE, limit), ok)
			p.want("init", notPermitted)
			p.want(fmt.Sprintf("limit %d -1", unix.RLIMIT_FSIZE), ok)
			p.want("primary 0 0", notPermitted)
		})
	}
}
