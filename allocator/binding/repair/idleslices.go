// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
)

const (
	// starvedAfter is how long an idle slice gets next to nothing before its pod goes elsewhere.
	starvedAfter = 10 * time.Minute
	// evictAgain is the pause after an eviction that a budget forbade.
	evictAgain = 5 * time.Second
)

// evictIdle evicts a pod whose idle slice is gone or of no use. Its controller makes another, which
// goes where there is room. A budget may forbid it for a while, which is in nobody's way.
func (r *Reconciler) evictIdle(ctx context.Context, pod *corev1.Pod, node, reason, why string) error {
	if pod.DeletionTimestamp != nil || podstate.Terminal(pod) || podstate.Gated(pod) {
		return nil
	}
	ok, err := r.Binder.Evict(ctx, pod, ptr.To(binding.IdleGrace), false)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil { // as of a pod that several budgets cover: it holds nothing else up
		r.Log.Info("Cannot evict a pod whose idle slice is gone; it is tried again", "pod", podstate.KeyOf(pod), "err", err)
	}
	if err != nil || !ok {
		r.Queue.AddAfter(queue.Item{Node: node}, evictAgain)
		return nil
	}
	binding.IdleEvictions.WithLabelValues(reason).Inc()
	r.Notify.Emit(pod, corev1.EventTypeNormal, notify.ReasonIdleEvicted, fmt.Sprintf("evicted from node %s: %s", node, why))
	return nil
}

// evictStarved evicts pods whose idle slices have waited for compute for starvedAfter, and got next to none.
func (r *Reconciler) evictStarved(ctx context.Context, node string, known map[types.UID]*corev1.Pod) error {
	ledger := r.Cache.Index.Ledger(node)
	if ledger == nil {
		return nil
	}
	for i := range ledger.Status.Slices {
		s := &ledger.Status.Slices[i]
		pod := known[s.Pod]
		if s.StarvedSince == nil || pod == nil || !podrequest.OnIdle(pod) {
			continue
		}
		if left := starvedAfter - r.Clock.Now().Sub(s.StarvedSince.Time); left > 0 {
			r.Queue.AddAfter(queue.Item{Node: node}, left)
			continue
		}
		if err := r.evictIdle(ctx, pod, node, binding.IdleStarved, fmt.Sprintf("others left its idle slice less than 1 %% of the GPU for %v", starvedAfter)); err != nil {
			return err
		}
	}
	return nil
}
