// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
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
	backfilled = prometheus.NewCounter(prometheus.CounterOpts{
		Name: "vernier_allocator_backfilled_pods_total",
		Help: "Pods that were placed on reserved devices because they end before the owner of the reservation could start.",
	})
)

func init() { metrics.Registry.MustRegister(decisionSeconds, nodesJudged, backfilled) }
