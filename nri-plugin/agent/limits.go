// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/hooks"
)

// slimSpec has a pod's CPU limits, the units of classes that it asks for, and the names of the
// variables that steer the GPU.
func slimSpec(spec *corev1.PodSpec) corev1.PodSpec {
	limits := func(of corev1.ResourceRequirements) (slim corev1.ResourceRequirements) {
		if cpu, limited := of.Limits[corev1.ResourceCPU]; limited {
			slim.Limits = corev1.ResourceList{corev1.ResourceCPU: cpu}
		}
		for name, units := range of.Requests {
			if v1alpha1.ClassOf(name) != "" && !units.IsZero() {
				slim.Requests = corev1.ResourceList{name: units}
			}
		}
		return slim
	}
	steering := func(all []corev1.EnvVar) (slim []corev1.EnvVar) {
		for _, v := range all {
			name := corev1.EnvVar{Name: v.Name}
			if (v.Name == v1alpha1.EnvCUDADevices || v1alpha1.EnvRuleOf(v.Name, true) == v1alpha1.EnvWarned) && !slices.Contains(slim, name) {
				slim = append(slim, name)
			}
		}
		return slim
	}
	containers := func(all []corev1.Container) []corev1.Container {
		slim := make([]corev1.Container, len(all))
		for i, c := range all {
			slim[i] = corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, Resources: limits(c.Resources), Env: steering(c.Env)}
		}
		return slim
	}
	slim := corev1.PodSpec{InitContainers: containers(spec.InitContainers), Containers: containers(spec.Containers)}
	if spec.Resources != nil {
		whole := limits(*spec.Resources)
		slim.Resources = &whole
	}
	return slim
}

// cpuLimit looks up what a pod's specification allows a container: the runtime's own
// limit may be a cap of ours from before a restart.
func cpuLimit(pods client.Reader) func(batch.Container) (batch.MilliCPU, bool) {
	return func(c batch.Container) (batch.MilliCPU, bool) {
		pod, container := find(pods, hooks.PodRef{Namespace: c.Namespace, Name: c.Pod, UID: c.UID, Container: c.Name})
		if container == nil {
			return 0, false
		}
		limit := container.Resources.Limits.Cpu().MilliValue()
		if limit == 0 && pod.Spec.Resources != nil {
			limit = pod.Spec.Resources.Limits.Cpu().MilliValue()
		}
		return batch.MilliCPU(limit), true
	}
}

// steeringEnv looks up which variables that steer the GPU a container has in its env.
func steeringEnv(pods client.Reader) func(hooks.PodRef) []string {
	return func(ref hooks.PodRef) (names []string) {
		if _, container := find(pods, ref); container != nil {
			for _, v := range container.Env {
				names = append(names, v.Name)
			}
		}
		return names
	}
}

// find is a container of a pod in the cache; nil where it is not there.
func find(pods client.Reader, ref hooks.PodRef) (*corev1.Pod, *corev1.Container) {
	pod := &corev1.Pod{}
	err := pods.Get(context.Background(), client.ObjectKey{Namespace: ref.Namespace, Name: ref.Name}, pod)
	if err != nil || pod.UID != ref.UID {
		return nil, nil
	}
	all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
	i := slices.IndexFunc(all, func(of corev1.Container) bool { return of.Name == ref.Container })
	if i < 0 {
		return nil, nil
	}
	return pod, &all[i]
}
