// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	attempts = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vernier_allocator_preemption_attempts_total",
		Help: "Searches for victims with slices for a pod or a gang, by result: evicts, waits (for pods that end), forbidden (by a PodDisruptionBudget), nowhere.",
	}, []string{"result"})
	victimsCount = prometheus.NewHistogram(prometheus.HistogramOpts{
		Name:    "vernier_allocator_preemption_victims",
		Help:    "Pods that are evicted at a time for a pod or a gang.",
		Buckets: prometheus.ExponentialBuckets(1, 2, 7),
	})
)

var movedPods = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "vernier_allocator_moved_pods_total",
	Help: "Pods that were evicted so that another fits, while room was kept for what their controller makes instead.",
})

func init() { metrics.Registry.MustRegister(attempts, victimsCount, movedPods) }
