// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// Why a pod with an idle slice is evicted.
const (
	IdleMemory  = "memory"
	IdleGone    = "gone"
	IdleStarved = "starved"
)

var (
	placements = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "vernier_allocator_placements_total",
		Help: "Pods that were placed and ungated.",
	})
	waitSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "vernier_allocator_wait_seconds",
		Help:    "Time from a pod's creation, which is known to the second, until it was placed and ungated.",
		Buckets: prometheus.ExponentialBuckets(1, 3, 10),
	})
	conflicts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vernier_allocator_conflicts_total",
		Help: "Writes that lost against another writer and were decided again, by object: ledger or pod.",
	}, []string{"object"})
	releases = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "vernier_allocator_released_pods_total",
		Help: "Pods whose slices were taken out of a ledger.",
	})
	// IdleEvictions are evictions of pods with idle slices.
	IdleEvictions = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vernier_allocator_idle_slice_evictions_total",
		Help: "Idle slices that were taken back or given up. By reason: memory (others need it), gone (ended by the node agent, or lost), starved.",
	}, []string{"reason"})
	refusedWrites = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vernier_allocator_refused_writes_total",
		Help: "Writes that the API server refused, as by an admission policy or a webhook that is away. By write: " + strings.Join(writes, ", ") + ".",
	}, []string{"write"})
)

func init() {
	// A rate needs a series from the beginning.
	for _, object := range []string{"ledger", "pod"} {
		conflicts.WithLabelValues(object)
	}
	for _, reason := range []string{IdleMemory, IdleGone, IdleStarved} {
		IdleEvictions.WithLabelValues(reason)
	}
	for _, write := range writes {
		refusedWrites.WithLabelValues(write)
	}
	metrics.Registry.MustRegister(placements, waitSeconds, conflicts, releases, refusedWrites, IdleEvictions)
}
