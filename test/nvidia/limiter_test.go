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
)

// program builds the program in testdata.
func program(t *testing.T, name string) string {
	t.Helper()
	out := filepath.Join(t.TempDir(), name)
	if said, err := exec.Command("gcc", "-O1", "-Wall", "-Werror", "-o", out, filepath.Join("testdata", name+".c"), "-ldl").CombinedOutput(); err != nil {
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
	bin := os.Getenv("VERNIER_BIN")
	if bin == "" {
		bin = "../../bin"
	}
	report := filepath.Join(t.TempDir(), "report")
	limited := []string{filepath.Join(bin, "vgpu-run"), "--report", report,
		"--device", "GPU-4e34a15c-e4df-475a-84f0-864d4ce2b788,core=30,mem-mib=1024", "--"}
	runtime := program(t, "runtime")
	each(t, func(t *testing.T, d driver) {
		if said := run(t, d, append(limited, "grep", "-c", "libvgpu.so", "/proc/self/maps")...); !strings.HasSuffix(said, "\n[0]") {
			t.Fatalf("the limiter is not loaded: %s", said)
		}
		cudart, err := filepath.Glob(filepath.Join(d.lib(), "libcudart.so.*"))
		if err != nil || len(cudart) != 1 {
			t.Fatalf("%v, %v", cudart, err)
		}
		for _, argv := range [][]string{
			{d.smi()}, {d.smi(), "-L"}, {d.smi(), "-q"}, {d.smi(), "--query-gpu=memory.used", "--format=csv"}, {d.smi(), "pmon", "-c", "1"},
			{runtime, cudart[0], filepath.Join(d.lib(), "libcuda.so.1")},
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
