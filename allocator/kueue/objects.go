// SPDX-License-Identifier: Apache-2.0

package kueue

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/api/podrequest"
)

// Group and Version of Kueue's API that are read: Kueue 0.15 and newer.
const (
	Group   = "kueue.x-k8s.io"
	Version = "v1beta2"
)

// What is read of a Workload, with the names of Kueue's own types and fields.
type workload struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              workloadSpec   `json:"spec"`
	Status            workloadStatus `json:"status"`
}

type workloadSpec struct {
	PodSets          []podSet `json:"podSets"`
	Active           *bool    `json:"active"`
	Priority         *int32   `json:"priority"`
	PriorityClassRef *struct {
		Group string `json:"group"`
		Name  string `json:"name"`
	} `json:"priorityClassRef"`
}

type podSet struct {
	Name     string                 `json:"name"`
	Count    int32                  `json:"count"`
	Template corev1.PodTemplateSpec `json:"template"`
}

type workloadStatus struct {
	Conditions []metav1.Condition `json:"conditions"`
	Admission  *struct {
		PodSetAssignments []podSetAssignment `json:"podSetAssignments"`
	} `json:"admission"`
	AdmissionChecks []checkState `json:"admissionChecks"`
	RequeueState    *struct {
		RequeueAt *metav1.Time `json:"requeueAt"`
	} `json:"requeueState"`
}

type podSetAssignment struct {
	Name    string                         `json:"name"`
	Flavors map[corev1.ResourceName]string `json:"flavors"`
	Count   *int32                         `json:"count"`
}

type checkState struct {
	Name                string         `json:"name"`
	State               string         `json:"state"`
	LastTransitionTime  metav1.Time    `json:"lastTransitionTime"`
	Message             string         `json:"message"`
	RequeueAfterSeconds *int32         `json:"requeueAfterSeconds,omitempty"`
	RetryCount          *int32         `json:"retryCount,omitempty"`
	PodSetUpdates       []podSetUpdate `json:"podSetUpdates,omitempty"`
}

type podSetUpdate struct {
	Name        string            `json:"name"`
	Annotations map[string]string `json:"annotations"`
}

// States of a check.
const (
	pending  = "Pending"
	ready    = "Ready"
	retry    = "Retry"
	rejected = "Rejected"
)

type admissionCheck struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		ControllerName string `json:"controllerName"`
		Parameters     *struct {
			Kind string `json:"kind"`
		} `json:"parameters"`
	} `json:"spec"`
	Status struct {
		Conditions []metav1.Condition `json:"conditions"`
	} `json:"status"`
}

type resourceFlavor struct {
	metav1.ObjectMeta `json:"metadata"`
	Spec              struct {
		NodeLabels  map[string]string   `json:"nodeLabels"`
		Tolerations []corev1.Toleration `json:"tolerations"`
	} `json:"spec"`
}

// decode reads an object without what nobody reads of its metadata.
func decode(u *unstructured.Unstructured, into metav1.Object) error {
	u.SetManagedFields(nil)
	u.SetAnnotations(nil)
	u.SetLabels(nil)
	return runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, into)
}

// workloadOf reads a Workload. Templates are kept of one that waits for checks only, or whose pods may come.
func workloadOf(u *unstructured.Unstructured) (*workload, error) {
	w := &workload{}
	if err := decode(u, w); err != nil {
		return nil, err
	}
	if !w.holdsQuota() {
		w.Spec.PodSets, w.Status.Admission = nil, nil
	}
	return w, nil
}

func (w *workload) key() types.NamespacedName {
	return types.NamespacedName{Namespace: w.Namespace, Name: w.Name}
}

// holdsQuota reports whether Kueue has reserved quota for the Workload, so that it waits for checks or runs.
func (w *workload) holdsQuota() bool {
	return len(w.Status.AdmissionChecks) > 0 && w.Status.Admission != nil && (w.Spec.Active == nil || *w.Spec.Active) && w.DeletionTimestamp == nil &&
		meta.IsStatusConditionTrue(w.Status.Conditions, "QuotaReserved") &&
		!meta.IsStatusConditionTrue(w.Status.Conditions, "Evicted") && !meta.IsStatusConditionTrue(w.Status.Conditions, "Finished")
}

// admitted reports whether its pods may come.
func (w *workload) admitted() bool {
	return meta.IsStatusConditionTrue(w.Status.Conditions, "Admitted")
}

// pods are the owners of a Workload that was made of plain pods.
func (w *workload) pods() (uids []types.UID) {
	for _, owner := range w.OwnerReferences {
		if owner.APIVersion == "v1" && owner.Kind == "Pod" {
			uids = append(uids, owner.UID)
		}
	}
	return uids
}

func itemOf(key types.NamespacedName) queue.Item {
	return queue.Item{Gang: podrequest.Group{API: podrequest.Workload, Namespace: key.Namespace, Name: key.Name}}
}

func keyOf(name podrequest.Group) types.NamespacedName {
	return types.NamespacedName{Namespace: name.Namespace, Name: name.Name}
}
