// SPDX-License-Identifier: Apache-2.0

package group

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
)

// API is a way of saying which pods belong together.
type API string

// The APIs. A pod that uses several belongs to the group of the first.
const (
	Native       API = "scheduling.k8s.io"
	Coscheduling API = "scheduling.x-k8s.io"
	Kueue        API = "kueue.x-k8s.io"
)

// What the APIs use on pods.
const (
	LabelCoscheduling = "scheduling.x-k8s.io/pod-group"
	LabelKueue        = "kueue.x-k8s.io/pod-group-name"
	// AnnotationKueueTotal is how many pods the group has, in all.
	AnnotationKueueTotal = "kueue.x-k8s.io/pod-group-total-count"
	// AnnotationKueueFast, with value "true", asks for each pod to be let go as it
	// comes: Kueue writes it on the pods of StatefulSets, which are created one
	// after the other.
	AnnotationKueueFast = "kueue.x-k8s.io/pod-group-fast-admission"
)

// Name names a group. The zero value names none.
type Name struct {
	API             API
	Namespace, Name string
}

// Of is the group that a pod belongs to; false for a pod that is alone.
func Of(pod *corev1.Pod) (Name, bool) {
	n := Name{Namespace: pod.Namespace}
	native := pod.Spec.SchedulingGroup
	switch {
	case native != nil && native.PodGroupName != nil:
		n.API, n.Name = Native, *native.PodGroupName
	case pod.Labels[LabelCoscheduling] != "":
		n.API, n.Name = Coscheduling, pod.Labels[LabelCoscheduling]
	case pod.Labels[LabelKueue] != "" && pod.Annotations[AnnotationKueueFast] != "true":
		n.API, n.Name = Kueue, pod.Labels[LabelKueue]
	default:
		return Name{}, false
	}
	return n, true
}

// String names the group for people.
func (n Name) String() string {
	if n.API == Kueue {
		return fmt.Sprintf("Kueue's pod group %s/%s", n.Namespace, n.Name)
	}
	return fmt.Sprintf("PodGroup %s/%s", n.Namespace, n.Name)
}

// Owner names the group as the owner of a hold.
func (n Name) Owner() string {
	return fmt.Sprintf("podgroups.%s/%s/%s", n.API, n.Namespace, n.Name)
}

// Field is where a group of the API says how many pods must start together.
func (a API) Field() string {
	switch a {
	case Native:
		return "spec.schedulingPolicy.gang.minCount"
	case Coscheduling:
		return "spec.minMember"
	default:
		return "annotation " + AnnotationKueueTotal
	}
}

// reference is where a pod names its group.
func (a API) reference() string {
	if a == Native {
		return "spec.schedulingGroup.podGroupName"
	}
	return "label " + LabelCoscheduling
}
