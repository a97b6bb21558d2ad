// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// newPod has the shares, and a container for each in the order of their names.
func newPod(t *testing.T, shares map[string]v1alpha1.Share) *corev1.Pod {
	t.Helper()
	doc := v1alpha1.Shares{Version: v1alpha1.Version, Containers: shares}
	text, err := doc.Encode()
	if err != nil {
		t.Fatal(err)
	}
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: map[string]string{v1alpha1.AnnotationShares: text}}}
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: name})
	}
	return p
}

func TestDemandOf(t *testing.T) {
	whole := v1alpha1.Share{GPUs: 1, Core: 100, MemPercent: 100}
	part := v1alpha1.Share{GPUs: 1, Core: 30, MemPercent: 100}
	note := func(key, value string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations[key] = value }
	}
	tests := []struct {
		name   string
		shares map[string]v1alpha1.Share
		edit   func(*corev1.Pod)
		want   string
		err    string
	}{
		{name: "auto", shares: map[string]v1alpha1.Share{"a": whole, "b": part}, want: "pack a:0:exclusive b:0:auto"},
		{name: "limiter for whole devices too", shares: map[string]v1alpha1.Share{"a": whole}, edit: note(v1alpha1.AnnotationMode, "limiter"), want: "pack a:0:limiter"},
		{name: "exclusive", shares: map[string]v1alpha1.Share{"a": whole}, edit: note(v1alpha1.AnnotationMode, "exclusive"), want: "pack a:0:exclusive"},
		{name: "spread", shares: map[string]v1alpha1.Share{"a": part}, edit: note(v1alpha1.AnnotationPolicy, "spread"), want: "spread a:0:auto"},
		{name: "in the order of starting", shares: map[string]v1alpha1.Share{"a": part, "b": part, "c": part}, edit: func(p *corev1.Pod) {
			p.Spec.InitContainers = []corev1.Container{p.Spec.Containers[2], p.Spec.Containers[1], {Name: "plain"}}
			p.Spec.InitContainers[0].RestartPolicy = ptr.To(corev1.ContainerRestartPolicyAlways)
			p.Spec.Containers = p.Spec.Containers[:1]
		}, want: "pack c:2:auto b:1:auto a:0:auto"},
		{name: "mig", shares: map[string]v1alpha1.Share{"a": part}, edit: note(v1alpha1.AnnotationMode, "mig"), want: "pack a:0:mig"},
		{name: "mig over two GPUs", shares: map[string]v1alpha1.Share{"a": {GPUs: 2, Core: 10, MemMiB: 1}}, edit: note(v1alpha1.AnnotationMode, "mig"),
			err: "annotation vernier.dev/mode: container a asks for 2 GPUs"},
		{name: "mps", shares: map[string]v1alpha1.Share{"a": whole}, edit: note(v1alpha1.AnnotationMode, "mps"), want: "pack a:0:mps"},
		{name: "mps over two GPUs", shares: map[string]v1alpha1.Share{"a": {GPUs: 2, Core: 10, MemMiB: 1}}, edit: note(v1alpha1.AnnotationMode, "mps"),
			err: "annotation vernier.dev/mode: container a asks for 2 GPUs, and in mode mps"},
		{name: "exclusive part", shares: map[string]v1alpha1.Share{"a": part}, edit: note(v1alpha1.AnnotationMode, "exclusive"),
			err: "annotation vernier.dev/mode: container a asks for a part of a GPU"},
		{name: "one GPU", shares: map[string]v1alpha1.Share{"a": part, "b": part}, edit: note(v1alpha1.AnnotationSameGPU, "required"), want: "pack together a:0:auto b:0:auto"},
		{name: "one GPU, two of them", shares: map[string]v1alpha1.Share{"a": {GPUs: 2, Core: 10, MemMiB: 1}}, edit: note(v1alpha1.AnnotationSameGPU, "required"),
			err: "annotation vernier.dev/same-gpu: container a asks for 2 GPUs: ask for one"},
		{name: "one GPU, unknown", shares: map[string]v1alpha1.Share{"a": part}, edit: note(v1alpha1.AnnotationSameGPU, "x"), err: "annotation vernier.dev/same-gpu: "},
		{name: "unknown mode", shares: map[string]v1alpha1.Share{"a": part}, edit: note(v1alpha1.AnnotationMode, "x"), err: "annotation vernier.dev/mode: "},
		{name: "unknown policy", shares: map[string]v1alpha1.Share{"a": part}, edit: note(v1alpha1.AnnotationPolicy, "x"), err: "annotation vernier.dev/policy: "},
		{name: "models", shares: map[string]v1alpha1.Share{"a": part}, edit: note(v1alpha1.AnnotationGPUModel, ","), err: "annotation vernier.dev/gpu-model: "},
		{name: "uuids", shares: map[string]v1alpha1.Share{"a": part}, edit: note(v1alpha1.AnnotationGPUUUID, ","), err: "annotation vernier.dev/gpu-uuid: "},
		{name: "shares", shares: map[string]v1alpha1.Share{"a": part}, edit: note(v1alpha1.AnnotationShares, `{"version":"v2"}`), err: "annotation vernier.dev/shares: "},
		{name: "unknown container", shares: map[string]v1alpha1.Share{"a": part, "b": part}, edit: func(p *corev1.Pod) { p.Spec.Containers = p.Spec.Containers[:1] },
			err: "annotation vernier.dev/shares: names a container that the pod does not have"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := newPod(t, tt.shares)
			if tt.edit != nil {
				tt.edit(p)
			}
			d, err := DemandOf(podrequest.Of(p), nil)
			if tt.err != "" {
				if err == nil || !strings.HasPrefix(err.Error(), tt.err) {
					t.Errorf("got %v, want %s", err, tt.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			got := string(d.Policy)
			if d.SameGPU {
				got += " together"
			}
			for _, c := range d.Containers {
				got += fmt.Sprintf(" %s:%d:%s", c.Name, c.Kind, c.Mode)
			}
			if got != tt.want {
				t.Errorf("got %s, want %s", got, tt.want)
			}
		})
	}
}

// Containers have the models of their class, a pod the mode of its classes.
func TestDemandOfClasses(t *testing.T) {
	class := func(name string, mode v1alpha1.Mode) v1alpha1.GPUClass {
		return v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUClassSpec{
			Models: []string{"NVIDIA H100"}, Unit: v1alpha1.GPUUnit{Core: 25, MemMiB: 100}, Mode: mode}}
	}
	known := classes.Of(class("gold", v1alpha1.ModeAuto), class("shared", v1alpha1.ModeMPS))
	pod := func(class string) *corev1.Pod {
		share := v1alpha1.Share{GPUs: 1, Core: 25, MemMiB: 100}
		p := newPod(t, map[string]v1alpha1.Share{"a": share, "b": share})
		p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{v1alpha1.ClassResource(class): resource.MustParse("1")}
		return p
	}
	d, err := DemandOf(podrequest.Of(pod("shared")), known)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := d.Containers[0], d.Containers[1]; a.Class != "shared" || a.Models.String() != "NVIDIA H100" || a.Mode != v1alpha1.ModeMPS ||
		b.Class != "" || b.Models.Any() || b.Mode != v1alpha1.ModeMPS {
		t.Errorf("%+v", d.Containers)
	}
	unexpanded := pod("gold")
	unexpanded.Spec.Containers[0].Resources = corev1.ResourceRequirements{Limits: unexpanded.Spec.Containers[0].Resources.Requests}
	if d, err := DemandOf(podrequest.Of(unexpanded), known); err != nil || d.Containers[0].Class != "gold" {
		t.Errorf("with limits alone: %+v, %v", d, err)
	}
	_, err = DemandOf(podrequest.Of(pod("bronze")), known)
	if want := "container a asks for units of GPUClass bronze: there is no such GPUClass; the pod waits until there is"; !errors.Is(err, ErrNoClass) || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("%v, want %s", err, want)
	}
	other := pod("shared")
	other.Annotations[v1alpha1.AnnotationMode] = "limiter"
	if _, err := DemandOf(podrequest.Of(other), known); err == nil || errors.Is(err, ErrNoClass) || !strings.Contains(err.Error(), "GPUClass shared has mode mps") {
		t.Errorf("with another mode: %v", err)
	}
}

// What was granted can be read when its class has gone.
func TestGrantedDemand(t *testing.T) {
	p := newPod(t, map[string]v1alpha1.Share{"a": {GPUs: 1, Core: 25, MemMiB: 100}})
	p.Spec.Containers[0].Resources.Requests = corev1.ResourceList{v1alpha1.ClassResource("gone"): resource.MustParse("1")}
	for mode, want := range map[v1alpha1.Mode]v1alpha1.Mode{"": v1alpha1.ModeAuto, v1alpha1.ModeLimiter: v1alpha1.ModeAuto, v1alpha1.ModeMIG: v1alpha1.ModeAuto, v1alpha1.ModeMPS: v1alpha1.ModeMPS} {
		if mode != "" {
			placed := v1alpha1.Placement{Version: v1alpha1.Version, Node: "n", Containers: map[string]v1alpha1.PlacedShare{
				"a": {Mode: mode, Devices: []v1alpha1.PlacedDevice{{UUID: "GPU-1", Core: 25, MemMiB: 100}}}}}
			var err error
			if p.Annotations[v1alpha1.AnnotationPlacement], err = placed.Encode(); err != nil {
				t.Fatal(err)
			}
		}
		d, err := GrantedDemand(podrequest.Of(p))
		if err != nil || d.Containers[0].Mode != want || d.Containers[0].Class != "gone" || d.Containers[0].Models.Any() {
			t.Errorf("placed in mode %q: %+v, %v", mode, d, err)
		}
		delete(p.Annotations, v1alpha1.AnnotationPlacement)
	}
}
