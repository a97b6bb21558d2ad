// SPDX-License-Identifier: Apache-2.0

// Package bench measures what the library costs a program, beside the same
// program without it in the same run, on the simulated driver. Each line gives
// the limited cost as ns/op, and beside it the native cost, the difference and
// the ratio. Make builds what it runs (make bench).
package bench

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
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
	// The loader goes on without a library that isn't there, and nothing would be limited.
	if _, err := os.Stat(p.library()); err != nil {
		b.Fatalf("%v: run make bench, which builds it", err)
	}
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

func (p place) library() string { return filepath.Join(p.bin, "libvgpu-test.so") }

func (p place) path(name string) string { return filepath.Join(p.dir, name) }

func (p place) allow(b *testing.B, core uint32) {
	b.Helper()
	p.allowed(b, core, false)
}

func (p place) allowed(b *testing.B, core uint32, bursts bool) {
	b.Helper()
	status := p.run(b, false, filepath.Join(p.sim, "simgpuctl"), "status")
	uuid := regexp.MustCompile(`GPU-[0-9a-f-]{36}`).FindString(status)
	limits := layout.Limits{Container: "bench", Devices: []layout.DeviceLimit{{UUID: uuid, Core: core, MemoryBytes: 30 * gib, MayBurst: bursts}}}
	err := layout.WriteFile(p.path("limits"), limits)
	if err == nil {
		err = layout.CreateCounters(p.path("counters"), 1)
	}
	if err == nil {
		err = layout.CreatePace(p.path("pace"), 1)
	}
	must.Do(b, err)
}

func (p place) command(limited bool, program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Dir = p.dir
	cmd.Env = append(os.Environ(), "SIMGPU_STATE="+p.state, "SIMGPU_ALL_DEVICES=1", "LD_LIBRARY_PATH="+p.sim)
	if limited {
		cmd.Env = append(cmd.Env, "LD_PRELOAD="+p.library())
	}
	return cmd
}

// costOf is the median cost of one call, in nanoseconds, with a library.
func (p place) costOf(b *testing.B, library, call string) float64 {
	b.Helper()
	cmd := p.command(false, filepath.Join(p.bin, "cost"), call, "0")
	cmd.Env = append(cmd.Env, "LD_PRELOAD="+library)
	out, err := cmd.Output()
	must.Do(b, err)
	return must.Get(strconv.ParseFloat(strings.TrimSpace(string(out)), 64))(b)
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
		{"launch", 0, 0}, {"launch", 0, 90}, {"launch-default", 0, 90}, {"launch-20-kinds", 0, 90}, {"launch-40-kinds", 0, 90}, {"launch-100-kinds", 0, 90}, {"launch-200-kinds", 0, 90}, {"get-info", 0, 0}, {"total-mem", 0, 0},
		{"alloc-free", 0, 0}, {"alloc-free", 10000, 0}, {"alloc-free-async", 0, 0}, {"not-limited", 0, 0}, {"init", 0, 0},
	} {
		b.Run(fmt.Sprintf("%s/live=%d/quota=%d", bench.call, bench.live, bench.core), func(b *testing.B) {
			p := newPlace(b, bench.core)
			compare(b, func(limited bool) float64 {
				out := p.run(b, limited, filepath.Join(p.bin, "cost"), bench.call, strconv.Itoa(bench.live))
				return must.Get(strconv.ParseFloat(out, 64))(b)
			})
		})
	}
}

// BenchmarkBefore is the cost of one call beside that with another build of the library, in
// turn: VERNIER_BEFORE names its libvgpu-test.so. The difference is the median of the pairs'.
func BenchmarkBefore(b *testing.B) {
	before := os.Getenv("VERNIER_BEFORE")
	if before == "" {
		b.Skip("VERNIER_BEFORE names no libvgpu-test.so to compare with")
	}
	for _, call := range []string{"alloc-free", "alloc-free-async", "get-info", "launch"} {
		b.Run(call, func(b *testing.B) {
			p := newPlace(b, 0)
			var costs [3][]float64 // before, now, and the difference
			for b.Loop() {
				was, is := p.costOf(b, before, call), p.costOf(b, p.library(), call)
				costs[0], costs[1], costs[2] = append(costs[0], was), append(costs[1], is), append(costs[2], is-was)
			}
			for i, unit := range []string{"before-ns/op", "ns/op", "added-ns/op"} {
				slices.Sort(costs[i])
				b.ReportMetric(costs[i][len(costs[i])/2], unit)
			}
		})
	}
}

// crowdCalls is how many calls each thread of a crowd makes, as in program/cost.c.
const crowdCalls = 100_000

// crowd has processes make one call with so many threads each, at a time, and
// returns the cost of one call in nanoseconds of the cores that they can use: with
// more threads than cores, waiting for a core costs nothing, waiting for each other
// does.
func (p place) crowd(b *testing.B, limited bool, call string, processes, threads int) float64 {
	b.Helper()
	commands := make([]*exec.Cmd, processes)
	inputs := make([]io.WriteCloser, processes)
	outputs := make([]*bufio.Scanner, processes)
	await := func(word string) {
		for i, out := range outputs {
			if !out.Scan() || out.Text() != word {
				b.Fatalf("%s: process %d says %q, want %q", call, i, out.Text(), word)
			}
		}
	}
	for i := range commands {
		c := p.command(limited, filepath.Join(p.bin, "cost"), call, "0", strconv.Itoa(threads))
		in := must.Get(c.StdinPipe())(b)
		out := must.Get(c.StdoutPipe())(b)
		must.Do(b, c.Start())
		commands[i], inputs[i], outputs[i] = c, in, bufio.NewScanner(out)
	}
	await("ready")
	start := time.Now()
	for _, in := range inputs {
		must.Get(io.WriteString(in, "\n"))(b)
	}
	await("done")
	took := time.Since(start)
	for _, c := range commands {
		must.Do(b, c.Wait())
	}
	cores := min(runtime.NumCPU(), processes*threads)
	return float64(took.Nanoseconds()) * float64(cores) / float64(crowdCalls*processes*threads)
}

// BenchmarkCrowd is what a call costs when many threads, or many processes of the
// container, make it at a time, beside one thread alone, both natively and limited,
// everything in the same run. The driver itself has words that all of them share, so
// growth compares factors: how many times dearer the library makes the call for many
// than for one.
func BenchmarkCrowd(b *testing.B) {
	for _, call := range []struct {
		name string
		core uint32
	}{{"launch", 90}, {"get-info", 0}, {"alloc-free", 0}, {"alloc-free-async", 0}} {
		for _, many := range []struct{ processes, threads int }{{1, 8}, {32, 1}} {
			b.Run(fmt.Sprintf("%s/processes=%d/threads=%d", call.name, many.processes, many.threads), func(b *testing.B) {
				p := newPlace(b, call.core)
				var costs [4][]float64
				for b.Loop() {
					for i := range costs {
						processes, threads := 1, 1
						if i >= 2 {
							processes, threads = many.processes, many.threads
						}
						costs[i] = append(costs[i], p.crowd(b, i%2 == 1, call.name, processes, threads))
					}
				}
				for _, c := range costs {
					slices.Sort(c)
				}
				middle := len(costs[0]) / 2
				alone, many := costs[1][middle]/costs[0][middle], costs[3][middle]/costs[2][middle]
				b.ReportMetric(costs[3][middle], "ns/op")
				b.ReportMetric(costs[2][middle], "native-ns/op")
				b.ReportMetric(costs[3][middle]-costs[2][middle], "added-ns/op")
				b.ReportMetric(costs[1][middle]-costs[0][middle], "added-alone-ns/op")
				b.ReportMetric(many, "ratio")
				b.ReportMetric(many/alone, "growth")
			})
		}
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
