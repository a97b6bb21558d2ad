// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/tools/cache"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	fwk "k8s.io/kube-scheduler/framework"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// Bounds of the PodDisruptionBudgets of a namespace. Tenants write them, and the scheduler's own
// code parses each selector again for each pod that might have to go. Beyond a bound they are not
// read: none of the namespace's pods is evicted.
const (
	// MaxBudgets is how many there may be.
	MaxBudgets = 100
	// MaxBudgetTerms is how many terms their selectors may have in all (podstate.SelectorTerms).
	MaxBudgetTerms = 1000
)

// Budgets are the PodDisruptionBudgets of a namespace at one moment. They never change.
type Budgets struct {
	all       []*policyv1.PodDisruptionBudget
	selectors []labels.Selector
	// beyond is true where they are beyond the bounds; then there is one that covers all pods and
	// allows no eviction.
	beyond bool
}

// budgets keeps the PodDisruptionBudgets by namespace, each selector parsed once for a version.
type budgets struct {
	mu sync.Mutex
	in map[string]*ofNamespace
}

type ofNamespace struct {
	by map[string]budget
	// now are these as Budgets, nil where they have changed since.
	now *Budgets
}

type budget struct {
	*policyv1.PodDisruptionBudget
	selector labels.Selector
	terms    int
}

// watchBudgets has them kept up to date.
func watchBudgets(factory inOrder) (*budgets, error) {
	b := &budgets{in: map[string]*ofNamespace{}}
	_, err := factory.Policy().V1().PodDisruptionBudgets().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    func(obj any) { b.set(obj.(*policyv1.PodDisruptionBudget)) },
		UpdateFunc: func(_, obj any) { b.set(obj.(*policyv1.PodDisruptionBudget)) },
		DeleteFunc: func(obj any) {
			if missed, ok := obj.(cache.DeletedFinalStateUnknown); ok {
				obj = missed.Obj
			}
			b.drop(obj.(*policyv1.PodDisruptionBudget))
		},
	})
	return b, err
}

func (b *budgets) set(pdb *policyv1.PodDisruptionBudget) {
	is := budget{PodDisruptionBudget: pdb, selector: labels.Nothing(), terms: podstate.SelectorTerms(pdb.Spec.Selector)}
	if is.terms <= podstate.MaxSelectorTerms {
		// One that cannot be parsed covers none, as the API server has it.
		if selector, err := metav1.LabelSelectorAsSelector(pdb.Spec.Selector); err == nil {
			is.selector = selector
		}
	} else {
		is.terms = MaxBudgetTerms + 1
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.in[pdb.Namespace]
	if n == nil {
		n = &ofNamespace{by: map[string]budget{}}
		b.in[pdb.Namespace] = n
	}
	n.by[pdb.Name], n.now = is, nil
}

func (b *budgets) drop(pdb *policyv1.PodDisruptionBudget) {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.in[pdb.Namespace]
	if n == nil {
		return
	}
	delete(n.by, pdb.Name)
	if n.now = nil; len(n.by) == 0 {
		delete(b.in, pdb.Namespace)
	}
}

// of are those of a namespace.
func (b *budgets) of(namespace string) *Budgets {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := b.in[namespace]
	if n == nil {
		return &Budgets{}
	}
	if n.now == nil {
		n.now = n.read(namespace)
	}
	return n.now
}

func (n *ofNamespace) read(namespace string) *Budgets {
	terms := 0
	for _, pdb := range n.by {
		terms += pdb.terms
	}
	if len(n.by) > MaxBudgets || terms > MaxBudgetTerms {
		all := metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{{Key: v1alpha1.Prefix + "none", Operator: metav1.LabelSelectorOpDoesNotExist}}}
		return &Budgets{beyond: true, selectors: []labels.Selector{labels.Everything()},
			all: []*policyv1.PodDisruptionBudget{{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, Spec: policyv1.PodDisruptionBudgetSpec{Selector: &all}}}}
	}
	is := &Budgets{}
	for _, name := range slices.Sorted(maps.Keys(n.by)) {
		is.all, is.selectors = append(is.all, n.by[name].PodDisruptionBudget), append(is.selectors, n.by[name].selector)
	}
	return is
}

// covering are the budgets that the scheduler has to know of: those of the namespaces of pods of a
// lower priority than that.
func (b *budgets) covering(pods []fwk.PodInfo, priority int32) (all []*policyv1.PodDisruptionBudget) {
	seen := map[string]bool{}
	for _, p := range pods {
		if pod := p.GetPod(); corev1helpers.PodPriority(pod) < priority && !seen[pod.Namespace] {
			seen[pod.Namespace] = true
			all = append(all, b.of(pod.Namespace).all...)
		}
	}
	return all
}

// Budgets are those of a namespace.
func (f *Filters) Budgets(namespace string) *Budgets { return f.budgets.of(namespace) }

// Beyond reports whether there are more than are read: then each pod of the namespace counts as
// covered by budgets that are used up.
func (b *Budgets) Beyond() bool { return b.beyond }

// BeyondBudgets says so of a namespace.
func BeyondBudgets(namespace string) string {
	return fmt.Sprintf("namespace %s has more than %d PodDisruptionBudgets, or more than %d terms in the selectors of all or %d in one. All count as used up: make them fewer or shorter",
		namespace, MaxBudgets, MaxBudgetTerms, podstate.MaxSelectorTerms)
}

// Covering are the budgets that cover the pod.
func (b *Budgets) Covering(pod *corev1.Pod) (all []*policyv1.PodDisruptionBudget) {
	for i, selector := range b.selectors {
		if selector.Matches(labels.Set(pod.Labels)) {
			all = append(all, b.all[i])
		}
	}
	return all
}

// Of is the budget that an eviction of the pod counts against, nil for none. It is false where the
// Eviction API answers that several cover it, or there are too many to know. It follows the order
// of EvictionREST.Create in k8s.io/kubernetes/pkg/registry/core/pod/storage. A pod that is pending,
// has ended or is ending counts against none. One that is not ready counts only while its budget
// is short of ready ones and does not always allow it.
func (b *Budgets) Of(pod *corev1.Pod) (budget *policyv1.PodDisruptionBudget, ok bool) {
	switch pod.Status.Phase {
	case corev1.PodPending, corev1.PodSucceeded, corev1.PodFailed:
		return nil, true
	}
	all := b.Covering(pod)
	switch {
	case pod.DeletionTimestamp != nil:
		return nil, true
	case b.beyond || len(all) > 1:
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
