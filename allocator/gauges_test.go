// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"maps"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// What Prometheus is told is what the ledgers and the waiting pods show.
func TestGauges(t *testing.T) {
	s := newStage(t, 2)
	s.add("part", 30, 500, labelled("x"), companyOf("x"))
	s.add("rest", 70, 500)
	s.work()
	s.add("hungry", 20, deviceMiB)
	s.work()
	s.add("none", 10, 10, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"absent": "x"} })
	s.add("second", 1, 1, labelled("x"))
	s.add("large", 10, deviceMiB+1)
	s.add("odd", 10, 10, func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationMode] = "odd" })
	s.work()
	use, fragments := fragmentation(s.allocator.index.Room())
	for _, tt := range []struct {
		name      string
		got, want map[string]float64
	}{
		{"use", use, map[string]float64{"free": 2, "full": 1, "shared": 1}},
		{"fragments", fragments, map[string]float64{"stranded": 0.8, "usable": 0}},
		{"waiting", gauges{s.allocator}.waitingReasons(), map[string]float64{"devices": 1, "invalid": 1, "scheduler": 1, "others": 1}},
	} {
		if !maps.Equal(tt.got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, tt.got, tt.want)
		}
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(gauges{s.allocator})
	if families, err := registry.Gather(); err != nil || len(families) != 4 {
		t.Errorf("%d metrics, want 4: %v", len(families), err)
	}
}
