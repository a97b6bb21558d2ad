// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/asked"
	model "vernier.dev/vernier/allocator/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// Reasoned is a pod, and everything that is known of why it waits.
type Reasoned struct {
	WaitingPod
	// State in a sentence.
	State string `json:"state"`
	// Classes of nodes, and what each has for the pod; none for one that does not
	// wait for Vernier.
	Classes []NodeClass `json:"classes"`
}

// Why says why a pod waits, or that it does not. events are the allocator's.
func Why(pod *corev1.Pod, events []corev1.Event, all []v1alpha1.SliceLedger) Reasoned {
	r := Reasoned{Classes: []NodeClass{}}
	if waiting := Waiting([]corev1.Pod{*pod}, events); len(waiting) == 1 {
		r.WaitingPod = waiting[0]
	} else {
		r.WaitingPod = WaitingPod{Namespace: pod.Namespace, Pod: pod.Name, PodUID: pod.UID, Created: pod.CreationTimestamp, Needs: []Need{}}
		r.State = r.notWaiting(pod, model.LastEvents(events), all)
		return r
	}
	demand, _, err := asked.Of(pod)
	switch {
	case err != nil:
		r.State = "what it asks for cannot be read: " + err.Error()
		return r
	case len(r.OtherGates) > 0:
		r.State = "it waits for other gates first: " + strings.Join(r.OtherGates, ", ")
	default:
		r.State = "it waits for a place"
	}
	r.Classes = Fit(demand, all)
	if slices.ContainsFunc(r.Classes, func(c NodeClass) bool { return len(c.Fits) > 0 }) && len(r.OtherGates) == 0 {
		r.State += ", and there is room: what the scheduler says of the nodes with it (taints, affinities, CPU) is in the allocator's last word"
	}
	return r
}

func (r *Reasoned) notWaiting(pod *corev1.Pod, last map[types.UID]corev1.Event, all []v1alpha1.SliceLedger) string {
	if e, ok := last[pod.UID]; ok {
		r.Reason = model.ReasonOf(&e)
	}
	doc, err := v1alpha1.ParsePlacement(pod.Annotations[v1alpha1.AnnotationPlacement])
	switch {
	case pod.Annotations[v1alpha1.AnnotationShares] == "":
		return "it asks for nothing that Vernier gives: `kubectl describe pod` says what it waits for"
	case err != nil:
		return "it holds no gate of Vernier's and has no place: create it again"
	case pod.Spec.NodeName == "":
		return fmt.Sprintf("it has its place on node %s, and the scheduler has not bound it yet: `kubectl describe pod` says why", doc.Node)
	}
	state := fmt.Sprintf("it is on node %s, %s", pod.Spec.NodeName, strings.ToLower(string(pod.Status.Phase)))
	if pod.Status.Phase != corev1.PodPending {
		return "it does not wait for Vernier: " + state
	}
	if at := slices.IndexFunc(all, func(l v1alpha1.SliceLedger) bool { return l.Name == pod.Spec.NodeName }); at >= 0 {
		if n := model.NodeOf(&all[at]); n.Ready != metav1.ConditionTrue {
			state += "; the node starts no container with a share now: " + n.Note
		}
	}
	for _, s := range slices.Concat(pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && w.Message != "" {
			return fmt.Sprintf("%s; the kubelet says of container %s: %s: %s", state, s.Name, w.Reason, w.Message)
		}
	}
	return state
}
