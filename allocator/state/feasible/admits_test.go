// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// One thing is named that keeps a pod off a node, wherever a look finds that it may not go there.
func TestAgainst(t *testing.T) {
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "soft", Effect: corev1.TaintEffectPreferNoSchedule}, {Key: "k", Value: "v", Effect: corev1.TaintEffectNoExecute}}}}
	tolerant := []corev1.Toleration{{Key: "k", Operator: corev1.TolerationOpExists}}
	for name, tt := range map[string]struct {
		spec corev1.PodSpec
		want string
	}{
		"nothing":         {corev1.PodSpec{Tolerations: tolerant, NodeSelector: map[string]string{"zone": "a"}}, ""},
		"a taint":         {corev1.PodSpec{}, "node(s) had untolerated taint k=v:NoExecute"},
		"a selector":      {corev1.PodSpec{NodeSelector: map[string]string{"zone": "b"}}, "node(s) didn't match node selector zone=b"},
		"a missing label": {corev1.PodSpec{NodeSelector: map[string]string{"zone": "a", "gpu": "a100"}}, "node(s) didn't match node selector gpu=a100"},
		"an affinity": {corev1.PodSpec{Affinity: &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{
			NodeSelectorTerms: []corev1.NodeSelectorTerm{{MatchExpressions: []corev1.NodeSelectorRequirement{{Key: "zone", Operator: corev1.NodeSelectorOpDoesNotExist}}}}}}}},
			"node(s) didn't match Pod's node affinity/selector"},
	} {
		pod := &corev1.Pod{Spec: tt.spec}
		got := Against(pod, node)
		if got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if may := admitting([]*corev1.Pod{pod})(node); may != (got == "") {
			t.Errorf("%s: may go there: %v, and against it is %q", name, may, got)
		}
	}
}
