// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

func pod(edits ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "p", Labels: map[string]string{}, Annotations: map[string]string{}}}
	for _, e := range edits {
		e(p)
	}
	return p
}

func label(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func annotation(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

func native(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To(name)} }
}

func TestGroupOf(t *testing.T) {
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want Group
	}{
		"alone":              {pod(), Group{}},
		"native":             {pod(native("g")), Group{Native, "ns", "g"}},
		"coscheduling":       {pod(label(LabelCoscheduling, "g")), Group{Coscheduling, "ns", "g"}},
		"Kueue":              {pod(label(LabelKueue, "g")), Group{Kueue, "ns", "g"}},
		"Kueue, one by one":  {pod(label(LabelKueue, "g"), annotation(AnnotationKueueFast, "true")), Group{}},
		"all of them":        {pod(native("n"), label(LabelCoscheduling, "c"), label(LabelKueue, "k")), Group{Native, "ns", "n"}},
		"two of them":        {pod(label(LabelCoscheduling, "c"), label(LabelKueue, "k")), Group{Coscheduling, "ns", "c"}},
		"native, of no name": {pod(func(p *corev1.Pod) { p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{} }), Group{}},
	} {
		if got, is := GroupOf(tt.pod); got != tt.want || is != (tt.want != Group{}) {
			t.Errorf("%s: %+v, %v, want %+v", name, got, is, tt.want)
		}
	}
}
