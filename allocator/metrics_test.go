// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"errors"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"vernier.dev/vernier/test/objects"
)

// gathered is what Prometheus is shown now: by name, and by name{value} where there is one label; a histogram is its count, and its sum as name_sum.
func gathered(t testing.TB, of ...prometheus.Collector) map[string]float64 {
	t.Helper()
	own := prometheus.NewRegistry()
	own.MustRegister(of...)
	families, err := prometheus.Gatherers{metrics.Registry, own}.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			value := m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			if labels := m.GetLabel(); len(labels) == 1 {
				all[name+"{"+labels[0].GetValue()+"}"] += value
			}
			all[name] += value
			if m.GetHistogram() != nil {
				all[name+"_sum"] += m.GetHistogram().GetSampleSum()
			}
		}
	}
	return all
}

// Every metric of the allocator's own moves with what it is named after, and by as much.
func TestMetricsMove(t *testing.T) {
	s := newStage(t, 1)
	conflict := apierrors.NewConflict(schema.GroupResource{}, "n0", errors.New("no"))
	for _, tt := range []struct {
		name string
		do   func()
		want map[string]float64
	}{
		{"a pod is placed 7 s after it came", func() {
			s.add("p", 10, 100, func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(s.clock.Now()) })
			s.clock.Step(7 * time.Second)
			s.work()
		}, map[string]float64{"placements_total": 1, "wait_seconds": 1, "wait_seconds_sum": 7, "decision_duration_seconds": 1, "nodes_judged": 1, "nodes_judged_sum": 1}},
		{"a ledger's write loses", func() {
			s.add("late", 10, 100)
			s.readAll()
			s.refuse = conflict
			s.step()
			s.refuse = nil
			s.work()
		}, map[string]float64{"conflicts_total{ledger}": 1, "placements_total": 1, "decision_duration_seconds": 2}},
		{"a pod's patch loses", func() {
			p := s.add("edited", 10, 100)
			s.readAll()
			p.Labels = map[string]string{"edited": "meanwhile"}
			s.must(s.api.Update(t.Context(), p))
			s.step()
			s.notify(p, false)
			s.work()
		}, map[string]float64{"conflicts_total{pod}": 1, "placements_total": 1}},
		{"a pod has no room", func() {
			s.add("large", 10, objects.DeviceMiB+1)
			s.work()
		}, map[string]float64{"waiting_pods": 1, "decision_duration_seconds": 1, "placements_total": 0}},
		{"the scheduler refuses the node", func() {
			s.add("picky", 10, 100, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"absent": "x"} })
			s.work()
		}, map[string]float64{"waiting_pods": 1, "refused_nodes_total{NodeAffinity}": 1, "nodes_judged_sum": 1}},
		{"who waits goes", func() {
			s.forget("large", "picky")
		}, map[string]float64{"waiting_pods": -2, "released_pods_total": 0}},
		{"a placed pod goes", func() {
			s.forget("p")
		}, map[string]float64{"released_pods_total": 1, "conflicts_total{ledger}": 0, "conflicts_total{pod}": 0}},
	} {
		before := gathered(t, s.allocator.Collector())
		tt.do()
		after := gathered(t, s.allocator.Collector())
		for name, want := range tt.want {
			name = "vernier_allocator_" + name
			if _, is := after[name]; !is || after[name]-before[name] != want {
				t.Errorf("%s: %s went from %v to %v (there: %v), want %v more", tt.name, name, before[name], after[name], is, want)
			}
		}
	}
}
