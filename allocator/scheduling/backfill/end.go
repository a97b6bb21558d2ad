// SPDX-License-Identifier: Apache-2.0

package backfill

import (
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/state/podstate"
)

// Slack is added to a pod's activeDeadlineSeconds and grace. The kubelet acts on a deadline
// some seconds late, and the node agent reports the containers' end after that.
const Slack = 60 * time.Second

// Lookahead is how far ahead is planned where nothing else is said: who leaves later stays.
const Lookahead = time.Hour

// Leaves reports whether the pod is ending, and is to have ended within the lookahead. A tenant may
// delete a pod with a grace period of years.
func Leaves(pod *corev1.Pod, now time.Time, lookahead time.Duration) bool {
	return podstate.Terminal(pod) || pod.DeletionTimestamp != nil && !pod.DeletionTimestamp.After(now.Add(lookahead+Slack))
}

// EndOf is when the pod has ended at the latest. It is false where nobody knows, where that is beyond the
// lookahead, and of a pod that is there although it was to have ended. A pod that has not started
// counts as starting now.
func EndOf(pod *corev1.Pod, now time.Time, lookahead time.Duration) (time.Time, bool) {
	end, known := endOf(pod, now)
	return end, known && !end.Before(now) && !end.After(now.Add(lookahead+Slack))
}

func endOf(pod *corev1.Pod, now time.Time) (time.Time, bool) {
	switch deadline := pod.Spec.ActiveDeadlineSeconds; {
	case podstate.Terminal(pod):
		return now.Add(Slack), true
	case pod.DeletionTimestamp != nil:
		// It includes the grace.
		return pod.DeletionTimestamp.Add(Slack), true
	case deadline != nil:
		start := now
		if pod.Status.StartTime != nil {
			start = pod.Status.StartTime.Time
		}
		grace := int64(corev1.DefaultTerminationGracePeriodSeconds)
		if pod.Spec.TerminationGracePeriodSeconds != nil {
			grace = *pod.Spec.TerminationGracePeriodSeconds
		}
		return start.Add(seconds(*deadline) + seconds(grace) + Slack), true
	}
	return time.Time{}, false
}

// seconds is a number of seconds that a tenant wrote, 68 years at most: two of them and the
// slack are a Duration.
func seconds(n int64) time.Duration {
	return time.Duration(min(max(n, 0), math.MaxInt32)) * time.Second
}

// MayFill reports whether a pod that has ended by end may use room that is reserved until
// then. Both have to be known.
func MayFill(end time.Time, known bool, until time.Time) bool {
	return known && !until.IsZero() && end.Before(until)
}
