// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/test/gpu/report"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// onSimulated are the rows that pass on the simulated GPU. The others need what no CI
// machine has, and say so.
var onSimulated = []string{
	"driver", "launches", "memory-paths", "memory-views", "memory-by-driver", "memory-processes", "memory-killed",
	"quota", "quota-30-beside-60", "idle-beside-60", "quota-kinds", "cost", "long-beside-short", "without-limiter", "fat-binary",
	"inventory", "cdi", "driver-limits", "devices-hidden", "peers", "mps", "untouched",
}

// pack makes the kit as make gpu-kit does.
func pack(t *testing.T) string {
	t.Helper()
	root := must.Get(manifests.Root())(t)
	bin := t.TempDir()
	if out, err := exec.Command("make", "-s", "-C", root, "gpu-kit", "BIN="+bin).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return filepath.Join(bin, "gpu-kit")
}

// simulate makes a machine with two simulated GPUs, whose driver is where the kit looks.
func simulate(t *testing.T) []string {
	t.Helper()
	s := simgpu.New(t, simgpu.Config{ContextMiB: 400, GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 2}}})
	root := filepath.Join(t.TempDir(), "driver")
	must.Do(t, s.DriverRoot(root, false))
	return s.Env("VERNIER_DRIVER_ROOT="+root, "VERNIER_DEV_ROOT="+root, "PATH="+s.Bin+":"+os.Getenv("PATH"))
}

// runKit returns the rows of its report, and its exit code.
func runKit(t *testing.T, kit string, env []string, args ...string) (map[string]*report.Row, int) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "report.json")
	cmd := exec.Command(filepath.Join(kit, "gpu-kit"), append([]string{"--simulated", "--report", path}, args...)...)
	cmd.Env = env
	table, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		t.Fatal(err)
	}
	t.Logf("%s", table)
	text := must.Get(os.ReadFile(path))(t)
	var rep report.Report[machine]
	must.Do(t, json.Unmarshal(text, &rep))
	all := map[string]*report.Row{}
	for _, r := range rep.Rows {
		if !bytes.Contains(table, []byte(r.String())) {
			t.Errorf("the table lacks %q", r)
		}
		if r.Verdict != report.Passed && r.Why == "" {
			t.Errorf("%s is %s, without a reason", r.Name, r.Verdict)
		}
		all[r.Name] = r
	}
	return all, cmd.ProcessState.ExitCode()
}

// TestKit packs the kit and runs it: on the simulated GPU each row passes that can, each
// other is skipped with a reason, and none is missing.
func TestKit(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("device nodes need root")
	}
	kit := pack(t)
	env := simulate(t)
	got, code := runKit(t, kit, env)
	if code != 0 {
		t.Errorf("exit code %d", code)
	}
	for _, r := range rows {
		switch is := got[r.Name]; {
		case is == nil:
			t.Errorf("%s is missing", r.Name)
		case slices.Contains(onSimulated, r.Name) && is.Verdict != report.Passed:
			t.Errorf("%s: %s: %s", r.Name, is.Verdict, is.Why)
		case is.Verdict == report.Failed:
			t.Errorf("%s: %s", r.Name, is.Why)
		}
	}
	newest := regexp.MustCompile(`GLIBC_2\.(\d+)`)
	for _, file := range []string{"vgpu-run", "gpu-checks", "kit-program", "libvgpu.so"} {
		symbols := must.Get(exec.Command("objdump", "-T", filepath.Join(kit, file)).Output())(t)
		for _, m := range newest.FindAllSubmatch(symbols, -1) {
			if n, _ := strconv.Atoi(string(m[1])); n > 34 {
				t.Errorf("%s needs glibc 2.%d; the docs promise 2.34", file, n)
			}
		}
	}
	t.Run("WhenNothingIsLimited", func(t *testing.T) {
		limitNothing(t, kit)
		fail := []string{"memory-paths", "memory-views", "memory-by-driver", "memory-processes", "memory-killed", "quota", "quota-30-beside-60", "idle-beside-60", "quota-kinds"}
		got, code := runKit(t, kit, env, "--only", strings.Join(fail, ","))
		if code != 1 {
			t.Errorf("exit code %d", code)
		}
		for _, name := range fail {
			if got[name] == nil || got[name].Verdict != report.Failed {
				t.Errorf("%s: %+v; a library that limits nothing fails it", name, got[name])
			}
		}
	})
	t.Run("WhenThereIsNoDriver", func(t *testing.T) { nothing(t, kit) })
}

// limitNothing puts a library that limits nothing in the limiter's place.
func limitNothing(t *testing.T, kit string) {
	t.Helper()
	cmd := exec.Command("gcc", "-shared", "-o", filepath.Join(kit, "libvgpu.so"), "-x", "c", "/dev/null")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
}

// TestDeadline: a row that hangs has failed when its time is over, and what it started has
// ended, the children of its programs too.
func TestDeadline(t *testing.T) {
	k := &kit{scratch: t.TempDir(), devices: []gpu{{}}}
	var child struct{ PID int }
	r := &row{most: 2 * time.Second, check: func(ctx context.Context, k *kit, r *row) error {
		p, err := k.start(ctx, nil, "sh", "-c", `sleep 1000 & echo "{\"PID\":$!}"; wait`)
		if err != nil {
			return err
		}
		if err := p.line(&child); err != nil {
			return err
		}
		return p.result(nil)
	}}
	k.run(t.Context(), r, time.Now().Add(time.Hour))
	if r.Verdict != report.Failed || !strings.Contains(r.Why, "not done within") {
		t.Errorf("%s: %s", r.Verdict, r.Why)
	}
	err := wait.PollUntilContextTimeout(t.Context(), 10*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		command, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", child.PID))
		return err != nil || len(command) == 0, nil // none of a process that has ended
	})
	if err != nil {
		t.Errorf("its child %d runs on", child.PID)
	}
}

// TestFatBinary: the wrapper is, to the byte, what NVIDIA's fatbinary 11.8 writes of such
// a text with --compress=false.
func TestFatBinary(t *testing.T) {
	got := fatBinary([]byte("0123456789"), 6, 0, 50)
	want := "\x50\xed\x55\xba\x01\x00\x10\x00\x58\x00\x00\x00\x00\x00\x00\x00" +
		"\x01\x00\x01\x01\x48\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00" +
		"\x00\x00\x00\x00\x40\x00\x00\x00\x00\x00\x06\x00\x32\x00\x00\x00" +
		strings.Repeat("\x00", 8) + "\x11" + strings.Repeat("\x00", 31) + "0123456789" + strings.Repeat("\x00", 6)
	if string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
}

// nothing: without a driver, and without time, every row still says why it wasn't run.
func nothing(t *testing.T, kit string) {
	t.Helper()
	env := append(os.Environ(), "SIMGPU_STATE=/nowhere", "LD_LIBRARY_PATH=/nowhere")
	got, code := runKit(t, kit, env)
	if code != 1 || len(got) != len(rows) || got["driver"].Verdict != report.Failed || got["quota"].Verdict != report.Skipped {
		t.Errorf("without a driver: exit code %d, %d rows, %+v", code, len(got), got["driver"])
	}
	got, code = runKit(t, kit, env, "--budget", "1s")
	if code != 0 || !strings.Contains(got["driver"].Why, "no time left") {
		t.Errorf("without time: exit code %d, %+v", code, got["driver"])
	}
}
