// SPDX-License-Identifier: Apache-2.0

// Package bindwatch owns the watch over placed pods that are not bound: which the scheduler
// refuses, or no scheduler looks at, and since when. It evicts a pod that a
// controller makes again, and takes back the slices of any other in the end.
//
// A Watch may be used concurrently.
package bindwatch

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/cache"
	"vernier.dev/vernier/allocator/ledgerspec"
	"vernier.dev/vernier/allocator/notify"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
)

// All count from when the present leader first saw the refusal.
const (
	// RefusedGrace is how long the scheduler may refuse a placed pod before the pod
	// is given up: long enough for a node that is just being restarted.
	RefusedGrace = 30 * time.Second
	// RefusedHold is how long a pod without a controller keeps its slices all the
	// same: its owner can uncordon the node until then, or make room on it.
	RefusedHold = 10 * time.Minute
)

// Watch is what is known of placed pods that are not bound.
type Watch struct {
	cache      *cache.Cache
	queue      *queue.Queue
	binder     *binding.Binder
	notify     *notify.Notifier
	preemption *preemption.Preemption
	clock      clock.PassiveClock

	mu       sync.Mutex
	refusals map[types.UID]*refusal
}

// New knows of no pod. Forget is to be called for each that is gone.
func New(cache *cache.Cache, queue *queue.Queue, binder *binding.Binder, notify *notify.Notifier, preemption *preemption.Preemption, clock clock.PassiveClock) *Watch {
	return &Watch{cache: cache, queue: queue, binder: binder, notify: notify, preemption: preemption, clock: clock, refusals: map[types.UID]*refusal{}}
}

// refusal is a placed pod that the scheduler does not bind.
type refusal struct {
	since time.Time
	// unclaimed: no scheduler has set a condition.
	unclaimed bool
	// sent is true once there was an event about it.
	sent bool
}

// Forget is for a pod that is gone.
func (w *Watch) Forget(pod *corev1.Pod) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.refusals, pod.UID)
}

// Check looks after a pod that is past our gate.
func (w *Watch) Check(ctx context.Context, pod *corev1.Pod) error {
	for _, node := range w.cache.Index.Holders(pod.UID) {
		if node != podstate.TargetNode(pod) {
			w.queue.Add(queue.Item{Node: node})
		}
	}
	if podstate.CreateFailed(pod) {
		w.queue.Add(queue.Item{Node: pod.Spec.NodeName})
	}
	since := w.refusedFor(pod)
	if since < RefusedGrace {
		return nil
	}
	if podstate.Unclaimed(pod) {
		w.emitUnclaimed(pod)
		return nil
	}
	if err := w.preemption.Failed(ctx, pod); err != nil {
		return err
	}
	if metav1.GetControllerOfNoCopy(pod) != nil {
		return w.evict(ctx, pod)
	}
	return w.hold(ctx, pod, since)
}

// refusedFor is how long the scheduler has refused or ignored the pod, zero when it does not.
// The pod is looked at again when that matters.
func (w *Watch) refusedFor(pod *corev1.Pod) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	unclaimed := podstate.Unclaimed(pod)
	if !podstate.Unschedulable(pod) && !unclaimed {
		delete(w.refusals, pod.UID)
		return 0
	}
	now := w.clock.Now()
	r := w.refusals[pod.UID]
	if r == nil || r.unclaimed != unclaimed {
		// The condition's own time is of no use: it does not change when a gated
		// pod becomes an unschedulable one.
		r = &refusal{since: now, unclaimed: unclaimed}
		if w.cache.Current(pod) != nil { // else Forget has been called, or will be
			w.refusals[pod.UID] = r
		}
	}
	since := now.Sub(r.since)
	for _, limit := range []time.Duration{RefusedGrace, RefusedHold} {
		if since < limit {
			w.queue.AddAfter(queue.Item{Pod: podstate.KeyOf(pod)}, limit-since)
			break
		}
	}
	return since
}

// once reports whether there is to be an event about the refusal of the pod: the first time.
func (w *Watch) once(pod *corev1.Pod) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.refusals[pod.UID]
	if r == nil || r.sent {
		return false
	}
	r.sent = true
	return true
}

// emitRefused sends, once, what becomes of the pod.
func (w *Watch) emitRefused(pod *corev1.Pod, remedy string) {
	if w.once(pod) {
		pinRefusals.Inc()
		w.notify.Emit(pod, corev1.EventTypeWarning, notify.ReasonPinRefused,
			fmt.Sprintf("placed on node %s, but the scheduler refuses it there; %s", podstate.TargetNode(pod), remedy))
	}
}

// emitUnclaimed sends, once, that no scheduler binds the pod. It keeps its place: a
// scheduler that is only away binds it later.
func (w *Watch) emitUnclaimed(pod *corev1.Pod) {
	if w.once(pod) {
		w.notify.Emit(pod, corev1.EventTypeWarning, notify.ReasonIgnored, fmt.Sprintf(
			"placed on node %s, and no scheduler %q has looked at it for %v: start that scheduler, or delete the pod and create it with schedulerName %s; it keeps its slices until then",
			podstate.TargetNode(pod), pod.Spec.SchedulerName, RefusedGrace, corev1.DefaultSchedulerName))
	}
}

// evict ends a placement that came out wrong: the node cannot take the pod after
// all, and a pod cannot be gated again. Its controller makes a new one, and the
// deletion of an unbound pod releases its slices.
func (w *Watch) evict(ctx context.Context, pod *corev1.Pod) error {
	w.emitRefused(pod, "it is deleted, so that its controller creates it again")
	return w.binder.DeleteAsSeen(ctx, pod)
}

// hold does the same for a pod that no controller would make again: it is its owner's to
// delete. Its slices are taken back when it has had them for long enough. If it is
// bound in the end, they are restored where there is still room; else the node
// refuses its containers for want of a slice, and says what to do.
//
// The pod may be bound between the live read and the write, and be started with
// what is just being taken back. As with slices that were lost, the node then adds
// up what runs, and starts nothing beside it that would not fit.
func (w *Watch) hold(ctx context.Context, pod *corev1.Pod, since time.Duration) error {
	w.emitRefused(pod, fmt.Sprintf("the placement of a pod cannot be changed: free what it lacks on that node within %v, or delete the pod and create it again", RefusedHold))
	node := podstate.TargetNode(pod)
	ledger := w.cache.Index.Ledger(node)
	if since < RefusedHold || ledger == nil || ledgerspec.Placement(ledger, pod.UID) == nil {
		return nil
	}
	live, err := w.binder.Live(ctx, pod)
	if err != nil || live == nil || !podstate.Unschedulable(live) {
		return err
	}
	if err := w.binder.Release(ctx, ledger, func(uid types.UID) bool { return uid == pod.UID }); err != nil {
		return err
	}
	w.notify.Emit(pod, corev1.EventTypeWarning, notify.ReasonPinRefused,
		fmt.Sprintf("the scheduler refused it on node %s for %v: its slices are given back; delete the pod and create it again", node, RefusedHold))
	return nil
}

var pinRefusals = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "vernier_allocator_pin_refusals_total",
	Help: "Placed pods that the scheduler refused to bind for longer than it was given.",
})

func init() { metrics.Registry.MustRegister(pinRefusals) }
