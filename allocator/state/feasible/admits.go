// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"fmt"
	"maps"
	"slices"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"
	required "k8s.io/component-helpers/scheduling/corev1/nodeaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeaffinity"
	"k8s.io/kubernetes/pkg/scheduler/framework/plugins/nodeunschedulable"

	"vernier.dev/vernier/allocator/state/diagnosis"
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
		required.RequiredNodeAffinity
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
			wishes = append(wishes, wish{required.GetRequiredNodeAffinity(pod), pod.Spec.Tolerations})
		}
	}
	return func(node *corev1.Node) bool {
		for _, w := range wishes {
			if match, err := w.Match(node); match && err == nil && untolerated(node.Spec.Taints, w.tolerations) == nil {
				return true
			}
		}
		return false
	}
}

// untolerated is one of the taints that keeps a pod with the tolerations off its node; nil for none.
func untolerated(taints []corev1.Taint, tolerations []corev1.Toleration) *corev1.Taint {
	taint, is := corev1helpers.FindMatchingUntoleratedTaint(logr.Discard(), taints, tolerations, func(t *corev1.Taint) bool {
		return t.Effect == corev1.TaintEffectNoSchedule || t.Effect == corev1.TaintEffectNoExecute
	}, true)
	if !is {
		return nil
	}
	return &taint
}

// Against is what keeps the pod off the node, in the scheduler's words. It may be that the node is
// unschedulable, the pod's node selector or affinity, or a taint. It is empty for nothing of that kind.
func Against(pod *corev1.Pod, node *corev1.Node) string {
	if node.Spec.Unschedulable && untolerated([]corev1.Taint{{Key: corev1.TaintNodeUnschedulable, Effect: corev1.TaintEffectNoSchedule}}, pod.Spec.Tolerations) != nil {
		return nodeunschedulable.ErrReasonUnschedulable
	}
	for _, key := range slices.Sorted(maps.Keys(pod.Spec.NodeSelector)) {
		if want := pod.Spec.NodeSelector[key]; node.Labels[key] != want {
			return diagnosis.AgainstSelector + key + "=" + want
		}
	}
	if match, err := required.GetRequiredNodeAffinity(pod).Match(node); !match || err != nil {
		return nodeaffinity.ErrReasonPod
	}
	if taint := untolerated(node.Spec.Taints, pod.Spec.Tolerations); taint != nil {
		return diagnosis.AgainstTaint + taint.ToString()
	}
	return ""
}
