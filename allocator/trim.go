// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"maps"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"vernier.dev/vernier/allocator/group"
	"vernier.dev/vernier/api/v1alpha1"
)

// trim drops from an object, before it is cached, what is large and what neither
// the scheduler's filters nor we read. Every pod of the cluster is cached, since
// every pod takes room on its node, and with every ReplicaSet there comes a whole
// pod template. Nothing of the cache is ever written back.
func trim(obj any) (any, error) {
	if m, err := meta.Accessor(obj); err == nil {
		m.SetManagedFields(nil)
	}
	switch o := obj.(type) {
	case *corev1.Pod:
		trimPod(o)
	case *corev1.Node:
		o.Status.Images = nil
	case *corev1.ReplicationController:
		o.Spec.Template = nil
	case *appsv1.ReplicaSet:
		o.Spec.Template = corev1.PodTemplateSpec{}
	case *appsv1.StatefulSet:
		o.Spec.Template, o.Spec.VolumeClaimTemplates = corev1.PodTemplateSpec{}, nil
	}
	return obj, nil
}

// trimPod leaves all that places a pod. Of its status that is what a container that
// was resized in place was allotted, and the claims that were made for it.
func trimPod(p *corev1.Pod) {
	maps.DeleteFunc(p.Annotations, func(key, _ string) bool {
		return !strings.HasPrefix(key, v1alpha1.Prefix) && key != group.AnnotationKueueTotal && key != group.AnnotationKueueFast
	})
	p.Spec.EphemeralContainers, p.Status.EphemeralContainerStatuses = nil, nil
	// The volume with the service account's token, which nearly every pod has.
	p.Spec.Volumes = slices.DeleteFunc(p.Spec.Volumes, func(v corev1.Volume) bool { return v.Projected != nil })
	for _, list := range [][]corev1.Container{p.Spec.InitContainers, p.Spec.Containers} {
		for i := range list {
			c := &list[i]
			c.Command, c.Args, c.Env, c.EnvFrom, c.VolumeMounts = nil, nil, nil, nil, nil
			c.LivenessProbe, c.ReadinessProbe, c.StartupProbe, c.Lifecycle = nil, nil, nil, nil
		}
	}
	for _, list := range [][]corev1.ContainerStatus{p.Status.InitContainerStatuses, p.Status.ContainerStatuses} {
		for i := range list {
			s := &list[i]
			s.Image, s.ImageID, s.VolumeMounts = "", "", nil
			s.LastTerminationState = corev1.ContainerState{}
			if s.State.Terminated != nil {
				s.State.Terminated.Message = ""
			}
		}
	}
}
