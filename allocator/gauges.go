// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// register has the process's metrics include the gauges until ctx ends. Of several
// allocators in one process, which only tests have, the first one is shown.
func register(ctx context.Context, g prometheus.Collector) error {
	err := metrics.Registry.Register(g)
	if errors.As(err, &prometheus.AlreadyRegisteredError{}) {
		return nil
	}
	context.AfterFunc(ctx, func() { metrics.Registry.Unregister(g) })
	return err
}

// Collector has the gauges of the allocator's view of the cluster.
func (a *Allocator) Collector() prometheus.Collector {
	return gauges{a.cache.Index, a.queue, a.reservations, a.repair.IdleAfter, a.clock}
}

// gauges are an allocator's view of the cluster. They are worked out when Prometheus asks,
// and a standby has the same of devices.
type gauges struct {
	index        *index.Index
	queue        *queue.Queue
	reservations *reservation.Reservations
	idleAfter    time.Duration
	clock        clock.PassiveClock
}

var (
	waitingPods = prometheus.NewDesc("vernier_allocator_waiting_pods",
		"Gated pods that fit nowhere now.", nil, nil)
	waitingByReason = prometheus.NewDesc("vernier_allocator_waiting_pods_by_reason",
		"Gated pods that cannot be placed now, by what is against them: devices, scheduler, invalid, or others: pods that they start with or come after.", []string{"reason"}, nil)
	reservations = prometheus.NewDesc("vernier_allocator_reservations",
		"Room on GPUs that is kept for a pod or a gang, by why. The head is that of the pods that wait. For defragment others are moved, and move is for their successors. Workload is for Kueue's.", []string{"kind"}, nil)
	headWait = prometheus.NewDesc("vernier_allocator_head_of_line_wait_seconds",
		"For how long room has been kept for the head of the line that waits longest, 0 without one.", nil, nil)
	headEstimate = prometheus.NewDesc("vernier_allocator_head_of_line_estimate_seconds",
		"How long that was estimated to take, 0 where nobody knows.", nil, nil)
	devicesByUse = prometheus.NewDesc("vernier_allocator_devices",
		"GPUs that may take slices, by how much of them is granted: free, shared or full.", []string{"use"}, nil)
	agentReachable = prometheus.NewDesc("vernier_allocator_agent_reachable",
		"1 while the node agent's pod is ready, 0 while it is not or is not there: nothing is granted on the node then.", []string{"node"}, nil)
	driftedSlices = prometheus.NewDesc("vernier_allocator_drifted_slices",
		"Slices of which containers have other amounts than the node's ledger grants: it was edited. Without a series there are none.", []string{"node"}, nil)
	gpus = prometheus.NewDesc("vernier_allocator_gpus",
		"GPUs that the nodes see, by model, in service or not.", []string{"model"}, nil)
	memory = prometheus.NewDesc("vernier_allocator_memory_bytes",
		"Memory of these GPUs.", []string{"model"}, nil)
	grantedGPUs = prometheus.NewDesc("vernier_allocator_granted_gpus",
		"Compute that is granted to pods of a namespace, in whole GPUs, by the GPUs' model. It is without a model on GPUs that their nodes do not see.", []string{"namespace", "model"}, nil)
	grantedMemory = prometheus.NewDesc("vernier_allocator_granted_memory_bytes",
		"Memory of GPUs that is granted to pods of a namespace, by the GPUs' model.", []string{"namespace", "model"}, nil)
	idleSlices = prometheus.NewDesc("vernier_allocator_idle_slices",
		"Slices of a namespace that have done no work on their GPUs for idle.after, by the GPUs' model. Without a series there are none.", []string{"namespace", "model"}, nil)
	fragmentCore = prometheus.NewDesc("vernier_allocator_fragment_gpus",
		"Compute that is free on GPUs of which a part is granted, in whole GPUs, by whether memory is left beside it: usable or stranded.", []string{"state"}, nil)
)

// Describe implements prometheus.Collector.
func (g gauges) Describe(to chan<- *prometheus.Desc) {
	to <- waitingPods
	to <- waitingByReason
	to <- reservations
	to <- headWait
	to <- headEstimate
	to <- devicesByUse
	to <- agentReachable
	to <- driftedSlices
	to <- gpus
	to <- memory
	to <- grantedGPUs
	to <- grantedMemory
	to <- idleSlices
	to <- fragmentCore
}

// Collect implements prometheus.Collector.
func (g gauges) Collect(to chan<- prometheus.Metric) {
	send := func(desc *prometheus.Desc, values map[string]float64) {
		for label, v := range values {
			to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, label)
		}
	}
	sum := 0
	for reason, n := range g.queue.Waiting() {
		to <- prometheus.MustNewConstMetric(waitingByReason, prometheus.GaugeValue, float64(n), reason)
		sum += n
	}
	to <- prometheus.MustNewConstMetric(waitingPods, prometheus.GaugeValue, float64(sum))
	g.collectReservations(to)
	all := holdings{}
	for _, node := range g.index.Names() {
		if l := g.index.Ledger(node); l != nil {
			collectNode(to, l)
			all.add(l)
			all.idle(l, g.idleAfter, g.clock.Now())
		}
	}
	all.send(to)
	use, fragments := fragmentation(g.index.Room())
	send(devicesByUse, use)
	send(fragmentCore, fragments)
}

// collectReservations sends how many there are, and how the oldest head of a line fares.
func (g gauges) collectReservations(to chan<- prometheus.Metric) {
	kinds := map[reservation.Kind]int{reservation.Preemption: 0, reservation.Head: 0, reservation.Defragment: 0, reservation.Move: 0, reservation.Workload: 0}
	wait, estimate := 0., 0.
	for _, r := range g.reservations.All() {
		if kinds[r.Kind]++; r.Kind == reservation.Head && kinds[r.Kind] == 1 {
			wait = g.clock.Since(r.Made).Seconds()
			if !r.End.IsZero() {
				estimate = max(0, r.End.Sub(r.Made).Seconds())
			}
		}
	}
	for kind, n := range kinds {
		to <- prometheus.MustNewConstMetric(reservations, prometheus.GaugeValue, float64(n), string(kind))
	}
	to <- prometheus.MustNewConstMetric(headWait, prometheus.GaugeValue, wait)
	to <- prometheus.MustNewConstMetric(headEstimate, prometheus.GaugeValue, estimate)
}

// collectNode sends what a ledger's status says.
func collectNode(to chan<- prometheus.Metric, l *v1alpha1.SliceLedger) {
	if c := meta.FindStatusCondition(l.Status.Conditions, v1alpha1.ConditionAgentReachable); c != nil {
		reachable := 0.
		if c.Status == metav1.ConditionTrue {
			reachable = 1
		}
		to <- prometheus.MustNewConstMetric(agentReachable, prometheus.GaugeValue, reachable, l.Name)
	}
	drifted := 0.
	if slices.ContainsFunc(l.Status.Slices, func(s v1alpha1.SliceStatus) bool { return s.InForce != nil }) {
		for _, s := range view.SlicesOf(l) {
			if s.State == view.StateDrifted {
				drifted++
			}
		}
	}
	if drifted > 0 {
		to <- prometheus.MustNewConstMetric(driftedSlices, prometheus.GaugeValue, drifted, l.Name)
	}
}

// holdings are what there is of each model, and what each namespace holds of it. The
// series of single GPUs are the node agents': here they would be 40,000 in one scrape.
type holdings map[holder]held

// holder is a namespace, or none for all that there is, and a model.
type holder struct{ namespace, model string }

type held struct {
	gpus int
	core v1alpha1.Percent
	mem  v1alpha1.MiB
	idle int
}

// add adds up as the ledger's own rules do: what a slice reuses of its pod's other slices
// counts once.
func (h holdings) add(l *v1alpha1.SliceLedger) {
	models := make(map[string]string, len(l.Status.Devices))
	for i := range l.Status.Devices {
		d := &l.Status.Devices[i]
		models[d.UUID] = d.Model
		all := h[holder{"", d.Model}]
		h[holder{"", d.Model}] = held{gpus: all.gpus + 1, mem: all.mem + d.Mem}
	}
	for i := range l.Spec.Devices {
		d := &l.Spec.Devices[i]
		for j := range d.Slices {
			s := &d.Slices[j]
			namespace, _, _ := strings.Cut(s.Owner, "/")
			of := holder{namespace, models[d.UUID]}
			h[of] = held{core: h[of].core + s.Core - s.ReuseCore, mem: h[of].mem + s.Mem - s.ReuseMem, idle: h[of].idle}
		}
	}
}

// idle counts what has been idle for as long at least; 0 is no time.
func (h holdings) idle(l *v1alpha1.SliceLedger, after time.Duration, now time.Time) {
	for _, s := range view.SlicesOf(l) {
		if s.IdleSince == nil || after == 0 || now.Sub(s.IdleSince.Time) < after {
			continue
		}
		for i := range l.Status.Devices {
			if d := &l.Status.Devices[i]; d.UUID == s.UUID {
				of := h[holder{s.Namespace, d.Model}]
				of.idle++
				h[holder{s.Namespace, d.Model}] = of
			}
		}
	}
}

func (h holdings) send(to chan<- prometheus.Metric) {
	for of, n := range h {
		if of.namespace == "" {
			to <- prometheus.MustNewConstMetric(gpus, prometheus.GaugeValue, float64(n.gpus), of.model)
			to <- prometheus.MustNewConstMetric(memory, prometheus.GaugeValue, float64(n.mem.Bytes()), of.model)
			continue
		}
		to <- prometheus.MustNewConstMetric(grantedGPUs, prometheus.GaugeValue, float64(n.core)/float64(v1alpha1.WholeGPU), of.namespace, of.model)
		to <- prometheus.MustNewConstMetric(grantedMemory, prometheus.GaugeValue, float64(n.mem.Bytes()), of.namespace, of.model)
		if n.idle > 0 {
			to <- prometheus.MustNewConstMetric(idleSlices, prometheus.GaugeValue, float64(n.idle), of.namespace, of.model)
		}
	}
}

// fragmentation tells how the devices are used, and how much compute is free on
// those of which a part is granted.
func fragmentation(nodes []*placement.Node) (use, fragments map[string]float64) {
	use = map[string]float64{"free": 0, "shared": 0, "full": 0}
	fragments = map[string]float64{"usable": 0, "stranded": 0}
	for _, n := range nodes {
		for i := range n.Devices {
			d := &n.Devices[i]
			free := float64(d.FreeCore) / float64(v1alpha1.WholeGPU)
			switch {
			case d.Slots == v1alpha1.MaxSlicesPerDevice:
				use["free"]++
			case d.FreeCore <= 0 && d.FreeMem <= 0:
				use["full"]++
			default:
				use["shared"]++
				if d.FreeMem > 0 && d.Slots > 0 {
					fragments["usable"] += max(0, free)
				} else {
					fragments["stranded"] += max(0, free)
				}
			}
		}
	}
	return use, fragments
}
