// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// The cases are C programs, because that is what uses CUDA; see unit/cuda.c.
func TestCUDA(t *testing.T) {
	cases := map[string]Config{
		"old_symbols": {Driver: Driver535, GPUs: []GPU{{Model: T4}}},
		"switched":    {Template: HGX},
		"bridged":     {Template: BridgedA100},
		"fabric":      {GPUs: []GPU{{Model: H100, Count: 2, Switches: 4, Fabric: "11111111-2222-3333-4444-555555555555.2"}}},
	}
	for _, name := range []string{"uninitialised", "memory", "race", "pools", "vmm", "arrays", "sparse", "contexts", "textures",
		"timing", "idle", "pending", "queue", "ipc", "shapes", "graphs", "spoilt_captures", "graph_memory", "symbols", "runtime",
		"ptx", "ptx_time", "bad_images", "linker"} {
		cases[name] = Config{GPUs: []GPU{{Model: T4}}}
	}
	for name, cfg := range cases {
		t.Run(name, func(t *testing.T) {
			s := New(t, cfg)
			run(t, s, "unit/cuda", name)
			st := must.Get(s.Status())(t)
			if len(st.Clients) != 0 || slices.ContainsFunc(st.Devices, func(d Device) bool { return d.UsedBytes != 0 }) {
				t.Errorf("left behind: %+v", st)
			}
		})
	}
}

func TestTimelineWithItsOwnClock(t *testing.T) {
	run(t, New(t, Config{GPUs: []GPU{{Model: T4}}}), "unit/timeline")
}

func TestIntegrity(t *testing.T) {
	run(t, New(t, Config{GPUs: []GPU{{Model: T4}}}), "unit/integrity")
}

// Broken images, under the sanitizers.
func TestNothingBeyondAnImageIsRead(t *testing.T) {
	run(t, New(t, Config{GPUs: []GPU{{Model: T4}}}), "unit/image")
}

// What ran is what the device was busy, to the nanosecond.
func TestBusyTimeIsExact(t *testing.T) {
	tests := []struct {
		name string
		ns   uint64
	}{
		// Kernels of 1000 + 10 * 100 + 500000, each in three ways.
		{"shapes", 3 * 502000},
		// Three launches of a graph of two kernels.
		{"graphs", 6 * 1000000},
		{"timing", 110 * 1000000},
		// Waves of 10000: 2 and 1; and what a comment says: 5000 + 10 * 4 + 300, and 7, twice.
		{"ptx_time", 3*10000 + 5340 + 2*7},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			s := New(t, Config{GPUs: []GPU{{Model: T4}}})
			run(t, s, "unit/cuda", test.name)
			st := must.Get(s.Status())(t)
			if st.Devices[0].BusyNS != test.ns {
				t.Errorf("busy %d ns, want %d", st.Devices[0].BusyNS, test.ns)
			}
		})
	}
}

func TestDemoFailsCleanlyPastItsMemory(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100}}})
	cmd := exec.Command(s.Program("cudademo"), "--alloc", "81314")
	cmd.Env = s.Env()
	out, err := cmd.Output()
	if cmd.ProcessState.ExitCode() != 4 {
		t.Fatalf("%v", err)
	}
	if !strings.Contains(string(out), "alloc mib=81314 ok=0 error=CUDA_ERROR_OUT_OF_MEMORY") {
		t.Errorf("%s", out)
	}
}

func TestContextsTakeTheirConfiguredMemory(t *testing.T) {
	s := New(t, Config{ContextMiB: 300, GPUs: []GPU{{Model: A100}}})
	holding(t, s, "", "--alloc", "100").has(t, "free_mib=80913")
}

// Invariant 3 rests on this too: a program finds no device whose node it may
// not open, and CUDA_VISIBLE_DEVICES only ever narrows.
func TestVisibleDevices(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100, Count: 3}}})
	st := must.Get(s.Status())(t)
	tests := []struct {
		name, visible string
		nodes         []int
		want          []int // device indices, in the order seen; nil is "no device"
	}{
		{"no nodes", "", nil, nil},
		{"one node", "", []int{1}, []int{1}},
		{"all", "", []int{0, 1, 2}, []int{0, 1, 2}},
		{"by index among the permitted", "1", []int{1, 2}, []int{2}},
		{"by UUID, reordered", st.Devices[2].UUID + "," + st.Devices[0].UUID, []int{0, 1, 2}, []int{2, 0}},
		{"not permitted", st.Devices[0].UUID, []int{1}, nil},
		{"the list ends at the first that is none", "0,7,1", []int{0, 1}, []int{0}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			root := t.TempDir()
			for _, n := range test.nodes {
				touch(t, root, "dev/nvidia"+strconv.Itoa(n))
			}
			cmd := exec.Command(s.Program("cudademo"))
			cmd.Env = s.Env("SIMGPU_ALL_DEVICES=0", DevRoot(root))
			if test.visible != "" {
				cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES="+test.visible)
			}
			out, _ := cmd.Output()
			if test.want == nil {
				if !strings.Contains(string(out), "CUDA_ERROR_NO_DEVICE") {
					t.Errorf("%s", out)
				}
				return
			}
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			if len(lines) != len(test.want) {
				t.Fatalf("%q", lines)
			}
			for i, n := range test.want {
				if !strings.Contains(lines[i], st.Devices[n].UUID) {
					t.Errorf("device %d is %s, want %s", i, lines[i], st.Devices[n].UUID)
				}
			}
		})
	}
}

func TestStateFileOfAnotherVersionIsNoDriver(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100}}})
	other := filepath.Join(t.TempDir(), "state")
	data := make([]byte, 4096)
	must.Do(t, os.WriteFile(other, data, 0o644))
	cmd := exec.Command(s.Program("cudademo"))
	cmd.Env = s.Env("SIMGPU_STATE=" + other)
	if out, _ := cmd.Output(); !strings.Contains(string(out), "CUDA_ERROR_NO_DEVICE") {
		t.Errorf("%s", out)
	}
}
