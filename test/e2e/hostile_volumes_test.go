// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/must"
)

// An image as a volume, whose content is all a tenant's: nothing of it lies over what enforces
// a slice, nor gives one to a container without; elsewhere it may be what it likes.
func TestHostileImageVolumes(t *testing.T) {
	const name = "vernier.local/hostile-volume:1"
	m := must.Get(cluster.Busybox(name))(t)
	for _, file := range []string{"/etc/ld.so.preload", "/etc/hosts", "/etc/hostname", "/etc/resolv.conf",
		"/vernier/libvgpu.so", "/vernier/limits", "/vernier/counters", "/vernier/pace", "/vernier/ld.so.preload", "/vernier-mps/control", "/all"} {
		m.Add(file, 0o644, nil)
	}
	file := filepath.Join(t.TempDir(), "image.tar")
	must.Do(t, m.Save(file))
	must.Do(t, sys.Node(small).ImportImage(t.Context(), file))
	at := func(p *pod, where, sub string) *pod {
		p.Spec.Volumes = []corev1.Volume{{Name: "image", VolumeSource: corev1.VolumeSource{
			Image: &corev1.ImageVolumeSource{Reference: name, PullPolicy: corev1.PullNever}}}}
		p.main().VolumeMounts = []corev1.VolumeMount{{Name: "image", MountPath: where, SubPath: sub}}
		return p.on(small)
	}
	const hides = "hides what enforces its slices"
	for what, c := range map[string]struct {
		pod  *pod
		says string
	}{
		"limits":   {at(newPod("volume-limits").share(10, 10), "/usr/local/vernier", "vernier"), hides},
		"spelled":  {at(newPod("volume-spelled").share(10, 10), "/usr/local/x/..//vernier/", "vernier"), hides},
		"below":    {at(newPod("volume-below").share(10, 10), "/usr/local/vernier/more", ""), hides},
		"preload":  {at(newPod("volume-preload").share(10, 10), "/etc/ld.so.preload", "vernier"), hides},
		"runtimes": {at(newPod("volume-runtime"), "/var/run/nvidia-container-devices", ""), "asks NVIDIA's runtime for a device"},
	} {
		made := create(t, c.pod)
		awaitEvent(t, made, c.says)
		if now := get(t, made); now.Status.Phase != corev1.PodPending {
			t.Errorf("%s: the pod is %s", what, now.Status.Phase)
		}
	}

	// Above them, ours are mounted into it; and where the loader's settings cannot be written
	// because it lies over /etc, nothing starts.
	above := awaitReady(t, create(t, at(newPod("volume-above").limit(v1alpha1.ResourceMemMiB, 2048), "/usr/local", "").args("--hold")))
	for script, want := range map[string]string{"cudademo --alloc 2100": "CUDA_ERROR_OUT_OF_MEMORY", "cudademo --alloc 900": "ok=1"} {
		if said := tryIn(t, above, script); !strings.Contains(said, want) {
			t.Errorf("%q gives %q, want %q", script, said, want)
		}
	}
	over := awaitPhase(t, create(t, at(newPod("volume-etc").limit(v1alpha1.ResourceMemMiB, 512), "/etc", "etc")), corev1.PodFailed)
	if ended := over.Status.ContainerStatuses[0].State.Terminated; ended == nil || ended.Reason != "StartError" {
		t.Errorf("over /etc: %s", status(over))
	}
}
