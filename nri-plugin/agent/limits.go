// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"context"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/batch"
)

// slimSpec has a pod's CPU limits, and the units of classes that it asks for.
func slimSpec(spec *corev1.PodSpec) corev1.PodSpec {
	limits := func(of corev1.ResourceRequirements) (slim corev1.ResourceRequirements) {
		if cpu, limited := of.Limits[corev1.ResourceCPU]; limited {
			slim.Limits = corev1.ResourceList{corev1.ResourceCPU: cpu}
		}
		for name, units := range of.Requests {
			if v1alpha1.ClassOf(name) != "" {
				slim.Requests = corev1.ResourceList{name: units}
			}
		}
		return slim
	}
	containers := func(all []corev1.Container) []corev1.Container {
		slim := make([]corev1.Container, len(all))
		for i, c := range all {
			slim[i] = corev1.Container{Name: c.Name, RestartPolicy: c.RestartPolicy, Resources: limits(c.Resources)}
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
		pod := &corev1.Pod{}
		err := pods.Get(context.Background(), client.ObjectKey{Namespace: c.Namespace, Name: c.Pod}, pod)
		if err != nil || pod.UID != c.UID {
			return 0, false
		}
		all := slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers)
		i := slices.IndexFunc(all, func(of corev1.Container) bool { return of.Name == c.Name })
		if i < 0 {
			return 0, false
		}
		limit := all[i].Resources.Limits.Cpu().MilliValue()
		if limit == 0 && pod.Spec.Resources != nil {
			limit = pod.Spec.Resources.Limits.Cpu().MilliValue()
		}
		return batch.MilliCPU(limit), true
	}
}
