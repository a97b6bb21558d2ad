// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package throughput

import (
	"testing"
	"time"
)

// burst is how many pods of an arm are created at once.
const burst = 1000

// BenchmarkThroughput has a burst of each arm's pods created and bound once per
// iteration. The arms take turns in who is first, so that each meets the cluster in
// every state that another leaves it in.
//
// Metrics: pods a second and the p99 of created to bound for each arm; Vernier's rate
// over each of the others; writes of pods, ledgers and events for each pod; what that
// would make of the rate if writes were all that counted (ceiling); conflicts.
func BenchmarkThroughput(b *testing.B) {
	rates, waits, costs := map[arm][]float64{}, map[arm][]time.Duration{}, map[arm][]float64{}
	ledgerWrites := []float64{}
	conflicts := 0.0
	for i := 0; b.Loop(); i++ {
		for k := range arms {
			a := arms[(i+k)%len(arms)]
			ensureAllocators(b)
			c, before, lost := follow(b, a, burst), writesSoFar(b), ledgerConflicts(b)
			cpu := cpuTimes()
			c.create(b, a)
			c.await(b, a)
			cost := writesSoFar(b).since(before, burst)
			rates[a] = append(rates[a], c.rate())
			waits[a] = append(waits[a], c.waits()...)
			costs[a] = append(costs[a], cost.total())
			if a == withVernier {
				ledgerWrites = append(ledgerWrites, cost["sliceledgers"])
				conflicts += ledgerConflicts(b) - lost
			}
			b.Logf("%s: %.0f pods/s, p50 %v, p99 %v; writes per pod %v; CPU time per pod: %s", a, c.rate(),
				quantile(0.5, c.waits()).Round(time.Millisecond), quantile(0.99, c.waits()).Round(time.Millisecond), cost, cpuSince(cpu, burst))
			a.clear(b)
		}
	}
	for _, a := range arms {
		short := string(a)[len("bench-"):]
		b.ReportMetric(mean(rates[a]), short+"-pods/s")
		b.ReportMetric(quantile(0.99, waits[a]).Seconds()*1000, short+"-p99-ms")
		b.ReportMetric(mean(costs[a]), short+"-writes/pod")
	}
	of := mean(rates[withVernier]) / mean(rates[plain])
	ceiling := mean(costs[plain]) / mean(costs[withVernier])
	b.ReportMetric(of, "of-plain")
	b.ReportMetric(mean(rates[withVernier])/mean(rates[stock]), "of-stock")
	b.ReportMetric(ceiling, "ceiling")
	b.ReportMetric(of/ceiling, "of-ceiling")
	b.ReportMetric(mean(ledgerWrites), "ledger-writes/pod")
	b.ReportMetric(conflicts, "conflicts")
	b.ReportMetric(0, "ns/op")
}
