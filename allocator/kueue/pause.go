// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
)

// A Workload for which there is no room is to give its quota back at once, and to be tried again after a
// pause. Kueue's requeueAfterSeconds in a check that says Retry has it keep its quota for the pause (0.17,
// 0.19): its controller waits before it evicts. So the check says Retry without one, by which the
// Workload is evicted. Then, while its quota is taken back, it says Retry with the pause, which Kueue notes
// in status.requeueState. As soon as it has, the check is pending again, as Kueue expects it of a
// Workload in a queue. Each step follows from the Workload alone, so that any of them may be lost.

// evicted is since when the Workload is evicted for a check; false where it is not.
func (w *workload) evicted() (time.Time, bool) {
	c := meta.FindStatusCondition(w.Status.Conditions, "Evicted")
	if c == nil || c.Status != metav1.ConditionTrue || c.Reason != "AdmissionCheck" || w.DeletionTimestamp != nil {
		return time.Time{}, false
	}
	return c.LastTransitionTime.Time, true
}

// pauseOf is what a check of ours is to say of an evicted Workload; false for what it says.
func (k *Workloads) pauseOf(w *workload, c checkState) (next checkState, is bool) {
	since, evicted := w.evicted()
	if !evicted || ptr.Deref(c.RetryCount, 0) == 0 {
		return c, false
	}
	noted := w.Status.RequeueState != nil && w.Status.RequeueState.RequeueAt != nil
	pause := min(FirstRetry<<min(max(*c.RetryCount-1, 0), 8), LastRetry)
	left := pause - k.Clock.Since(since)
	next = checkState{Name: c.Name, Message: c.Message, LastTransitionTime: metav1.NewTime(k.Clock.Now()), RetryCount: c.RetryCount}
	if why := k.why[w.key()]; why != "" {
		next.Message = fmt.Sprintf("tried again after %v: %s", pause, why)
	}
	switch {
	case c.State == pending && !noted && left >= time.Second:
		next.State, next.RequeueAfterSeconds = retry, ptr.To(int32(left.Seconds()))
		return next, true
	case c.State == retry && (noted || left <= 0):
		next.State = pending
		return next, true
	}
	return c, false
}

// paused has the pause of a Workload written, if it is to be. The caller holds mu.
func (k *Workloads) paused(w *workload) bool {
	for _, c := range w.Status.AdmissionChecks {
		if _, is := k.pauseOf(w, c); is && k.checks[c.Name] != nil {
			return true
		}
	}
	return false
}

func (k *Workloads) writePause(ctx context.Context, key types.NamespacedName) error {
	k.mu.Lock()
	w := k.known[key]
	if w == nil || !k.paused(w) {
		k.mu.Unlock()
		return nil
	}
	patch := k.patch(w, func(c checkState) (checkState, bool) { return k.pauseOf(w, c) })
	for i, c := range w.Status.Conditions {
		if c.Type == "Evicted" {
			at := fmt.Sprintf("/status/conditions/%d", i)
			patch = append([]operation{{"test", at + "/type", c.Type}, {"test", at + "/status", string(c.Status)}}, patch...)
		}
	}
	k.mu.Unlock()
	written, err := k.send(ctx, key, patch)
	if written != nil {
		k.put(written)
	}
	return err
}
