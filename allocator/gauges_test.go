// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"maps"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// What Prometheus is told is what the ledgers and the waiting pods show.
func TestGauges(t *testing.T) {
	s := newStage(t, 2)
	s.add("part", 30, 500, objects.Labelled("x"), objects.Near("x"))
	s.add("rest", 70, 500)
	s.work()
	s.add("hungry", 20, objects.DeviceMiB)
	s.work()
	s.add("none", 10, 10, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"absent": "x"} })
	s.add("second", 1, 1, objects.Labelled("x"))
	s.add("large", 10, objects.DeviceMiB+1)
	s.add("odd", 10, 10, objects.Annotated(v1alpha1.AnnotationMode, "odd"))
	s.work()
	use, fragments := fragmentation(s.allocator.cache.Index.Room())
	for _, tt := range []struct {
		name      string
		got, want map[string]float64
	}{
		{"use", use, map[string]float64{"free": 2, "full": 1, "shared": 1}},
		{"fragments", fragments, map[string]float64{"stranded": 0.8, "usable": 0}},
	} {
		if !maps.Equal(tt.got, tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, tt.got, tt.want)
		}
	}
	if got, want := s.allocator.queue.Waiting(), map[string]int{"devices": 1, "invalid": 1, "scheduler": 1, "others": 1}; !maps.Equal(got, want) {
		t.Errorf("waiting: %v, want %v", got, want)
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(s.allocator.Collector())
	if families, err := registry.Gather(); err != nil || len(families) != 11 {
		t.Errorf("%d metrics, want 11: %v", len(families), err)
	}
}

// What there is and who holds it is told by model and namespace, as the ledger's rules add
// it up; a GPU that its node does not see has grants and no model.
func TestHoldings(t *testing.T) {
	h := holdings{}
	for _, name := range []string{"a", "b"} {
		l := &v1alpha1.SliceLedger{}
		l.Status.Devices = []v1alpha1.DeviceStatus{{UUID: "0", Model: "A100", Mem: 1000}, {UUID: "1", Model: "T4", Mem: 100}}
		l.Spec.Devices = []v1alpha1.DeviceLedger{
			{UUID: "0", Slices: []v1alpha1.Slice{
				{Owner: "one/" + name, Ctr: "init", Core: 60, Mem: 600, ReuseCore: 20, ReuseMem: 200}, {Owner: "one/" + name, Ctr: "main", Core: 20, Mem: 200},
				{Owner: "two/" + name, Ctr: "main", Core: 30, Mem: 10}}},
			{UUID: "gone", Slices: []v1alpha1.Slice{{Owner: "two/x", Core: 5, Mem: 7}}},
		}
		h.add(l)
	}
	want := holdings{{"", "A100"}: {gpus: 2, mem: 2000}, {"", "T4"}: {gpus: 2, mem: 200},
		{"one", "A100"}: {core: 120, mem: 1200}, {"two", "A100"}: {core: 60, mem: 20}, {"two", ""}: {core: 10, mem: 14}}
	if !maps.Equal(h, want) {
		t.Errorf("%+v, want %+v", h, want)
	}
	sent := make(chan prometheus.Metric, 20)
	h.send(sent)
	var one dto.Metric
	for close(sent); ; {
		m, more := <-sent
		if !more {
			t.Fatal("no series of namespace one's compute")
		}
		if m.Desc() != grantedGPUs {
			continue
		}
		if err := m.Write(&one); err != nil {
			t.Fatal(err)
		}
		if one.Label[1].GetValue() == "one" {
			break
		}
	}
	if one.GetGauge().GetValue() != 1.2 {
		t.Errorf("namespace one holds %v GPUs, want 1.2", one.GetGauge().GetValue())
	}
}

// Slices count that have been idle for as long as idle.after, by their namespace.
func TestIdleSlices(t *testing.T) {
	now := time.Unix(10_000, 0)
	l := &v1alpha1.SliceLedger{}
	l.Status.Devices = []v1alpha1.DeviceStatus{{UUID: "0", Model: "A100"}}
	l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: "0"}}
	for pod, idle := range map[string]time.Duration{"long": 30 * time.Minute, "longer": time.Hour, "short": 29 * time.Minute, "works": -1} {
		l.Spec.Devices[0].Slices = append(l.Spec.Devices[0].Slices, v1alpha1.Slice{Pod: types.UID(pod), Owner: "one/" + pod, Ctr: "main"})
		s := v1alpha1.SliceStatus{Pod: types.UID(pod), Ctr: "main", UUID: "0"}
		if idle >= 0 {
			s.IdleSince = &metav1.Time{Time: now.Add(-idle)}
		}
		l.Status.Slices = append(l.Status.Slices, s)
	}
	for after, want := range map[time.Duration]int{30 * time.Minute: 2, 0: 0} {
		h := holdings{}
		h.idle(l, after, now)
		if got := h[holder{"one", "A100"}].idle; got != want {
			t.Errorf("%d slices idle for %v, want %d", got, after, want)
		}
	}
}
