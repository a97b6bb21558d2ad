// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// Variables that steer the GPU lead nowhere from a ConfigMap or from the image, which
// admission does not see; and what CUDA images ordinarily carry is no hindrance.
func TestHostileVariables(t *testing.T) {
	const steering, forged = "steering", "forged"
	maps := sys.Kube.CoreV1().ConfigMaps(namespace)
	for name, data := range map[string]map[string]string{
		steering: {
			"CUDA_MPS_PIPE_DIRECTORY": "/configmap", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT": "9=1G",
			"CUDA_VISIBLE_DEVICES": "7", "LD_PRELOAD": "/nothing.so",
		},
		forged: {"VERNIER_SLICE": "x"},
	} {
		m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: name}, Data: data}
		must.Get(maps.Create(t.Context(), m, metav1.CreateOptions{}))(t)
		t.Cleanup(func() { must.Report(t, maps.Delete(context.Background(), name, metav1.DeleteOptions{})) })
	}
	from := func(p *pod, name string) *pod {
		p.main().EnvFrom = []corev1.EnvFromSource{{ConfigMapRef: &corev1.ConfigMapEnvSource{
			LocalObjectReference: corev1.LocalObjectReference{Name: name}}}}
		return p
	}
	const says = `echo "env pipe=$CUDA_MPS_PIPE_DIRECTORY memory=[$CUDA_MPS_PINNED_DEVICE_MEM_LIMIT] devices=$CUDA_VISIBLE_DEVICES visible=$NVIDIA_VISIBLE_DEVICES capabilities=$NVIDIA_DRIVER_CAPABILITIES"; exec cudademo --hold`
	asking := func(name string) *pod {
		return newPod(name).share(10, 10).on(small).command("/bin/sh", "-c", says)
	}
	ofImage := asking("of-image")
	ofImage.main().Image = system.PreloadImage
	for _, p := range []*pod{from(asking("of-configmap"), steering), ofImage} {
		made := awaitReady(t, create(t, p))
		got := values(t, made, "main")
		if got["env.pipe"] != "/tmp/nvidia-mps" || got["env.memory"] != "[]" || got["env.devices"] != "0" || got["env.visible"] != "void" ||
			got["env.capabilities"] != "compute,utility" || got["device"] == "" {
			t.Errorf("%s: the container sees %v", p.Name, got)
		}
		awaitEvent(t, made, "GPUVariables", "CUDA_MPS_PIPE_DIRECTORY", "CUDA_VISIBLE_DEVICES", "envFrom")
	}

	// In the pod's own env, where the event says so. 0 of a resource keeps nobody from starting.
	ofEnv := awaitReady(t, create(t, asking("of-env").env("CUDA_VISIBLE_DEVICES", "7").limit(v1alpha1.ResourceMemMiB, 0)))
	if got := values(t, ofEnv, "main"); got["env.devices"] != "0" || got["device"] == "" {
		t.Errorf("of its env: the container sees %v", got)
	}
	awaitEvent(t, ofEnv, "GPUVariables", "of its env in the pod \"CUDA_VISIBLE_DEVICES\"")

	// Both of them: which one there is to replace, NRI does not know.
	twice := asking("twice")
	twice.main().Image = system.PreloadImage
	made := create(t, from(twice, steering))
	awaitEvent(t, made, "CUDA_", "set more than once", "Remove it from the pod")
	mark := create(t, from(asking("mark"), forged))
	awaitEvent(t, mark, "VERNIER_SLICE", "ConfigMap or Secret")
	for _, p := range []*corev1.Pod{made, mark} {
		if now := get(t, p); now.Status.Phase != corev1.PodPending {
			t.Errorf("pod %s is %s", p.Name, now.Status.Phase)
		}
	}

	// Without a share they are the pod's own.
	plain := newPod("plain").on(small).command("/bin/sh", "-c", strings.Replace(says, "exec cudademo --hold", "echo hold itself; exec sleep 1000", 1))
	if got := values(t, awaitReady(t, create(t, from(plain, steering))), "main"); got["env.pipe"] != "/configmap" || got["env.devices"] != "7" {
		t.Errorf("without a share: the container sees %v", got)
	}
}
