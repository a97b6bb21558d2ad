// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package throughput

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// burst is how many pods of an arm are created at once.
const burst = 1000

// BenchmarkThroughput has a burst of each arm's pods created and bound once per
// iteration, after a first one of each that does not count: it is what fills the
// API server's and the scheduler's memory, and whoever came first would pay for it.
// The arms take turns in who is first, and each begins when nothing is left to do of
// the one before.
//
// Metrics: for each arm the median of pods a second and of the CPU time that all
// processes together took for a pod, the p99 of created to bound, and writes of pods,
// ledgers and events for each pod; for Vernier beside each of the others the median of
// the rounds' ratios, of rate and of CPU time; what the writes would make of the rate
// if they were all that counted (ceiling); conflicts. The log has every arm of every
// round, process by process.
func BenchmarkThroughput(b *testing.B) {
	results := map[arm]*results{plain: {}, stock: {}, withVernier: {}}
	for _, a := range arms {
		a.race(b)
	}
	var ofPlain, ofStock, cpuOfPlain, cpuOfStock []float64
	conflicts := 0.0
	for i := 0; b.Loop(); i++ {
		round := map[arm]result{}
		for k := range arms {
			a := arms[(i+k)%len(arms)]
			lost := ledgerConflicts(b)
			round[a] = a.race(b)
			results[a].add(round[a])
			conflicts += ledgerConflicts(b) - lost
		}
		ours := round[withVernier]
		ofPlain = append(ofPlain, ours.rate/round[plain].rate)
		ofStock = append(ofStock, ours.rate/round[stock].rate)
		cpuOfPlain = append(cpuOfPlain, ours.cpu/round[plain].cpu)
		cpuOfStock = append(cpuOfStock, ours.cpu/round[stock].cpu)
	}
	for _, a := range arms {
		short, r := string(a)[len("bench-"):], results[a]
		b.ReportMetric(median(r.rates), short+"-pods/s")
		b.ReportMetric(quantile(0.99, r.waits).Seconds()*1000, short+"-p99-ms")
		b.ReportMetric(median(r.cpus), short+"-cpu-ms/pod")
		b.ReportMetric(median(r.writes), short+"-writes/pod")
	}
	ceiling := median(results[plain].writes) / median(results[withVernier].writes)
	b.ReportMetric(median(ofPlain), "of-plain")
	b.ReportMetric(median(ofStock), "of-stock")
	b.ReportMetric(median(cpuOfPlain), "cpu-of-plain")
	b.ReportMetric(median(cpuOfStock), "cpu-of-stock")
	b.ReportMetric(ceiling, "ceiling")
	b.ReportMetric(median(ofPlain)/ceiling, "of-ceiling")
	b.ReportMetric(conflicts, "conflicts")
	b.ReportMetric(0, "ns/op")
}

// result is one arm's burst.
type result struct {
	rate float64 // pods/s
	cpu  float64 // ms of all processes for each pod
	cost writes  // for each pod
	wait []time.Duration
}

// results are those of all rounds.
type results struct {
	rates, cpus, writes []float64
	waits               []time.Duration
}

func (r *results) add(one result) {
	r.rates = append(r.rates, one.rate)
	r.cpus = append(r.cpus, one.cpu)
	r.writes = append(r.writes, one.cost.total())
	r.waits = append(r.waits, one.wait...)
}

// race has a burst of the arm's pods created and bound, and clears them away. What
// is written of them after the last is bound, events as a rule, is among its costs.
func (a arm) race(b *testing.B) result {
	b.Helper()
	ensureAllocators(b)
	settle(b)
	c, wrote, used, begun := follow(b, a, burst), writesSoFar(b), cpuTimes(), time.Now()
	profiled := a.profile(b)
	c.create(b, a)
	c.await(b, a)
	busy := used.since(cpuTimes()).total().Seconds() / time.Since(begun).Seconds()
	settle(b)
	cpu := used.since(cpuTimes())
	r := result{rate: c.rate(), cpu: cpu.total().Seconds() * 1000 / burst, cost: writesSoFar(b).since(wrote, burst), wait: c.waits()}
	b.Logf("%s: %.0f pods/s, p50 %v, p99 %v; writes per pod %.3v; %.1f cores busy; CPU time per pod %.1f ms: %s", a, r.rate,
		quantile(0.5, r.wait).Round(time.Millisecond), quantile(0.99, r.wait).Round(time.Millisecond), r.cost, busy, r.cpu, cpu.of(burst))
	profiled()
	a.clear(b)
	return r
}

// settle waits until nobody writes any more what is counted.
func settle(b *testing.B) {
	b.Helper()
	before := writesSoFar(b).total()
	err := wait.PollUntilContextTimeout(b.Context(), time.Second, patience, false, func(context.Context) (bool, error) {
		now := writesSoFar(b).total()
		quiet := now == before
		before = now
		return quiet, nil
	})
	if err != nil {
		b.Fatalf("pods, events or ledgers are still written after %v", patience)
	}
}
