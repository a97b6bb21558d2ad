// SPDX-License-Identifier: Apache-2.0

package objects

import (
	"fmt"
	"maps"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/podrequest"
)

// What makes a pod differ from another.

// InGang makes the pod one of a gang of so many.
func InGang(name string, total int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels = map[string]string{podrequest.LabelKueue: name}
		p.Annotations[podrequest.AnnotationKueueTotal] = fmt.Sprint(total)
	}
}

// Labelled labels the pod with an app.
func Labelled(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { metav1.SetMetaDataLabel(&p.ObjectMeta, "app", app) }
}

// Near has the pod go to the node of a pod of the app, or be the first of it.
func Near(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}}}
	}
}

// SpreadFrom spreads the pod from those of app x, such that no node is refused.
func SpreadFrom(p *corev1.Pod) {
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 10000, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		NodeAffinityPolicy: ptr.To(corev1.NodeInclusionPolicyIgnore),
		LabelSelector:      &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}}
}

// Controlled gives the pod a controller, which makes it again.
func Controlled(p *corev1.Pod) {
	p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r", Controller: ptr.To(true)}}
}

// Priority sets the pod's priority.
func Priority(p int32) func(*corev1.Pod) {
	return func(pod *corev1.Pod) { pod.Spec.Priority = &p }
}

// InNamespace has the pod in another namespace.
func InNamespace(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Namespace = name }
}

// Annotated sets an annotation.
func Annotated(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Annotations[key] = value }
}

// OnNode has the pod go to a node and no other.
func OnNode(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: name} }
}

// CPU asks for CPUs as well.
func CPU(amount string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		c := &p.Spec.Containers[0].Resources
		c.Requests = maps.Clone(c.Requests)
		if c.Requests == nil {
			c.Requests = corev1.ResourceList{}
		}
		c.Requests[corev1.ResourceCPU] = resource.MustParse(amount)
	}
}

// CannotStart has the kubelet fail to create the containers.
func CannotStart(containers ...string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		for _, c := range containers {
			p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c,
				State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError"}}})
		}
	}
}
