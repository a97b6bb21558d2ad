// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package throughput

import (
	"maps"
	"slices"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

const (
	// many pods are a third of what fits on the nodes' GPUs.
	many = 10000
	// killAt is how many of them are bound when the leader is killed.
	killAt = 2000
)

// BenchmarkFailOver has 10,000 pods created at once and kills the allocator that leads
// while it is placing them. One iteration says it.
//
// Metrics: the longest time from the kill on, in seconds, in which no pod is let go; pods
// a second over all; memory of the new leader, with 1,000 nodes and 10,000 pods, as the
// kernel counts it and as its Go heap.
func BenchmarkFailOver(b *testing.B) {
	for b.Loop() {
		ensureAllocators(b)
		leader := sys.LeadingAllocator(b)
		c := follow(b, withVernier, many)
		var killed time.Time
		failed := make(chan error, 1)
		c.mu.Lock()
		c.onBound = func(n int) {
			if n == killAt {
				killed = time.Now()
				go func() { failed <- leader.Kill() }()
			}
		}
		c.mu.Unlock()
		c.create(b, withVernier)
		c.await(b, withVernier)
		must.Do(b, <-failed)
		b.ReportMetric(c.gapAfter(killed).Seconds(), "fail-over-s")
		b.ReportMetric(c.rate(), "pods/s")
		b.ReportMetric(quantile(0.99, c.waits()).Seconds(), "p99-s")
		text := metricsOf(b, sys.LeadingAllocator(b))
		b.ReportMetric(sum(text, "process_resident_memory_bytes")/(1<<20), "RSS-MiB")
		b.ReportMetric(sum(text, "go_memstats_heap_alloc_bytes")/(1<<20), "heap-MiB")
		b.ReportMetric(0, "ns/op")
		must.Do(b, leader.EnsureRunning())
		withVernier.clear(b)
	}
}

// gapAfter is the longest time after a moment in which nobody let a pod go. What the
// dead one had let go may reach this watch late, on a busy machine by more than a
// second: so it is not the time until the next pod.
func (c *course) gapAfter(moment time.Time) (longest time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := moment
	for _, at := range slices.SortedFunc(maps.Values(c.ungated), time.Time.Compare) {
		if at.After(before) {
			longest, before = max(longest, at.Sub(before)), at
		}
	}
	return longest
}
