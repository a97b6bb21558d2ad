// SPDX-License-Identifier: Apache-2.0

//go:build vendor

package nvidia

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// binaries is the folder of what "make build" makes.
func binaries() string {
	if bin := os.Getenv("VERNIER_BIN"); bin != "" {
		return bin
	}
	return "../../bin"
}

// program builds the program in testdata.
func program(t *testing.T, name string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	if said, err := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-o", out, filepath.Join("testdata", name+".c"), "-ldl", "-pthread").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, said)
	}
	return out
}

// run runs a program with a driver's libraries, and returns its output, what it said on
// standard error, and its exit status.
func run(t *testing.T, d driver, argv ...string) string {
	t.Helper()
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+d.lib())
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil && !errors.As(err, new(*exec.ExitError)) {
		t.Fatalf("%q: %v", argv, err)
	}
	return fmt.Sprintf("%s%s[%d]", &out, &complaint, cmd.ProcessState.ExitCode())
}

// Where there is no device NVIDIA's own programs are told under the limiter exactly what
// they are told without: it adds no word and no error, and ends nobody.
func TestWithoutADevice(t *testing.T) {
	report := filepath.Join(t.TempDir(), "report")
	limited := []string{filepath.Join(binaries(), "vgpu-run"), "--report", report,
		"--device", "GPU-4e34a15c-e4df-475a-84f0-864d4ce2b788,core=30,mem-mib=1024", "--"}
	runtime := program(t, "runtime")
	each(t, func(t *testing.T, d driver) {
		if said := run(t, d, append(limited, "grep", "-c", "libvgpu.so", "/proc/self/maps")...); !strings.HasSuffix(said, "\n[0]") {
			t.Fatalf("the limiter is not loaded: %s", said)
		}
		for _, argv := range [][]string{
			{d.smi()}, {d.smi(), "-L"}, {d.smi(), "-q"}, {d.smi(), "--query-gpu=memory.used", "--format=csv"}, {d.smi(), "pmon", "-c", "1"},
			{runtime, d.cudart(t), filepath.Join(d.lib(), "libcuda.so.1")},
		} {
			free := run(t, d, argv...)
			if strings.HasSuffix(free, "[-1]") || len(free) < 20 {
				t.Fatalf("%q without the limiter: %s", argv, free)
			}
			if under := run(t, d, append(limited, argv...)...); under != free {
				t.Errorf("%q under the limiter: %s\nwithout: %s", argv, under, free)
			}
		}
	})
}

// The real nvidia-smi runs on the simulated NVML of its driver, and shows the slice as
// the device; of a device without a slice it is not told the memory.
func TestSMISeesTheSliceAsTheDevice(t *testing.T) {
	each(t, func(t *testing.T, d driver) {
		sim := simgpu.New(t, simgpu.Config{Driver: d.version, GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 2}}})
		status := must.Get(sim.Status())(t)
		ask := []string{d.smi(), "--query-gpu=index,memory.total,memory.free,memory.used", "--format=csv,noheader,nounits"}
		limited := []string{filepath.Join(binaries(), "vgpu-run"), "--report", filepath.Join(t.TempDir(), "report"),
			"--device", status.Devices[1].UUID + ",mem-mib=1024", "--"}
		for _, test := range []struct {
			argv []string
			want string
		}{
			{ask, "0, 81920, 81313, 0\n1, 81920, 81313, 0\n"},
			{append(limited, ask...), "0, [Insufficient Permissions], [Insufficient Permissions], [Insufficient Permissions]\n1, 1024, 1024, 0\n"},
		} {
			if said, complaint := runtimeRun(t, sim, test.argv); said != test.want {
				t.Errorf("%q: %s%s, want %s", test.argv, said, complaint, test.want)
			}
		}
		if said, _ := runtimeRun(t, sim, append(limited, d.smi())); !strings.Contains(said, " 0MiB /") || !strings.Contains(said, " 1024MiB |") {
			t.Errorf("%s", said)
		}
	})
}
