// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/hooks"
)

type warnings []string

func (w *warnings) Warn(pod hooks.PodRef, reason, message string) {
	*w = append(*w, pod.Namespace+"/"+pod.Name+" "+string(pod.UID)+" "+pod.Container+" "+reason+": "+message)
}

// A static pod that asks for a share is told that it gets none, where kubectl describe looks
// for its events, and no other pod is.
func TestStaticPodsAreTold(t *testing.T) {
	told := warnings{}
	for name, of := range map[string]struct {
		annotation string
		asks       corev1.ResourceName
	}{
		"static": {corev1.MirrorPodAnnotationKey, v1alpha1.ResourceCore}, "asks-nothing": {corev1.MirrorPodAnnotationKey, corev1.ResourceCPU},
		"usual": {"other", v1alpha1.ResourceCore},
	} {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: "shown", Annotations: map[string]string{of.annotation: "own"}}}
		p.Spec.Containers = []corev1.Container{{Name: "side"}, {Name: "main", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{of.asks: resource.MustParse("10")}}}}
		slim, err := slimPod(p)
		if err != nil {
			t.Fatal(err)
		}
		tellStatic(slim, &told)
	}
	tellStatic(&v1alpha1.SliceLedger{}, &told)
	if len(told) != 1 || !strings.HasPrefix(told[0], "ns/static own main StaticPodWithShare: container main asks for a share, and a static pod gets none") {
		t.Errorf("told %q", told)
	}
}
