// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"vernier.dev/vernier/allocator/pin"
	"vernier.dev/vernier/allocator/priority"
)

// Harm is what it takes for a pod to get onto a node: the pods that the scheduler would
// end there, in the terms by which it chooses between nodes itself.
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

// MayPreempt tells whether there are pods that the scheduler might end for the pod's sake.
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

// Preempts tells whether the scheduler, where it refuses the pod on the node, would end
// pods of lower priority there to take it, all of which may be ended, and which harm that does.
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
	pinned.Spec.Affinity = pin.To(pinned.Spec.Affinity, node)
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
	budgets, err := f.factory.Policy().V1().PodDisruptionBudgets().Lister().List(labels.Everything())
	if err != nil {
		return harm, false, fmt.Errorf("listing PodDisruptionBudgets: %w", err)
	}
	victims, violations, status := f.preemption.SelectVictimsOnNode(ctx, r.state.Clone(), r.pod, info.Snapshot(), budgets)
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

// Budgets are the PodDisruptionBudgets of a namespace at one moment.
type Budgets struct {
	all       []*policyv1.PodDisruptionBudget
	selectors []labels.Selector
}

// MaxBudgets is how many of a namespace are looked at.
const MaxBudgets = 100

// Budgets reads those of a namespace.
func (f *Filters) Budgets(namespace string) *Budgets {
	// The lister reads a cache, and gives no error.
	in, _ := f.factory.Policy().V1().PodDisruptionBudgets().Lister().PodDisruptionBudgets(namespace).List(labels.Everything())
	b := &Budgets{all: in}
	for _, budget := range in[:min(len(in), MaxBudgets)] {
		selector, err := metav1.LabelSelectorAsSelector(budget.Spec.Selector)
		if err != nil {
			selector = labels.Nothing() // as the API server has it
		}
		b.selectors = append(b.selectors, selector)
	}
	return b
}

// Covering are the budgets that cover the pod; false where there are too many to know.
func (b *Budgets) Covering(pod *corev1.Pod) (all []*policyv1.PodDisruptionBudget, ok bool) {
	for i, selector := range b.selectors {
		if selector.Matches(labels.Set(pod.Labels)) {
			all = append(all, b.all[i])
		}
	}
	return all, len(b.selectors) == len(b.all)
}

// Of is the budget that an eviction of the pod counts against, nil for none; false where the
// Eviction API answers that several cover it, or there are too many to know. In its order
// (EvictionREST.Create in k8s.io/kubernetes/pkg/registry/core/pod/storage): a pod that is pending,
// has ended or is ending counts against none, and one that is not ready only while its budget
// is short of ready ones and does not always allow it.
func (b *Budgets) Of(pod *corev1.Pod) (budget *policyv1.PodDisruptionBudget, ok bool) {
	switch pod.Status.Phase {
	case corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed:
		return nil, true
	}
	all, ok := b.Covering(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		return nil, true
	case !ok || len(all) > 1:
		return nil, false
	case len(all) == 0:
		return nil, true
	}
	budget = all[0]
	policy, status := budget.Spec.UnhealthyPodEvictionPolicy, &budget.Status
	always := policy != nil && *policy == policyv1.AlwaysAllow
	if !podutil.IsPodReady(pod) && (always || status.DesiredHealthy > 0 && status.CurrentHealthy >= status.DesiredHealthy) {
		return nil, true
	}
	return budget, true
}

// maxDisrupted is from how many evictions on that a budget has not seen the end of the API server
// allows no more: MaxDisruptedPodSize, beside EvictionREST.
const maxDisrupted = 2000

// Allowed is how many evictions the API server lets the budget allow now. It refuses until the
// budget's controller has seen its spec.
func Allowed(budget *policyv1.PodDisruptionBudget) int {
	if s := &budget.Status; s.ObservedGeneration >= budget.Generation && len(s.DisruptedPods) <= maxDisrupted {
		return max(0, int(s.DisruptionsAllowed))
	}
	return 0
}

// MayPreempt tells whether there is a pod of lower priority on the node. It takes far less
// than Preempts.
func (c *Cycle) MayPreempt(node string) bool {
	info, err := c.filters.snapshot.Get(node)
	return err == nil && slices.ContainsFunc(info.GetPods(), func(other fwk.PodInfo) bool {
		return corev1helpers.PodPriority(other.GetPod()) < corev1helpers.PodPriority(c.pod)
	})
}
