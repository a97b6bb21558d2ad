// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
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
			dir := sanitizedDir(t, "units-"+sanitizer)
			run(t, "make", "--no-print-directory", "-C", "..", "OUT="+dir, "SANITIZE="+sanitizer, "units")
			files := t.TempDir()
			for _, unit := range []string{"table_test", "charge_test", "share_test", "limits_test", "region_test", "pace_test", "time_test"} {
				counters, limits, pace := filepath.Join(files, "counters"), filepath.Join(files, "limits"), filepath.Join(files, "pace")
				if err := layout.CreateCounters(counters, 1); err != nil {
					t.Fatal(err)
				}
				if err := layout.CreatePace(pace, 1); err != nil {
					t.Fatal(err)
				}
				device := layout.DeviceLimit{UUID: "GPU-00112233-4455-6677-8899-aabbccddeeff", Core: 30, MemoryBytes: 5}
				if err := layout.WriteFile(limits, layout.Limits{Container: "a/b", Devices: []layout.DeviceLimit{device}}); err != nil {
					t.Fatal(err)
				}
				if out, err := exec.Command(filepath.Join(dir, unit), counters, limits, pace).CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", unit, err, out)
				}
			}
		})
	}
}

// TestSanitized runs these tests again with the library under sanitizers. Left
// out are those of the lookups, which it is without then, those that don't load
// it or that a sanitizer itself would fail, and those for which time must not be
// stretched.
func TestSanitized(t *testing.T) {
	const skip = "^(TestSanitized|TestUnits|TestHeaders|TestLibrary|TestReadme|TestRun.*|TestLookups|FuzzLookups|TestEveryFunctionIsDecided|TestNVML.*|TestUnloading|TestWithoutCUDA|TestNoGlobalTouched|TestImports|TestForbiddenFiles|TestLimitsAreJudgedAlike|TestQuota|TestNoQuota)$"
	if os.Getenv(sanitizedVar) != "" {
		t.Skip("runs already")
	}
	for runtime, sanitizer := range map[string]string{"libasan.so": "address,undefined", "libtsan.so": "thread"} {
		t.Run(runtime, func(t *testing.T) {
			dir := sanitizedDir(t, sanitizer)
			run(t, "make", "--no-print-directory", "-C", "..", "OUT="+dir, "SANITIZE="+sanitizer, filepath.Join(dir, "libvgpu-sanitized.so"))
			runtime := strings.TrimSpace(run(t, "gcc", "-print-file-name="+runtime))
			again := exec.Command(os.Args[0], "-test.skip="+skip)
			again.Env = append(os.Environ(), sanitizedVar+"="+runtime+" "+filepath.Join(dir, "libvgpu-sanitized.so"),
				"ASAN_OPTIONS=detect_leaks=0", "UBSAN_OPTIONS=halt_on_error=1", "TSAN_OPTIONS=halt_on_error=1") // a context takes its events with it
			if out, err := again.CombinedOutput(); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// sanitizedDir is where make leaves what it builds for a sanitizer, for the next run
// as well.
func sanitizedDir(t *testing.T, name string) string {
	t.Helper()
	b, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(b.dir, "sanitized", strings.ReplaceAll(name, ",", "-")) // the linker parts its flags by commas
}
