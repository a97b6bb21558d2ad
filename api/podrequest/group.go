// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation"
)

// GroupAPI is a way of saying which pods belong together: a gang is a group of which some must
// start together.
type GroupAPI string

// The APIs. A pod that uses several belongs to the group of the first.
const (
	Native       GroupAPI = "scheduling.k8s.io"
	Coscheduling GroupAPI = "scheduling.x-k8s.io"
	Kueue        GroupAPI = "kueue.x-k8s.io"
	Volcano      GroupAPI = "scheduling.volcano.sh"
	// Workload is a Workload of Kueue's that waits for its admission check, before it has pods. No pod
	// belongs to one.
	Workload GroupAPI = "workload.kueue.x-k8s.io"
)

// Labels and annotations of those APIs on pods.
const (
	LabelCoscheduling = "scheduling.x-k8s.io/pod-group"
	LabelKueue        = "kueue.x-k8s.io/pod-group-name"
	// LabelKueueQueue names the queue that admits the pod, and LabelKueueManaged a pod that Kueue
	// manages.
	LabelKueueQueue   = "kueue.x-k8s.io/queue-name"
	LabelKueueManaged = "kueue.x-k8s.io/managed"
	// AnnotationKueueTotal is how many pods the group has, in all.
	AnnotationKueueTotal = "kueue.x-k8s.io/pod-group-total-count"
	// AnnotationKueueFast, with value "true", asks for each pod to be ungated as it
	// comes. Kueue writes it on the pods of StatefulSets, which are created one
	// after the other.
	AnnotationKueueFast = "kueue.x-k8s.io/pod-group-fast-admission"
	// AnnotationKueueRole is the name of the pod's podSet in its group's Workload.
	AnnotationKueueRole = "kueue.x-k8s.io/role-hash"
	// AnnotationVolcanoGroup names the PodGroup. Volcano's controllers write it on pods of its Jobs as
	// they make them, and on others a moment later.
	AnnotationVolcanoGroup = "scheduling.k8s.io/group-name"
	// VolcanoGate is the annotation by which a pod asks for the scheduling gate of the same name, and
	// with "true" gets it. Volcano takes that gate off where it is the only one.
	VolcanoGate = "scheduling.volcano.sh/queue-allocation-gate"
)

// Group names a group. The zero value names none.
type Group struct {
	API             GroupAPI
	Namespace, Name string
}

// GroupOf is the group that a pod belongs to; false for a pod that is alone.
func GroupOf(pod *corev1.Pod) (Group, bool) {
	n := Group{Namespace: pod.Namespace}
	native := pod.Spec.SchedulingGroup
	switch {
	case native != nil && native.PodGroupName != nil:
		n.API, n.Name = Native, *native.PodGroupName
	case pod.Labels[LabelCoscheduling] != "":
		n.API, n.Name = Coscheduling, pod.Labels[LabelCoscheduling]
	case pod.Labels[LabelKueue] != "" && pod.Annotations[AnnotationKueueFast] != "true":
		n.API, n.Name = Kueue, pod.Labels[LabelKueue]
	case isName(pod.Annotations[AnnotationVolcanoGroup]):
		n.API, n.Name = Volcano, pod.Annotations[AnnotationVolcanoGroup]
	default:
		return Group{}, false
	}
	return n, true
}

// isName reports whether a text may be an object's name: an annotation may be longer than any.
func isName(text string) bool { return text != "" && len(text) <= validation.DNS1123SubdomainMaxLength }

// OfGroup reports whether an annotation of a pod says something of its group.
func OfGroup(key, value string) bool {
	switch key {
	case AnnotationKueueTotal, AnnotationKueueFast, AnnotationKueueRole:
		return true
	case AnnotationVolcanoGroup:
		return isName(value)
	default:
		return false
	}
}

// CountedElsewhere reports whether Kueue has counted, or will count, what a pod with these labels
// requests.
func CountedElsewhere(labels map[string]string) bool {
	for _, key := range []string{LabelKueueQueue, LabelKueueManaged, LabelKueue} {
		if _, has := labels[key]; has {
			return true
		}
	}
	return false
}

// KueueTotal is how many pods a pod says that its group of Kueue's has.
func KueueTotal(pod *corev1.Pod) string { return pod.Annotations[AnnotationKueueTotal] }

// KueueRole is the name of the pod's podSet in the Workload of its group; empty where it is alone.
func KueueRole(pod *corev1.Pod) string { return pod.Annotations[AnnotationKueueRole] }

// String names the group for people.
func (n Group) String() string {
	switch n.API {
	case Kueue:
		return fmt.Sprintf("Kueue's pod group %s/%s", n.Namespace, n.Name)
	case Workload:
		return fmt.Sprintf("Kueue's Workload %s/%s", n.Namespace, n.Name)
	}
	return fmt.Sprintf("PodGroup %s/%s", n.Namespace, n.Name)
}

// Owner names the group as the owner of a hold.
func (n Group) Owner() string {
	return fmt.Sprintf("podgroups.%s/%s/%s", n.API, n.Namespace, n.Name)
}

// Field is where a group of the API says how many pods must start together.
func (a GroupAPI) Field() string {
	switch a {
	case Native:
		return "spec.schedulingPolicy.gang.minCount"
	case Coscheduling, Volcano:
		return "spec.minMember"
	default:
		return "annotation " + AnnotationKueueTotal
	}
}

// Reference is where a pod names its group.
func (a GroupAPI) Reference() string {
	switch a {
	case Native:
		return "spec.schedulingGroup.podGroupName"
	case Volcano:
		return "annotation " + AnnotationVolcanoGroup
	default:
		return "label " + LabelCoscheduling
	}
}
