// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"fmt"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Admits reports of a node that is known whether one of the pods may go there: see Admitting. It is a
// look that costs little; the scheduler's filters have the last word.
func (f *Filters) Admits(pods []*corev1.Pod) func(node string) bool {
	admits := Admitting(pods)
	return func(name string) bool {
		f.mu.Lock()
		node := f.nodes[name]
		f.mu.Unlock()
		return node != nil && admits(node)
	}
}

// Admitting reports of a node whether one of the pods may go there by node selector, node
// affinity and tolerations, whatever is free.
func Admitting(pods []*corev1.Pod) func(*corev1.Node) bool {
	type wish struct {
		nodeaffinity.RequiredNodeAffinity
		tolerations []corev1.Toleration
	}
	var wishes []wish
	seen := map[string]bool{}
	for _, pod := range pods {
		var affinity *corev1.NodeAffinity
		if a := pod.Spec.Affinity; a != nil {
			affinity = a.NodeAffinity
		}
		if key := fmt.Sprint(pod.Spec.NodeSelector, affinity.String(), pod.Spec.Tolerations); !seen[key] {
			seen[key] = true
			wishes = append(wishes, wish{nodeaffinity.GetRequiredNodeAffinity(pod), pod.Spec.Tolerations})
		}
	}
	keepsOff := func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}
	return func(node *corev1.Node) bool {
		for _, w := range wishes {
			_, tainted := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, w.tolerations, keepsOff, true)
			if match, err := w.Match(node); match && err == nil && !tainted {
				return true
			}
		}
		return false
	}
}
