// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"fmt"
	"maps"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	"k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
)

// Admits reports of a node that is known whether one of the pods may go there, whatever is free. It
// asks node selectors, node affinities and tolerations. It is a look that costs little; the scheduler's
// filters have the last word.
func (f *Filters) Admits(pods []*corev1.Pod) func(node string) bool {
	admits := admitting(pods)
	return func(name string) bool {
		f.mu.Lock()
		node := f.nodes[name]
		f.mu.Unlock()
		return node != nil && admits(node)
	}
}

func admitting(pods []*corev1.Pod) func(*corev1.Node) bool {
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
	return func(node *corev1.Node) bool {
		for _, w := range wishes {
			if match, err := w.Match(node); match && err == nil && untolerated(node, w.tolerations) == nil {
				return true
			}
		}
		return false
	}
}

// untolerated is a taint of the node that keeps a pod with the tolerations off it; nil for none.
func untolerated(node *corev1.Node, tolerations []corev1.Toleration) *corev1.Taint {
	taint, is := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), node.Spec.Taints, tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, true)
	if !is {
		return nil
	}
	return &taint
}

// Against is what keeps the pod off the node, in a clause that begins with "it". It may be its node
// selector, its node affinity or a taint of the node. It is empty where nothing of that kind does.
func Against(pod *corev1.Pod, node *corev1.Node) string {
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		if want := pod.Spec.NodeSelector[key]; node.Labels[key] != want {
			return fmt.Sprintf("its node selector %s=%s does not match", key, want)
		}
	}
	if match, err := nodeaffinity.GetRequiredNodeAffinity(pod).Match(node); !match || err != nil {
		return "its required node affinity does not match"
	}
	if taint := untolerated(node, pod.Spec.Tolerations); taint != nil {
		return "it does not tolerate taint " + taint.ToString()
	}
	return ""
}
