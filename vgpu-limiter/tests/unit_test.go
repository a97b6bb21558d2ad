// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// TestUnits runs the parts that need no driver: plain, and under each sanitizer.
func TestUnits(t *testing.T) {
	for _, sanitizer := range []string{"", "address", "undefined", "thread"} {
		t.Run("sanitizer="+sanitizer, func(t *testing.T) {
			dir := t.TempDir()
			run(t, "make", "--no-print-directory", "-C", "..", "OUT="+dir, "SANITIZE="+sanitizer, "units")
			for _, unit := range []string{"table_test", "charge_test", "limits_test"} {
				counters, limits := filepath.Join(dir, "counters"), filepath.Join(dir, "limits")
				if err := layout.CreateCounters(counters, 1); err != nil {
					t.Fatal(err)
				}
				device := layout.DeviceLimit{UUID: "GPU-00112233-4455-6677-8899-aabbccddeeff", Core: 30, MemoryBytes: 5}
				if err := layout.WriteFile(limits, layout.Limits{Container: "a/b", Devices: []layout.DeviceLimit{device}}); err != nil {
					t.Fatal(err)
				}
				if out, err := exec.Command(filepath.Join(dir, unit), counters, limits).CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", unit, err, out)
				}
			}
		})
	}
}

// TestSanitized makes calls of every kind with the whole library, but for its
// dlsym, under sanitizers.
func TestSanitized(t *testing.T) {
	const script = `init
primary 0 0
current 0
alloc 1 100
stream 1
launch 1 100 20
capture 1 10 3
synchronize 1
pool 1 0
from_pool 2 30 1 0
async 5 10 1
free_async 2 0
destroy_pool 1
create 3 20 0
map 3 20
release 3
retain 3 3
unmap 3 20
release 3
array 4 1024 1024 0 0 0
mipmap 6 1024 1024 0 4
destroy_array 4
context 1 0
current 1
pitch 7 1000 1000
launch 0 10 3
destroy_context 1
current 0
race 4
fork
destroy_stream 1
reset_primary 0
`
	for _, sanitizer := range []string{"address,undefined", "thread"} {
		t.Run(sanitizer, func(t *testing.T) {
			c := newContainer(t, share{30, 500})
			run(t, "make", "--no-print-directory", "-C", "..", "OUT="+c.dir, "SIMGPU="+c.sim, "SANITIZE="+sanitizer, filepath.Join(c.dir, "calls-sanitized"))
			cmd := c.command("", "calls")
			cmd.Path = filepath.Join(c.dir, "calls-sanitized")
			cmd.Env = append(cmd.Env, "ASAN_OPTIONS=detect_leaks=0", "UBSAN_OPTIONS=halt_on_error=1") // a context takes its events with it
			cmd.Stdin = strings.NewReader(script)
			out, err := cmd.CombinedOutput()
			if err != nil || strings.Count(string(out), "\n") != strings.Count(script, "\n") {
				t.Errorf("%v\n%s", err, out)
			}
			for line := range strings.Lines(string(out)) {
				if !strings.HasPrefix(line, "race ") && !strings.HasSuffix(line, " 0\n") {
					t.Errorf("answered %q", line)
				}
			}
		})
	}
}
