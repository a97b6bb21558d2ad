// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strconv"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// Over many pods, the handler's patch makes the same pod as the plain mutation
// of the whole pod does, and a second round changes nothing.
func TestDifferential(t *testing.T) {
	asking := 0
	for seed := range uint64(3000) {
		pod := randomPod(rand.New(rand.NewPCG(seed, 1)))
		raw := marshal(t, pod)
		response := ours().Handle(context.Background(), request(raw))
		if !response.Allowed {
			t.Fatalf("seed %d: refused: %s\n%s", seed, response.Result.Message, raw)
		}
		patched := apply(t, raw, response)
		got, want := &corev1.Pod{}, &corev1.Pod{}
		must.Do(t, json.Unmarshal(patched, got))
		must.Do(t, json.Unmarshal(raw, want))
		must.Do(t, mutate(want))
		if !equality.Semantic.DeepEqual(got, want) {
			t.Fatalf("seed %d:\npod  %s\ngot  %s\nwant %s", seed, raw, marshal(t, got), marshal(t, want))
		}
		if again := ours().Handle(context.Background(), request(patched)); !again.Allowed || len(again.Patch) > 0 {
			t.Fatalf("seed %d: a second round says %v and patches %s", seed, again.Result, again.Patch)
		}
		if text, ok := got.Annotations[api.AnnotationShares]; ok {
			asking++
			if _, err := api.ParseShares(text); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
		}
	}
	if asking < 1000 {
		t.Errorf("only %d of 3000 pods asked for a share: the generator tests little", asking)
	}
}

// randomPod is a pod that is to be admitted.
func randomPod(r *rand.Rand) *corev1.Pod {
	pod := podOf()
	for i := range 1 + r.IntN(3) {
		pod.Spec.Containers = append(pod.Spec.Containers, randomContainer(r, fmt.Sprintf("c%d", i)))
	}
	for i := range r.IntN(3) {
		c := randomContainer(r, fmt.Sprintf("i%d", i))
		if always := corev1.ContainerRestartPolicyAlways; r.IntN(2) == 0 {
			c.RestartPolicy = &always
		}
		pod.Spec.InitContainers = append(pod.Spec.InitContainers, c)
	}
	for _, gate := range []string{"example.com/a", api.Gate, "kueue.x-k8s.io/admission"} {
		// Our gate on a pod that asks for nothing would be refused.
		if r.IntN(4) == 0 && (gate != api.Gate || asksAnything(pod)) {
			pod.Spec.SchedulingGates = append(pod.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: gate})
		}
	}
	for key, value := range map[string]string{
		"example.com/a~b": "x", "vernier.dev/mode": "limiter", "vernier.dev/policy": "spread",
		"required-plugins.noderesource.dev": "[x]", "required-plugins.noderesource.dev/pod": `["y", "z"]`,
		"required-plugins.noderesource.dev/container.c0": `["vernier"]`, "required-plugins.noderesource.dev/container.i0": "- w",
	} {
		if r.IntN(4) == 0 {
			if pod.Annotations == nil {
				pod.Annotations = map[string]string{}
			}
			pod.Annotations[key] = value
		}
	}
	return pod
}

func asksAnything(pod *corev1.Pod) bool {
	for _, c := range append(pod.Spec.Containers, pod.Spec.InitContainers...) {
		if _, asks := plainShare(c.Resources.Limits); asks {
			return true
		}
	}
	return false
}

func randomContainer(r *rand.Rand, name string) corev1.Container {
	limits := []string{"cpu", "100m"}
	gpus := 1 + r.IntN(4)
	per := func(most int) string { return strconv.Itoa(gpus * (1 + r.IntN(most))) }
	switch r.IntN(6) {
	case 0:
		limits = append(limits, "vernier.dev/gpu-core", per(100), "vernier.dev/gpu", strconv.Itoa(gpus))
	case 1:
		limits = append(limits, "vernier.dev/gpu-core", per(100), "vernier.dev/gpu-mem", per(100), "vernier.dev/gpu", strconv.Itoa(gpus))
	case 2:
		limits = append(limits, "vernier.dev/gpu-core", per(100), "vernier.dev/gpu-mem-mib", per(1<<17), "vernier.dev/gpu", strconv.Itoa(gpus))
	case 3:
		limits = append(limits, "vernier.dev/gpu-core", strconv.Itoa(1+r.IntN(100)))
	case 4:
		limits = append(limits, "vernier.dev/gpu-mem", strconv.Itoa(1+r.IntN(100)))
	}
	c := container(name, limits...)
	for range r.IntN(6) {
		names := []string{"A", "NVIDIA_VISIBLE_DEVICES", "CUDA_MPS_PIPE_DIRECTORY", "LD_PRELOAD", "NVIDIA_DRIVER_CAPABILITIES"}
		c.Env = append(c.Env, corev1.EnvVar{Name: names[r.IntN(len(names))], Value: strconv.Itoa(r.IntN(9))})
	}
	return c
}
