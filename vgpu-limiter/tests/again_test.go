// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// sanitizedVar names what is to be preloaded in place of the library built for
// tests: see TestSanitized.
const sanitizedVar = "VERNIER_TEST_SANITIZED"

// sanitized is whether these tests run with the library under sanitizers.
var sanitized = os.Getenv(sanitizedVar) != ""

// Again under the address sanitizer: everything, but what is about the lookups,
// without which the library is then; what doesn't load it, or has a unit test of its
// own; what a sanitizer itself would fail; and what is about time, for the same calls
// are made elsewhere.
const notForAddresses = "^(TestSanitized|TestUnits|TestHeaders|TestLibrary|TestHooksTable|TestRun.*|TestFolderForFile|TestLookups.*|FuzzLookups|" +
	"TestEveryFunctionIsDecided|TestNVML.*|TestUnloading|TestWithoutCUDA|TestNoGlobalTouched|TestImports|TestForbiddenFiles|TestRooms|" +
	"TestLimitsAreJudgedAlike|TestAnySystemCallFails|TestResourceLimits|TestSmallStacks|TestReadersStopNobody|TestStormKeepsTheLimit|TestResizeStorm|TestResizeOfCore|TestQuota|TestNoQuota|TestNeighbours|TestCopiesKeepTheQuota)$"

// Again under the thread sanitizer: each program that has threads. It sees one process alone,
// so not what TestViews adds to the storm, another one that looks.
const forThreads = "^(TestThreads|TestKilledAtAnyInstant|TestHostileStoppedAtAnyInstant|TestStorm)$/^(threads|processes)?$"

// TestSanitized runs these tests again with the library under sanitizers, which see
// what happens within one process.
func TestSanitized(t *testing.T) {
	t.Parallel()
	if sanitized {
		t.Skip("runs already")
	}
	for runtime, again := range map[string]struct{ sanitizers, tests string }{
		"libasan.so": {"address,undefined", "-test.skip=" + notForAddresses},
		"libtsan.so": {"thread", "-test.run=" + forThreads},
	} {
		t.Run(runtime, func(t *testing.T) {
			t.Parallel()
			library := makeSanitized(t, again.sanitizers, "", "libvgpu-sanitized.so")
			runtime := strings.TrimSpace(run(t, compiler(), "-print-file-name="+runtime))
			cmd := exec.Command(os.Args[0], again.tests, "-test.v", "-test.parallel=4")
			cmd.Env = append(os.Environ(), sanitizedVar+"="+runtime+" "+library,
				"ASAN_OPTIONS=detect_leaks=0", "UBSAN_OPTIONS=halt_on_error=1", "TSAN_OPTIONS=halt_on_error=1") // a context takes its events with it
			fixAddresses(cmd)
			endsWithTests(cmd)
			out, err := cmd.CombinedOutput()
			switch {
			case err != nil:
				t.Errorf("%v\n%s", err, failures(string(out)))
			case !strings.Contains(string(out), "PASS: TestStorm/processes"):
				t.Errorf("TestStorm hasn't run:\n%s", out)
			}
		})
	}
}

// fixAddresses makes a command run without random addresses, if that is allowed here:
// where the kernel makes them from more than 28 bits (vm.mmap_rnd_bits), the sanitizers
// of gcc 12 and 13 don't start, or only most times.
func fixAddresses(cmd *exec.Cmd) {
	setarch, err := exec.LookPath("setarch")
	if err == nil && exec.Command(setarch, "--addr-no-randomize", "true").Run() == nil {
		cmd.Args = append([]string{setarch, "--addr-no-randomize", cmd.Path}, cmd.Args[1:]...)
		cmd.Path = setarch
	}
}

// failures is what the tests that failed have printed, of hundreds that ran; or all
// that was printed, if none is said to have failed: then the tests themselves died.
func failures(out string) string {
	failed := map[string]bool{}
	of := func(line string) (result, test string) { // that the line is about
		if f := strings.Fields(line); len(f) > 2 && (f[0] == "===" || f[0] == "---") {
			return f[1], f[2]
		}
		return "", ""
	}
	for line := range strings.Lines(out) {
		if result, test := of(line); result == "FAIL:" {
			failed[test] = true
		}
	}
	if len(failed) == 0 {
		return out
	}
	var said strings.Builder
	wanted := false
	for line := range strings.Lines(out) {
		if _, test := of(line); test != "" {
			wanted = failed[test]
		}
		if wanted {
			said.WriteString(line)
		}
	}
	return said.String()
}

// TestUnits runs the parts that need no driver, under sanitizers; under the one for threads
// those that have some.
func TestUnits(t *testing.T) {
	t.Parallel()
	threads := []string{"table_test", "charge_test", "resize_test", "busy_union_test", "thread_end_test"}
	all := append([]string{"ipc_share_test", "ipc_fd_test", "lent_test", "limits_test", "region_test", "timeshare_test", "time_test", "slowdown_test", "context_test", "module_test", "refer_test", "overhead_test", "thread_stream_test", "stream_test", "capture_test"}, threads...)
	for sanitizers, units := range map[string][]string{"address,undefined": all, "thread": threads, "": {"resize_test"}} { // without any: a million interleavings
		t.Run("sanitizers="+sanitizers, func(t *testing.T) {
			t.Parallel()
			for _, unit := range units {
				files := t.TempDir()
				counters, limits, pace := filepath.Join(files, "counters"), filepath.Join(files, "limits"), filepath.Join(files, "pace")
				must.Do(t, layout.CreateCounters(counters, 1))
				must.Do(t, layout.CreatePace(pace, 1))
				device := layout.DeviceLimit{UUID: "GPU-00112233-4455-6677-8899-aabbccddeeff", Core: 30, MemoryBytes: 5}
				must.Do(t, layout.WriteFile(limits, layout.Limits{Container: "a/b", Devices: []layout.DeviceLimit{device}}))
				cmd := exec.Command(buildUnit(t, sanitizers, unit), counters, limits, pace)
				cmd.Env = append(os.Environ(), "UBSAN_OPTIONS=halt_on_error=1")
				fixAddresses(cmd)
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Errorf("%s: %v\n%s", unit, err, out)
				}
			}
		})
	}
}

// buildUnit builds a program of tests/unit with sanitizers and returns its path.
func buildUnit(t *testing.T, sanitizers, unit string) string {
	t.Helper()
	return makeSanitized(t, sanitizers, "units-", unit)
}

// makeSanitized makes something with sanitizers, where it is left for the next
// run as well, and returns its path. That isn't where the programs are that all tests
// run: some tests copy that folder meanwhile.
func makeSanitized(t *testing.T, sanitizers, prefix, name string) string {
	t.Helper()
	b := must.Get(build())(t)
	dir := filepath.Join(b.dir+"-sanitized", prefix+strings.ReplaceAll(sanitizers, ",", "-")) // the linker parts its flags by commas
	made := must.Get(making(dir))(t)
	defer made()
	path := filepath.Join(dir, name)
	run(t, "make", "--no-print-directory", "-C", "..", "OUT="+dir, "SANITIZE="+sanitizers, path)
	return path
}
