// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// Pods of different classes fit on different devices.
func TestEquivalenceClass(t *testing.T) {
	pod := func(class string) *corev1.Pod {
		p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "a"}}}}
		if class != "" {
			p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{v1alpha1.ClassResource(class): resource.MustParse("1")}
		}
		return p
	}
	if EquivalenceClass(pod("gold")) == EquivalenceClass(pod("shared")) {
		t.Error("pods of two classes fit on the same devices")
	}
	named := pod("")
	named.Spec.InitContainers = []corev1.Container{{Name: "a"}, {Name: "gold"}}
	if EquivalenceClass(pod("gold")) == EquivalenceClass(named) {
		t.Error("a class is taken for the name of a container")
	}
}

// What cannot be read is zero and has an error, and everything else is read all the same.
func TestOf(t *testing.T) {
	always := corev1.ContainerRestartPolicyAlways
	pod := &corev1.Pod{Spec: corev1.PodSpec{
		InitContainers: []corev1.Container{{Name: "init"}, {Name: "side", RestartPolicy: &always}},
		Containers: []corev1.Container{{Name: "a", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{v1alpha1.ClassResource("gold"): resource.MustParse("1")}}}},
	}}
	pod.Annotations = map[string]string{
		v1alpha1.AnnotationShares:  `{"version":"v1alpha1","containers":{"a":{"gpus":1,"core":30,"memMiB":100}}}`,
		v1alpha1.AnnotationDialect: "hami",
		v1alpha1.AnnotationQoS:     "opportunistic",
		v1alpha1.AnnotationPolicy:  "best",
	}
	pod.Namespace, pod.Labels = "ns", map[string]string{LabelKueue: "g"}
	r := Of(pod)
	want := []Container{{Name: "init", Init: true}, {Name: "side", Init: true, Sidecar: true}, {Name: "a", Class: "gold", Units: 1}}
	if !r.Marked || r.SharesErr != nil || len(r.Shares) != 1 || r.Shares["a"] != (v1alpha1.Share{GPUs: 1, Core: 30, MemMiB: 100}) || !slices.Equal(r.Containers, want) {
		t.Errorf("%+v", r)
	}
	if r.Group != (Group{API: Kueue, Namespace: "ns", Name: "g"}) || r.Dialect != "hami" || r.QoS != v1alpha1.QoSOpportunistic || r.Mode != v1alpha1.ModeAuto || r.Policy != "" {
		t.Errorf("%+v", r)
	}
	if err := r.Err(); err == nil || err.Error() != `annotation vernier.dev/policy: "best" is unknown: use pack or spread` {
		t.Errorf("%v", err)
	}
	if err := r.NodeErr(); err != nil {
		t.Errorf("the node looks at the policy: %v", err)
	}
	pod.Annotations[v1alpha1.AnnotationBurst] = "all"
	pod.Annotations[v1alpha1.AnnotationShares] = "{}"
	r = Of(pod)
	if err := r.NodeErr(); err == nil || !strings.HasPrefix(err.Error(), "annotation vernier.dev/burst: ") || r.Burst != "" {
		t.Errorf("burst %q: %v", r.Burst, err)
	}
	if err := r.Err(); err == nil || !strings.HasPrefix(err.Error(), "annotation vernier.dev/shares: ") || !r.Marked || r.Shares != nil {
		t.Errorf("shares %v: %v", r.Shares, err)
	}
	pod.Annotations[v1alpha1.AnnotationShares] = `{"version":"v1alpha1","containers":{"a":{"gpus":1,"core":30,"memMiB":100}}}`
	pod.Annotations[v1alpha1.AnnotationMode] = strings.Repeat("x", 5000)
	if err := Of(pod).Err(); err == nil || err.Error() != "annotation vernier.dev/mode: has 5000 bytes, 4096 are allowed: shorten or remove it" {
		t.Errorf("%v", err)
	}
	if r := Of(&corev1.Pod{}); r.Marked || r.Shares != nil || r.SharesErr == nil {
		t.Errorf("without annotations: %+v", r)
	}
}

func TestMisplaces(t *testing.T) {
	placed := v1alpha1.Placement{Version: v1alpha1.Version, Node: "n", Containers: map[string]v1alpha1.PlacedShare{
		"a": {Mode: v1alpha1.ModeLimiter, Devices: []v1alpha1.PlacedDevice{{UUID: "GPU-1", MemMiB: 1}, {UUID: "GPU-2", MemMiB: 1}}},
		"b": {Mode: v1alpha1.ModeLimiter, Devices: []v1alpha1.PlacedDevice{{UUID: "GPU-3", MemMiB: 1}}}}}
	text := must.Get(placed.Encode())(t)
	for _, tt := range []struct {
		text, container, uuid string
		want                  bool
	}{
		{text, "a", "GPU-1", false}, {text, "a", "GPU-2", false}, {text, "a", "GPU-3", true}, {text, "b", "GPU-3", false},
		{text, "c", "GPU-1", true}, {"{}", "a", "GPU-1", true}, {"", "a", "GPU-1", false},
	} {
		r := OfAnnotations(map[string]string{v1alpha1.AnnotationPlacement: tt.text})
		if got := r.Misplaces(tt.container, tt.uuid); got != tt.want {
			t.Errorf("%s, container %s, %s: %v", tt.text, tt.container, tt.uuid, got)
		}
	}
}

func TestUnitsIn(t *testing.T) {
	one, two := resource.MustParse("1"), resource.MustParse("2")
	list := corev1.ResourceList{"cpu": one, v1alpha1.ResourceCore: one, "vernier.dev/gpu-silver": one, "vernier.dev/gpu-gold": two, "vernier.dev/gpu-bronze": {}}
	if class, n := unitsIn(list); class != "gold" || n != 2 {
		t.Errorf("the list asks for %d units of class %q", n, class)
	}
	if class, n := unitsIn(corev1.ResourceList{"cpu": one, v1alpha1.ResourceCore: one}); class != "" || n != 0 {
		t.Errorf("a list without a class asks for %d units of %q", n, class)
	}
}
