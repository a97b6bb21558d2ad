// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/utils/clock"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
)

// acceleratorMake is the maker's name as cAdvisor spelled it.
const acceleratorMake = "nvidia"

// dutyWindow is the least time over which a duty cycle is taken, as in cAdvisor.
const dutyWindow = 10 * time.Second

// accelerators are the statistics that cAdvisor had for whole GPUs
// (AcceleratorStats), under their old names, of slices: what a dashboard of then
// shows is the slice as the container's device. The duty cycle is of the device's
// time: a container that uses all of its 30 percent shows 30.
type accelerators struct {
	total, used, duty *prometheus.Desc
	clock             clock.PassiveClock

	mu    sync.Mutex
	spans map[spanKey]span
}

type spanKey struct{ container, uuid string }

// span is what a container had used when a time began, and its duty cycle in the
// time before; negative before there was one. Of a whole device it begins with every reading.
type span struct {
	began time.Time
	busy  time.Duration
	last  float64
}

// accelerator is one slice of a container for these statistics.
type accelerator struct {
	id, namespace, pod, container string
	model, uuid                   string
}

func newAccelerators(node string, clock clock.PassiveClock) *accelerators {
	desc := func(name, help string) *prometheus.Desc {
		return prometheus.NewDesc("container_accelerator_"+name, help,
			[]string{"namespace", "pod", "container", "make", "model", "acc_id"}, prometheus.Labels{"node": node})
	}
	return &accelerators{
		total: desc("memory_total_bytes", "Device memory that the container may use."),
		used:  desc("memory_used_bytes", "Device memory that the container's processes are charged; of a whole GPU what the driver says is in use."),
		duty:  desc("duty_cycle", "Percent of the device's time that the container used over at least the last 10 s. It is 30 when a slice with gpu-core: 30 uses all it may. Of a whole GPU the driver's utilisation. Absent without a quota, and at a container's first scrape."),
		clock: clock,
		spans: map[spanKey]span{},
	}
}

func (a *accelerators) send(out chan<- prometheus.Metric, d *prometheus.Desc, of accelerator, value float64) {
	out <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, of.namespace, of.pod, of.container, acceleratorMake, of.model, of.uuid)
}

// slice sends what a limited container uses. Its time is known where it has a
// quota.
func (a *accelerators) slice(out chan<- prometheus.Metric, of accelerator, usedBytes uint64, busy time.Duration, quota v1alpha1.Percent) {
	a.send(out, a.used, of, float64(usedBytes))
	if quota == 0 {
		return
	}
	if percent, known := a.cycle(spanKey{of.id, of.uuid}, busy); known {
		a.send(out, a.duty, of, percent)
	}
}

// whole sends what is used of a device that a container has to itself. It returns the device's
// busy time since the first reading: each reading counts for the time since the one before.
func (a *accelerators) whole(out chan<- prometheus.Metric, of accelerator, use device.Use) time.Duration {
	a.send(out, a.used, of, float64(use.MemoryBytes))
	a.send(out, a.duty, of, float64(use.Busy))
	a.mu.Lock()
	defer a.mu.Unlock()
	key, now := spanKey{of.id, of.uuid}, a.clock.Now()
	s, found := a.spans[key]
	if found {
		s.busy += now.Sub(s.began) * time.Duration(use.Busy) / 100
	}
	s.began = now
	a.spans[key] = s
	return s.busy
}

// cycle is the percent of its time that the container used a device in the last
// span that is over. Several readers share the spans.
func (a *accelerators) cycle(key spanKey, busy time.Duration) (percent float64, known bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.clock.Now()
	s, found := a.spans[key]
	switch took := now.Sub(s.began); {
	case !found:
		s = span{began: now, busy: busy, last: -1}
	case took >= dutyWindow:
		// A tenant may have written anything there, a smaller figure too.
		s = span{began: now, busy: busy, last: 100 * min(max(float64(busy-s.busy)/float64(took), 0), 1)}
	}
	a.spans[key] = s
	return s.last, s.last >= 0
}

// forget drops the spans of containers that are gone.
func (a *accelerators) forget(lives func(container string) bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for key := range a.spans {
		if !lives(key.container) {
			delete(a.spans, key)
		}
	}
}
