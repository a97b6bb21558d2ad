// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/hooks"
	"vernier.dev/vernier/test/must"
)

// cached is a cache with one pod in it.
type cached struct {
	client.Reader
	pod *corev1.Pod
}

func (c cached) Get(_ context.Context, key client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	if key != client.ObjectKeyFromObject(c.pod) {
		return apierrors.NewNotFound(schema.GroupResource{}, key.Name)
	}
	c.pod.DeepCopyInto(into.(*corev1.Pod))
	return nil
}

// A container's limit is its own or, where it has none, its pod's, as the cache keeps
// it; of another pod of that name nothing is known. Nor is it of its env.
func TestCPULimit(t *testing.T) {
	limited := func(cpu string) corev1.ResourceRequirements {
		return corev1.ResourceRequirements{Limits: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse(cpu), corev1.ResourceMemory: resource.MustParse("1Gi"),
		}}
	}
	pod := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "a", UID: "uid"},
		Spec: corev1.PodSpec{
			InitContainers: []corev1.Container{{Name: "init", Image: "image", Resources: limited("2")}},
			Containers: []corev1.Container{{Name: "main", Resources: limited("1500m"), Env: []corev1.EnvVar{{Name: "A"}, {Name: "CUDA_VISIBLE_DEVICES", Value: "7"},
				{Name: "CUDA_MPS_X"}, {Name: "LD_PRELOAD"}, {Name: "CUDA_VISIBLE_DEVICES"}}}, {Name: "free"}},
		},
	}
	slim := must.Get(slimPod(pod))(t)
	if c := slim.(*corev1.Pod).Spec.InitContainers[0]; c.Image != "" || len(c.Resources.Limits) != 1 {
		t.Errorf("the cache keeps %+v", c)
	}
	whole := pod.DeepCopy()
	resources := limited("4")
	whole.Spec.Resources = &resources
	slimWhole := must.Get(slimPod(whole))(t)
	for _, c := range []struct {
		name, pod string
		uid       types.UID
		of        any
		want      batch.MilliCPU
		known     bool
	}{
		{"main", "a", "uid", slim, 1500, true},
		{"init", "a", "uid", slim, 2000, true},
		{"free", "a", "uid", slim, 0, true},
		{"free", "a", "uid", slimWhole, 4000, true},
		{"main", "a", "uid", slimWhole, 1500, true},
		{"other", "a", "uid", slim, 0, false},
		{"main", "a", "another", slim, 0, false},
		{"main", "b", "uid", slim, 0, false},
	} {
		limit := cpuLimit(cached{pod: c.of.(*corev1.Pod)})
		got, known := limit(batch.Container{Namespace: "team", Pod: c.pod, UID: c.uid, Name: c.name})
		if got != c.want || known != c.known {
			t.Errorf("%s of pod %s (%s): %d, %t; want %d, %t", c.name, c.pod, c.uid, got, known, c.want, c.known)
		}
		want := ""
		if c.name == "main" && c.known {
			want = "CUDA_VISIBLE_DEVICES LD_PRELOAD"
		}
		steering := steeringEnv(cached{pod: c.of.(*corev1.Pod)})
		if names := steering(hooks.PodRef{Namespace: "team", Name: c.pod, UID: c.uid, Container: c.name}); strings.Join(names, " ") != want {
			t.Errorf("%s of pod %s (%s): the env names %q, want %q", c.name, c.pod, c.uid, names, want)
		}
	}
}
