// SPDX-License-Identifier: Apache-2.0

// Package bench measures what the library costs a program, beside the same
// program without it in the same run, on the simulated driver. Each line gives
// the limited cost as ns/op, and beside it the native cost, the difference and
// the ratio. Make builds what it runs (make bench).
package bench

import (
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

	"vernier.dev/vernier/vgpu-limiter/layout"
)

const gib = 1 << 30

// place is a directory in which programs run with the library built for tests,
// whose files it reads from where the program runs.
type place struct{ bin, sim, state, dir string }

func newPlace(b *testing.B, core uint32) place {
	b.Helper()
	return newPlaceOn(b, "A100-SXM4-80GB", core)
}

func newPlaceOn(b *testing.B, gpu string, core uint32) place {
	b.Helper()
	bin := os.Getenv("VERNIER_BIN")
	if bin == "" {
		b.Skip("run by make bench, which builds the programs and sets VERNIER_BIN")
	}
	p := place{bin: filepath.Join(bin, "vgpu-tests"), sim: filepath.Join(bin, "vgpu-tests", "simgpu"), dir: b.TempDir()}
	p.state = filepath.Join(p.dir, "state")
	p.run(b, false, filepath.Join(p.sim, "simgpuctl"), "create", "--gpu", gpu)
	p.allow(b, core)
	return p
}

// neighbour is another container's directory on the same device.
func (p place) neighbour(b *testing.B, core uint32) place {
	b.Helper()
	p.dir = b.TempDir()
	p.allow(b, core)
	return p
}

func (p place) path(name string) string { return filepath.Join(p.dir, name) }

func (p place) allow(b *testing.B, core uint32) {
	b.Helper()
	status := p.run(b, false, filepath.Join(p.sim, "simgpuctl"), "status")
	uuid := regexp.MustCompile(`GPU-[0-9a-f-]{36}`).FindString(status)
	limits := layout.Limits{Container: "bench", Devices: []layout.DeviceLimit{{UUID: uuid, Core: core, MemoryBytes: 30 * gib}}}
	err := layout.WriteFile(p.path("limits"), limits)
	if err == nil {
		err = layout.CreateCounters(p.path("counters"), 1)
	}
	if err == nil {
		err = layout.CreatePace(p.path("pace"), 1)
	}
	if err != nil {
		b.Fatal(err)
	}
}

func (p place) command(limited bool, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+p.state, "SIMGPU_ALL_DEVICES=1", "LD_LIBRARY_PATH="+p.sim)
	if limited {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+filepath.Join(p.bin, "libvgpu-test.so"))
	}
	return cmd
}

func (p place) run(b *testing.B, limited bool, program string, args ...string) string {
	b.Helper()
	out, err := p.command(limited, program, args...).Output()
	if err != nil {
		b.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// compare runs both sides in turn and reports the medians.
func compare(b *testing.B, once func(limited bool) float64) {
	b.Helper()
	var costs [2][]float64
	for b.Loop() {
		costs[0] = append(costs[0], once(false))
		costs[1] = append(costs[1], once(true))
	}
	for _, c := range costs {
		slices.Sort(c)
	}
	native, limited := costs[0][len(costs[0])/2], costs[1][len(costs[1])/2]
	b.ReportMetric(limited, "ns/op")
	b.ReportMetric(native, "native-ns/op")
	b.ReportMetric(limited-native, "added-ns/op")
	b.ReportMetric(limited/native, "ratio")
}

// BenchmarkCall is the median cost of one driver call.
func BenchmarkCall(b *testing.B) {
	for _, bench := range []struct {
		call string
		live int
		core uint32
	}{
		{"launch", 0, 0}, {"launch", 0, 90}, {"get-info", 0, 0}, {"alloc-free", 0, 0}, {"alloc-free", 10000, 0},
		{"not-limited", 0, 0}, {"init", 0, 0},
	} {
		b.Run(fmt.Sprintf("%s/live=%d/quota=%d", bench.call, bench.live, bench.core), func(b *testing.B) {
			p := newPlace(b, bench.core)
			compare(b, func(limited bool) float64 {
				out := p.run(b, limited, filepath.Join(p.bin, "cost"), bench.call, strconv.Itoa(bench.live))
				ns, err := strconv.ParseFloat(out, 64)
				if err != nil {
					b.Fatal(err)
				}
				return ns
			})
		})
	}
}

// BenchmarkExec is what starting a program that never uses CUDA takes.
func BenchmarkExec(b *testing.B) {
	p := newPlace(b, 0)
	compare(b, func(limited bool) float64 {
		start := time.Now()
		p.run(b, limited, "/bin/true")
		return float64(time.Since(start).Nanoseconds())
	})
}
