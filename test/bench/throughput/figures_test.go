// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package throughput

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// quantile by the nearest rank.
func quantile(of float64, times []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(times))
	return sorted[max(int(math.Ceil(of*float64(len(sorted))))-1, 0)]
}

// sum adds up the samples of a metric whose labels hold all of the given texts.
func sum(metrics, name string, labels ...string) (total float64) {
	lines := bufio.NewScanner(strings.NewReader(metrics))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		rest, is := strings.CutPrefix(line, name)
		if !is || rest == "" || rest[0] != '{' && rest[0] != ' ' {
			continue
		}
		if slices.ContainsFunc(labels, func(l string) bool { return !strings.Contains(line, l) }) {
			continue
		}
		if v, err := strconv.ParseFloat(line[strings.LastIndexByte(line, ' ')+1:], 64); err == nil {
			total += v
		}
	}
	return total
}

// writes are the requests that changed something, by the resource that they were for.
type writes map[string]float64

// counted are the resources that a pod's way from created to bound writes.
var counted = []string{"pods", "events", "sliceledgers"}

func writesSoFar(b *testing.B) writes {
	b.Helper()
	text := must.Get(kube.Discovery().RESTClient().Get().AbsPath("/metrics").DoRaw(b.Context()))(b)
	w := writes{}
	for _, resource := range counted {
		for _, verb := range []string{"POST", "PUT", "PATCH"} {
			w[resource] += sum(string(text), "apiserver_request_total", `resource="`+resource+`"`, `verb="`+verb+`"`)
		}
	}
	return w
}

// since are the writes since an earlier count, for each of n pods.
func (w writes) since(before writes, n int) writes {
	each := writes{}
	for resource := range w {
		each[resource] = (w[resource] - before[resource]) / float64(n)
	}
	return each
}

func (w writes) total() (total float64) {
	for _, n := range w {
		total += n
	}
	return total
}

// metricsOf is what a process of Vernier tells Prometheus.
func metricsOf(b *testing.B, p *system.Process) string {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), patience)
	defer cancel()
	text, err := p.Metrics(ctx)
	if err != nil {
		b.Fatalf("%s: %v", p.Name, err)
	}
	return text
}

// startEnded starts the allocators that have ended, as a kubelet would: one that
// loses its lease, on a machine that is too busy to renew it, begins anew.
func startEnded(b *testing.B) {
	b.Helper()
	for _, a := range sys.Allocators {
		must.Do(b, a.EnsureRunning())
	}
}

// ensureAllocators returns when both run and one leads.
func ensureAllocators(b *testing.B) {
	b.Helper()
	startEnded(b)
	sys.LeadingAllocator(b)
}

// ledgerConflicts are the conflicts of all allocators so far.
func ledgerConflicts(b *testing.B) (n float64) {
	for _, a := range sys.Allocators {
		if a.Running() {
			n += sum(metricsOf(b, a), "vernier_allocator_conflicts_total")
		}
	}
	return n
}

// cpu is how long each process has worked.
type cpu map[string]time.Duration

// cpuTimes is what each process of the cluster, and this one, has used so far.
func cpuTimes() cpu {
	// What /proc counts in: USER_HZ, 100 on every Linux machine.
	const tick = 10 * time.Millisecond
	used := cpu{}
	note := func(name string, pid int) {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			return // it has ended
		}
		// The fields after the command's name, which ends with the last bracket.
		fields := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		for _, f := range fields[11:13] {
			n, _ := strconv.Atoi(f)
			used[name] += time.Duration(n) * tick
		}
	}
	note("benchmark", os.Getpid())
	for _, p := range sys.Cluster.Processes() {
		note(p.Name, p.ID().PID)
	}
	return used
}

// since is what was used between two moments. A process that began anew counts from
// its beginning.
func (before cpu) since(now cpu) cpu {
	used := cpu{}
	for name, t := range now {
		if used[name] = t - before[name]; used[name] < 0 {
			used[name] = t
		}
	}
	return used
}

func (c cpu) total() (total time.Duration) {
	for _, t := range c {
		total += t
	}
	return total
}

// of lists the processes by what they used for each of n pods, the largest first.
func (c cpu) of(n int) string {
	names := slices.SortedFunc(maps.Keys(c), func(a, b string) int { return cmp.Compare(c[b], c[a]) })
	var parts []string
	for _, name := range names[:min(10, len(names))] {
		parts = append(parts, fmt.Sprintf("%s %v", name, (c[name]/time.Duration(n)).Round(10*time.Microsecond)))
	}
	return strings.Join(parts, ", ")
}

// median is the middle of an odd number of values, and between the two middle ones
// of an even number.
func median(of []float64) float64 {
	sorted := slices.Sorted(slices.Values(of))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}
