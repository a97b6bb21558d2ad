// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
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
	decisionSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "vernier_allocator_decision_duration_seconds",
		Help:    "Time to choose nodes and devices for one pod, or for a gang, without the writes.",
		Buckets: prometheus.ExponentialBuckets(10e-6, 4, 10),
	})
	nodesJudged = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "vernier_allocator_nodes_judged",
		Help:    "Nodes about which the scheduler's filters were asked for one pod, until one was accepted.",
		Buckets: prometheus.ExponentialBuckets(1, 4, 8),
	})
	conflicts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vernier_allocator_conflicts_total",
		Help: "Writes that lost against another writer and were decided again, by object: ledger or pod.",
	}, []string{"object"})
	releases = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "vernier_allocator_released_pods_total",
		Help: "Pods whose slices were taken out of a ledger.",
	})
	pinRefusals = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "vernier_allocator_pin_refusals_total",
		Help: "Placed pods that the scheduler refused to bind for longer than it was given.",
	})
)

func init() {
	// A rate needs a series from the beginning.
	for _, object := range []string{"ledger", "pod"} {
		conflicts.WithLabelValues(object)
	}
	metrics.Registry.MustRegister(placements, waitSeconds, decisionSeconds, nodesJudged, conflicts, releases, pinRefusals)
}
