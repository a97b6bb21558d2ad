// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"cmp"
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/priority"
)

// Harm is what it takes for a pod to get onto a node: the pods that the scheduler would
// end there, by its own criteria.
type Harm struct {
	// Violations are the pods that a PodDisruptionBudget would keep, Highest is the
	// priority of the one that matters most, Pods is how many they are.
	Violations int
	Highest    int32
	Pods       int
}

// Compare is less than zero where a does less harm.
func (a Harm) Compare(b Harm) int {
	return cmp.Or(cmp.Compare(a.Violations, b.Violations), cmp.Compare(a.Highest, b.Highest), cmp.Compare(a.Pods, b.Pods))
}

// MayPreempt reports whether there are pods that the scheduler might end for the pod's sake.
// For pods of its own groups it does nothing of the kind.
func (f *Filters) MayPreempt(pod *corev1.Pod) bool {
	if pod.Spec.SchedulingGroup != nil || pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever {
		return false
	}
	own := corev1helpers.PodPriority(pod)
	return f.Counts(func(c priority.Class) bool { return c.Value < own })
}

// Counts reports whether there are pods on nodes of such a class.
func (f *Filters) Counts(such func(priority.Class) bool) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	for c := range f.classes {
		if such(c) {
			return true
		}
	}
	return false
}

// Preempts reports whether the scheduler, where it refuses the pod on the node, would preempt for it there,
// pods that all may be ended. It returns the harm that this does.
// It is the scheduler's own code that is asked. Like Refusals it is asked twice: for the pod as
// its owner wrote it, and pinned.
func (c *Cycle) Preempts(ctx context.Context, node string, may func(victim *corev1.Pod) bool) (harm Harm, would bool, err error) {
	info, err := c.filters.snapshot.Get(node)
	if err != nil {
		return harm, false, nil
	}
	free, would, err := c.filters.preempts(ctx, &c.run, info, may)
	if err != nil || !would {
		return harm, false, err
	}
	pinned := *c.pod
	pinned.Spec.Affinity = podstate.PinTo(pinned.Spec.Affinity, node)
	run, err := c.filters.preFilter(ctx, &pinned)
	if err != nil {
		return harm, false, err
	}
	harm, would, err = c.filters.preempts(ctx, &run, info, may)
	return harm, would && free.Pods+harm.Pods > 0, err
}

// preempts is for one run. A node that takes the pod as it is takes no harm.
func (f *Filters) preempts(ctx context.Context, r *run, info fwk.NodeInfo, may func(victim *corev1.Pod) bool) (harm Harm, would bool, err error) {
	if r.all != nil || r.only != nil && !r.only.Has(info.Node().Name) {
		return harm, false, nil
	}
	switch status := f.framework.RunFilterPluginsWithNominatedPods(ctx, r.state, r.pod, info); {
	case status.IsSuccess():
		return harm, true, nil
	case !status.IsRejected():
		return harm, false, status.AsError()
	case status.Code() != fwk.Unschedulable:
		return harm, false, nil // whoever goes, that stays
	}
	victims, violations, status := f.preemption.SelectVictimsOnNode(ctx, r.state.Clone(), r.pod, info.Snapshot(), f.budgets.covering(info.GetPods(), corev1helpers.PodPriority(r.pod)))
	if !status.IsSuccess() || len(victims) == 0 {
		if !status.IsRejected() {
			err = status.AsError()
		}
		return harm, false, err
	}
	if slices.ContainsFunc(victims, func(v *corev1.Pod) bool { return !may(v) }) {
		return harm, false, nil
	}
	// They are sorted, the most important first.
	return Harm{Violations: violations, Highest: corev1helpers.PodPriority(victims[0]), Pods: len(victims)}, true, nil
}

// MayPreempt reports whether there is a pod of lower priority on the node. It takes far less
// than Preempts.
func (c *Cycle) MayPreempt(node string) bool {
	info, err := c.filters.snapshot.Get(node)
	return err == nil && slices.ContainsFunc(info.GetPods(), func(other fwk.PodInfo) bool {
		return corev1helpers.PodPriority(other.GetPod()) < corev1helpers.PodPriority(c.pod)
	})
}
