// SPDX-License-Identifier: Apache-2.0

// Package bindwatch owns the watch over placed pods that are not bound: which the scheduler
// refuses, or no scheduler looks at, and since when. It evicts a pod that a
// controller makes again, and takes back the slices of any other in the end.
//
// A Watch may be used concurrently.
package bindwatch

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
)

// All count from when the present leader first saw the refusal.
const (
	// RefusedGrace is how long the scheduler may refuse a placed pod before the pod
	// is given up. It is long enough for a node that is just being restarted.
	RefusedGrace = 30 * time.Second
	// RefusedHold is how long a pod without a controller keeps its slices all the
	// same. Its owner can uncordon the node until then, or make room on it. For so long any
	// pod may stay unbound without a refusal: while it waits for a volume, or for a scheduler
	// that is away.
	RefusedHold = 10 * time.Minute
)

// Watch is what is known of placed pods that are not bound.
type Watch struct {
	cache  *cache.Cache
	queue  *queue.Queue
	binder *binding.Binder
	notify *notify.Notifier
	// failed notes that a pod was given up which the scheduler was to preempt for.
	failed func(context.Context, *corev1.Pod) error
	// unbound says which volume claims of a pod are not bound, empty for none.
	unbound func(*corev1.Pod) string
	clock   clock.PassiveClock

	mu       sync.Mutex
	refusals map[types.UID]*refusal
}

// New knows of no pod. Forget is to be called for each that is gone.
func New(cache *cache.Cache, queue *queue.Queue, binder *binding.Binder, notify *notify.Notifier, failed func(context.Context, *corev1.Pod) error, unbound func(*corev1.Pod) string, clock clock.PassiveClock) *Watch {
	return &Watch{cache: cache, queue: queue, binder: binder, notify: notify, failed: failed, unbound: unbound, clock: clock, refusals: map[types.UID]*refusal{}}
}

// refusal is a placed pod that the scheduler does not bind.
type refusal struct {
	// since is when it was first seen unbound, refused when the scheduler was first seen to
	// refuse it, zero while it does not.
	since, refused time.Time
	// sent is the latest event about it.
	sent string
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
	unbound, refused := w.unboundFor(pod)
	if refused < RefusedGrace && unbound < RefusedHold {
		if unbound >= RefusedGrace && refused < 0 {
			w.emitUnbound(pod)
		}
		return nil
	}
	if err := w.failed(ctx, pod); err != nil {
		return err
	}
	if metav1.GetControllerOfNoCopy(pod) != nil {
		// Where that is refused for good it is tried again all the same, and holds nothing.
		if err := w.evict(ctx, pod); err != nil || !w.binder.DeletionRefused(pod) {
			return err
		}
	}
	return w.hold(ctx, pod, unbound)
}

// unboundFor is how long the pod has not been bound, zero when it is; and how long the scheduler
// has refused it, negative when it does not. The pod is looked at again when that matters.
func (w *Watch) unboundFor(pod *corev1.Pod) (unbound, refused time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !podstate.Unbound(pod) || podstate.Preempting(pod) || scheduled(pod) {
		delete(w.refusals, pod.UID)
		return 0, -1
	}
	now := w.clock.Now()
	r := w.refusals[pod.UID]
	if r == nil {
		// The condition's own time is of no use: it does not change when a gated
		// pod becomes an unschedulable one.
		r = &refusal{since: now}
		if w.cache.Current(pod) != nil { // else Forget has been called, or will be
			w.refusals[pod.UID] = r
		}
	}
	switch {
	case !podstate.Unschedulable(pod):
		r.refused = time.Time{}
	case r.refused.IsZero():
		r.refused = now
	}
	unbound, refused = now.Sub(r.since), -1
	next := RefusedGrace - unbound
	if !r.refused.IsZero() {
		refused = now.Sub(r.refused)
		next = RefusedGrace - refused
	}
	if next <= 0 {
		next = RefusedHold - unbound
	}
	// What is done then may come to nothing, as where the watch is behind.
	if next <= 0 && len(w.cache.Index.Holders(pod.UID)) > 0 {
		next = RefusedGrace
	}
	if next > 0 {
		w.queue.AddAfter(queue.Item{Pod: podstate.KeyOf(pod)}, next)
	}
	return unbound, refused
}

// scheduled reports whether the scheduler says that it binds the pod.
func scheduled(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && c.Status == corev1.ConditionTrue
	})
}

// once reports whether there is to be such an event about the pod: the first time.
func (w *Watch) once(pod *corev1.Pod, text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := w.refusals[pod.UID]
	if r == nil || r.sent == text {
		return false
	}
	r.sent = text
	return true
}

// emitRefused sends, once, what becomes of the pod.
func (w *Watch) emitRefused(pod *corev1.Pod, remedy string) {
	text := fmt.Sprintf("placed on node %s, but the scheduler %s; %s", podstate.TargetNode(pod), w.against(pod), remedy)
	if w.once(pod, text) {
		pinRefusals.Inc()
		w.notify.Emit(pod, corev1.EventTypeWarning, notify.ReasonPinRefused, text)
	}
}

// against is what keeps the scheduler from binding the pod.
func (w *Watch) against(pod *corev1.Pod) string {
	text := "refuses it there"
	if !podstate.Unschedulable(pod) {
		text = "has not bound it"
	}
	if claims := w.unbound(pod); claims != "" {
		text += ": " + claims
	}
	return text
}

// emitUnbound sends, once, that the pod is not bound and nobody has refused it. It keeps its
// place for a while: a scheduler that is only away, or a volume that is only late, comes.
func (w *Watch) emitUnbound(pod *corev1.Pod) {
	reason, text, claims := notify.ReasonPinRefused, "", w.unbound(pod)
	switch {
	case claims != "":
		text = fmt.Sprintf("placed on node %s, and not bound for %v: %s", podstate.TargetNode(pod), RefusedGrace, claims)
	case podstate.Unclaimed(pod):
		reason = notify.ReasonIgnored
		text = fmt.Sprintf("placed on node %s, and no scheduler %q has looked at it for %v. Start that scheduler, or delete the pod and create it with schedulerName %s",
			podstate.TargetNode(pod), cmp.Or(pod.Spec.SchedulerName, corev1.DefaultSchedulerName), RefusedGrace, corev1.DefaultSchedulerName)
	default:
		return // the scheduler is at it
	}
	if text += fmt.Sprintf("; it keeps its slices for %v", RefusedHold); w.once(pod, text) {
		w.notify.Emit(pod, corev1.EventTypeWarning, reason, text)
	}
}

// evict ends a placement that came out wrong: the node cannot take the pod after
// all, and a pod cannot be gated again. Its controller makes a new one, and the
// deletion of an unbound pod releases its slices.
func (w *Watch) evict(ctx context.Context, pod *corev1.Pod) error {
	if !w.binder.DeletionRefused(pod) {
		w.emitRefused(pod, "it is deleted, so that its controller creates it again")
	}
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
	if since < RefusedHold {
		w.emitRefused(pod, fmt.Sprintf("the placement of a pod cannot be changed: free what it lacks on that node within %v, or delete the pod and create it again", RefusedHold))
	}
	node := podstate.TargetNode(pod)
	ledger := w.cache.Index.Ledger(node)
	if since < RefusedHold || ledger == nil || grants.Placement(ledger, pod.UID) == nil {
		return nil
	}
	live, err := w.binder.Live(ctx, pod)
	if err != nil || live == nil || !podstate.Unbound(live) || scheduled(live) {
		return err
	}
	w.cache.GiveUp(pod)
	if err := w.binder.Release(ctx, ledger, func(uid types.UID) bool { return uid == pod.UID }); err != nil {
		return err
	}
	w.notify.Emit(pod, corev1.EventTypeWarning, notify.ReasonPinRefused,
		fmt.Sprintf("the scheduler %s on node %s for %v: its slices are given back; delete the pod and create it again", w.against(pod), node, RefusedHold))
	return nil
}

var pinRefusals = prometheus.NewCounter(prometheus.CounterOpts{
	Name: "vernier_allocator_pin_refusals_total",
	Help: "Placed pods that the scheduler refused to bind for longer than it was given.",
})

func init() { metrics.Registry.MustRegister(pinRefusals) }

// Remembered are the placed pods that are watched since the scheduler has not bound them.
func (w *Watch) Remembered() []types.UID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Collect(maps.Keys(w.refusals))
}
