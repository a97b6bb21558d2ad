// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/cause"
)

// GoesFirst reports whether the pod is of a PriorityClass above 0.
func GoesFirst(pod corev1.Pod) bool {
	return pod.Spec.PriorityClassName != "" && corev1helpers.PodPriority(&pod) > 0
}

// UnboundedClasses are the PriorityClasses above 0 of the pods that no quota of their namespace is scoped to.
func UnboundedClasses(pods []corev1.Pod, quotas []corev1.ResourceQuota) (names []string) {
	for i := range pods {
		class := pods[i].Spec.PriorityClassName
		if GoesFirst(pods[i]) && !slices.ContainsFunc(quotas, func(q corev1.ResourceQuota) bool { return scopedTo(&q, class) }) {
			names = append(names, class)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// scopedTo reports whether a quota counts pods for being of the class.
func scopedTo(q *corev1.ResourceQuota, class string) bool {
	if q.Spec.ScopeSelector == nil {
		return false
	}
	return slices.ContainsFunc(q.Spec.ScopeSelector.MatchExpressions, func(e corev1.ScopedResourceSelectorRequirement) bool {
		if e.ScopeName != corev1.ResourceQuotaScopePriorityClass {
			return false
		}
		named := slices.Contains(e.Values, class)
		return e.Operator == corev1.ScopeSelectorOpExists || e.Operator == corev1.ScopeSelectorOpIn && named || e.Operator == corev1.ScopeSelectorOpNotIn && !named
	})
}

// Gone is a pod that is gone, and the last event of the allocator that names it, or that of its eviction;
// false without one. The state has which slices it had. Of several pods of the name it is the one of the last event.
func Gone(namespace, name string, events []corev1.Event) (Reasoned, bool) {
	last := latest(events, func(e *corev1.Event) bool { return e.InvolvedObject.Name == name })
	if last == nil {
		return Reasoned{}, false
	}
	its := func(reason string) *corev1.Event {
		return latest(events, func(e *corev1.Event) bool {
			return e.InvolvedObject.UID == last.InvolvedObject.UID && e.Reason == reason
		})
	}
	shown := cmp.Or(its(model.ReasonPreempted), last)
	r := Reasoned{State: "it is gone", Classes: []NodeClass{}, WaitingPod: model.WaitingPod{Namespace: namespace, Pod: name,
		PodUID: last.InvolvedObject.UID, Needs: []model.Need{}, Reason: model.ReasonOf(shown)}}
	if r.evicted() {
		r.Cause, r.State = cause.Preempted, r.State+": it was "+shown.Message
	}
	if released := its(model.ReasonReleased); released != nil && released != shown {
		r.State += "; it " + released.Message
	}
	return r, true
}

// latest is the event that was last of these, nil for none.
func latest(events []corev1.Event, of func(*corev1.Event) bool) (last *corev1.Event) {
	for i := range events {
		if e := &events[i]; of(e) && (last == nil || last.LastTimestamp.Before(&e.LastTimestamp)) {
			last = e
		}
	}
	return last
}
