// SPDX-License-Identifier: Apache-2.0

//go:build vendor

package nvidia

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// cudart is the driver's CUDA runtime.
func (d driver) cudart(t *testing.T) string {
	t.Helper()
	found, err := filepath.Glob(filepath.Join(d.lib(), "libcudart.so.*"))
	if err != nil || len(found) != 1 {
		t.Fatalf("%v, %v", found, err)
	}
	return found[0]
}

// The real CUDA runtime runs on the simulated driver, and under the limiter a program on
// it is told of its slice, call by call, what it is told of a whole device without: the
// same answers, the same memory held after each, refused at the same byte of what there
// is. Its launches are measured and held to the quota.
func TestRuntimeSeesTheSliceAsTheDevice(t *testing.T) {
	shares := []struct{ core, mib uint64 }{{30, 1024}, {50, 2048}}
	cudart := program(t, "cudart")
	each(t, func(t *testing.T, d driver) {
		for _, streams := range []string{"one", "own"} {
			t.Run(streams, func(t *testing.T) {
				sim := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: len(shares)}}, ContextMiB: 50})
				status := must.Get(sim.Status())(t)
				argv := []string{cudart, d.cudart(t), streams}
				limited := []string{filepath.Join(binaries(), "vgpu-run"), "--json", "--report", filepath.Join(t.TempDir(), "report")}
				var native, sliced string
				for i, share := range shares {
					limited = append(limited, "--device", fmt.Sprintf("%s,core=%d,mem-mib=%d", status.Devices[i].UUID, share.core, share.mib))
					native = fmt.Sprintln((status.Devices[i].TotalMiB-status.Devices[i].ReservedMiB)<<20) + native
					sliced = fmt.Sprintln(share.mib<<20) + sliced
				}
				free, totals := runtimeRun(t, sim, argv)
				if totals != native {
					t.Fatalf("without the limiter the devices have %s, want %s", totals, native)
				}
				under, totals := runtimeRun(t, sim, append(append(slices.Clone(limited), "--"), argv...))
				if totals != sliced {
					t.Errorf("under the limiter the devices have %s, want %s", totals, sliced)
				}
				difference(t, free, under)
				text := must.Get(os.ReadFile(limited[3]))(t)
				var used report
				must.Do(t, json.Unmarshal(text, &used))
				used.check(t, strings.Count(free, "cudaErrorMemoryAllocation")+threads*len(shares))
			})
		}
	})
}

// What the program does on each device: the threads that it lets allocate until they are
// refused; what it launches, copies and fills; the time of its kernels.
const (
	threads  = 4
	launches = 103 + 10 + 7
	kernels  = (103 + 10*10) * time.Millisecond
)

// check looks at what was counted of a program that was refused memory so often.
func (r report) check(t *testing.T, refusals int) {
	t.Helper()
	var least time.Duration
	for _, d := range r.Devices {
		refusals -= d.Refusals
		if d.Peak != d.Limit {
			t.Errorf("%d bytes of %d were charged at most", d.Peak, d.Limit)
		}
		if d.Launches != launches || d.BusyNS < kernels.Nanoseconds() || d.ThrottledNS == 0 {
			t.Errorf("%d launches of %v, %v charged, %v waited", d.Launches, launches,
				time.Duration(d.BusyNS), time.Duration(d.ThrottledNS))
		}
		// All but what the bucket lets through at once, two periods.
		least += (kernels - 20*time.Millisecond) * 100 / time.Duration(d.Core)
	}
	if refusals != 0 {
		t.Errorf("%d refusals too few were counted", refusals)
	}
	if r.Processes != 2 {
		t.Errorf("%d processes at a time", r.Processes)
	}
	if took := time.Duration(r.WallNS); took < least {
		t.Errorf("it took %v, the quotas allow %v at least", took, least)
	}
}

// report is of what vgpu-run says what is looked at here.
type report struct {
	WallNS    int64 `json:"wall_ns"`
	Processes int
	Devices   []struct {
		Core        int64  `json:"core_percent"`
		Limit       uint64 `json:"memory_limit_bytes"`
		Peak        uint64 `json:"memory_peak_bytes"`
		Refusals    int    `json:"memory_refusals"`
		BusyNS      int64  `json:"busy_ns"`
		ThrottledNS int64  `json:"throttled_ns"`
		Launches    int
	}
}

// runtimeRun returns a program's output and its standard error.
func runtimeRun(t *testing.T, sim *simgpu.Sim, argv []string) (said, totals string) {
	t.Helper()
	var out, complaint bytes.Buffer
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env, cmd.Stdout, cmd.Stderr = sim.Env(), &out, &complaint
	if err := cmd.Run(); err != nil {
		t.Fatalf("%q: %v\n%s%s", argv, err, &out, &complaint)
	}
	return out.String(), complaint.String()
}

// difference complains of each line that is not the same.
func difference(t *testing.T, free, under string) {
	t.Helper()
	a, b := strings.Split(free, "\n"), strings.Split(under, "\n")
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			t.Errorf("line %d under the limiter: %q, without: %q", i, b[min(i, len(b)-1)], a[min(i, len(a)-1)])
		}
	}
}
