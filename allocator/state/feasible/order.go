// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// PodTerms is what a pod wishes of other pods, as far as their order of binding matters to the
// scheduler. Two kinds of wishes do:
//
//   - Required affinity. The first of its kind may go anywhere, so a pod is refused when
//     another that it selects was bound elsewhere before it.
//   - Spread over domains of which some are not the pinned node's. It is refused while
//     one of them has too few, or its own too many. With the default inclusion policy the
//     pin leaves one domain, which is never ahead of itself, unless minDomains asks for
//     more than one.
//
// All other filters only add up, or exclude pairs: anti-affinity, ports, resources come out
// the same in any order. For volumes and resource claims see Undecided.
type PodTerms []podTerm

// podTerm is for pods of the namespaces, of any where there are none.
type podTerm struct {
	namespaces []string
	selector   labels.Selector
	// topologyKey is the node label of which both must have the same value, empty where it is
	// not affinity that asks.
	topologyKey string
}

// PodTermsOf is nil for a pod to which the order makes no difference, as for most.
func PodTermsOf(pod *corev1.Pod) (c PodTerms) {
	add := func(topologyKey string, of *metav1.LabelSelector, namespaces ...string) {
		// What cannot be parsed the API server has refused.
		if selector, err := metav1.LabelSelectorAsSelector(of); err == nil {
			c = append(c, podTerm{namespaces, selector, topologyKey})
		}
	}
	if a := pod.Spec.Affinity; a != nil && a.PodAffinity != nil {
		for _, t := range a.PodAffinity.RequiredDuringSchedulingIgnoredDuringExecution {
			switch {
			case t.NamespaceSelector != nil:
				add(t.TopologyKey, t.LabelSelector) // whichever namespaces it selects at the time
			case len(t.Namespaces) > 0:
				add(t.TopologyKey, t.LabelSelector, t.Namespaces...)
			default:
				add(t.TopologyKey, t.LabelSelector, pod.Namespace)
			}
		}
	}
	for _, s := range pod.Spec.TopologySpreadConstraints {
		everywhere := s.NodeAffinityPolicy != nil && *s.NodeAffinityPolicy == corev1.NodeInclusionPolicyIgnore
		several := s.MinDomains != nil && *s.MinDomains > 1
		if s.WhenUnsatisfiable == corev1.DoNotSchedule && (everywhere || several) {
			add("", s.LabelSelector, pod.Namespace)
		}
	}
	return c
}

// Selects reports whether the other pod may be one of those wished for. It says yes too
// often rather than too seldom.
func (c PodTerms) Selects(other *corev1.Pod) bool {
	return slices.ContainsFunc(c, func(w podTerm) bool { return w.selects(other) })
}

func (w podTerm) selects(other *corev1.Pod) bool {
	return (len(w.namespaces) == 0 || slices.Contains(w.namespaces, other.Namespace)) && w.selector.Matches(labels.Set(other.Labels))
}

// LabelKeys are the labels of other pods at which the wishes look.
func (c PodTerms) LabelKeys() (keys []string) {
	for _, w := range c {
		requirements, _ := w.selector.Requirements()
		for i := range requirements {
			keys = append(keys, requirements[i].Key())
		}
	}
	return keys
}

// Alike reports whether each term is for both pods or for neither.
func (c PodTerms) Alike(p, q *corev1.Pod) bool {
	return !slices.ContainsFunc(c, func(w podTerm) bool { return w.selects(p) != w.selects(q) })
}

// Near are the node labels of which the pod must have the same values as the other.
func (c PodTerms) Near(other *corev1.Pod) (keys []string) {
	for _, w := range c {
		if w.topologyKey != "" && w.selects(other) {
			keys = append(keys, w.topologyKey)
		}
	}
	return keys
}

// Satisfies reports whether the other pod, if near, may be all that the affinity asks for.
// To the scheduler one pod counts only if each of the terms selects it.
func (c PodTerms) Satisfies(other *corev1.Pod) bool {
	return len(c.Near(other)) > 0 && !slices.ContainsFunc(c, func(w podTerm) bool { return w.topologyKey != "" && !w.selects(other) })
}

// Domains are the nodes by their value of a label: the more values there are, the nearer
// to each other are those with the same. One pass over all nodes.
func (f *Filters) Domains(key string) map[string][]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[string][]string{}
	for _, node := range f.nodes {
		if v, has := node.Labels[key]; has {
			all[v] = append(all[v], node.Name)
		}
	}
	return all
}
