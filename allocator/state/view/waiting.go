// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// WaitingPod is a pod that has not been placed yet.
type WaitingPod struct {
	Namespace string      `json:"namespace"`
	Pod       string      `json:"pod"`
	PodUID    types.UID   `json:"podUID"`
	Created   metav1.Time `json:"created"`
	// Needs is empty when the pod's demand cannot be read; Error says why.
	Needs []Need `json:"needs"`
	Error string `json:"error,omitempty"`
	// OtherGates are scheduling gates besides ours, which must go first.
	OtherGates []string `json:"otherGates,omitempty"`
	// Cause is why it waits, in a word, and Now in a sentence by the ledgers of this moment. The sentence
	// is empty where only the event says it, or where ledgers are not known.
	Cause cause.Cause `json:"cause,omitempty"`
	Now   string      `json:"now,omitempty"`
	// Reason is the allocator's last word on why the pod waits, if it has not expired.
	Reason *Reason `json:"reason,omitempty"`
	// Reserved is its last word on the room that is kept for the pod, likewise.
	Reserved *Reserved `json:"reserved,omitempty"`
}

// Need is what one container asks for, on each of its GPUs.
type Need struct {
	Container string `json:"container"`
	// Class is the GPUClass of which it asks for units, if it does.
	Class string               `json:"class,omitempty"`
	GPUs  v1alpha1.DeviceCount `json:"gpus"`
	Core  v1alpha1.Percent     `json:"core"`
	// One of the two is set.
	MemPercent v1alpha1.Percent `json:"memPercent,omitempty"`
	MemMiB     v1alpha1.MiB     `json:"memMiB,omitempty"`
}

// Reason is an event.
type Reason struct {
	Reason  string      `json:"reason"`
	Message string      `json:"message"`
	Seen    metav1.Time `json:"seen"`
}

// WaitingPodOf is a gated pod.
func WaitingPodOf(p *corev1.Pod, said Said) WaitingPod {
	w := WaitingPod{Namespace: p.Namespace, Pod: p.Name, PodUID: p.UID, Created: p.CreationTimestamp, Needs: []Need{}, OtherGates: podstate.OtherGates(p)}
	if r := podrequest.Of(p); r.SharesErr != nil {
		w.Error = r.SharesErr.Error()
	} else {
		w.Needs = Needs(r)
	}
	w.Reason = said.Reason(p)
	w.Reserved = said.Reserved(p)
	return w
}

// ReasonOf is an event as a reason.
func ReasonOf(e *corev1.Event) *Reason {
	return &Reason{Reason: e.Reason, Message: e.Message, Seen: e.LastTimestamp}
}

// Needs lists what the containers of a pod ask for, by name.
func Needs(r *podrequest.Request) []Need {
	class := map[string]string{}
	for _, c := range r.Containers {
		class[c.Name] = c.Class
	}
	all := make([]Need, 0, len(r.Shares))
	for name, s := range r.Shares {
		all = append(all, Need{name, class[name], s.GPUs, s.Core, s.MemPercent, s.MemMiB})
	}
	slices.SortFunc(all, func(a, b Need) int { return cmp.Compare(a.Container, b.Container) })
	return all
}

// Subject is the object that an event is about. The UID tells it from an earlier one of the same
// name. By the UID alone an event in one namespace could be about a pod of another.
type Subject struct {
	Namespace, Name string
	UID             types.UID
}

// AsSubject is the object as the subject of events.
func AsSubject(o metav1.Object) Subject { return Subject{o.GetNamespace(), o.GetName(), o.GetUID()} }

// SubjectOf is the object that the event is about.
func SubjectOf(e *corev1.Event) Subject {
	return Subject{e.Namespace, e.InvolvedObject.Name, e.InvolvedObject.UID}
}

// LastEvents keeps the latest event of each object, of one second the last in the list.
func LastEvents(events []corev1.Event) map[Subject]corev1.Event {
	last := make(map[Subject]corev1.Event)
	for _, e := range events {
		of := SubjectOf(&e)
		if old, ok := last[of]; !ok || !e.LastTimestamp.Before(&old.LastTimestamp) {
			last[of] = e
		}
	}
	return last
}
