// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// Tide says when idle slices may be on some nodes, and on how much of each device. It is a function
// of the time: nothing is remembered when a window opens or ends. Administrators make tides.
//
// Of several tides that select a node, the smaller amounts count. A node that no tide selects lends
// all.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=vernier
// +kubebuilder:subresource:status
// +kubebuilder:validation:XValidation:rule="self.metadata.name.size() <= 63",message="metadata.name must have at most 63 characters: ledgers name their tides"
// +kubebuilder:printcolumn:name="Open",type=boolean,JSONPath=`.status.open`
// +kubebuilder:printcolumn:name="Until",type=string,JSONPath=`.status.until`
// +kubebuilder:printcolumn:name="Next",type=string,JSONPath=`.status.next`
// +kubebuilder:printcolumn:name="Core(%)",type=integer,JSONPath=`.spec.lend.core`
// +kubebuilder:printcolumn:name="Mem(%)",type=integer,JSONPath=`.spec.lend.mem`
// +kubebuilder:printcolumn:name="Accepted",type=string,JSONPath=`.status.conditions[?(@.type=="Accepted")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type Tide struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is when and how much.
	Spec TideSpec `json:"spec"`
	// Status is what the allocator says of the tide.
	// +optional
	Status TideStatus `json:"status,omitempty"`
}

// TideList is a list of tides.
// +kubebuilder:object:root=true
type TideList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Tide `json:"items"`
}

// TideSpec is when idle slices may be on the selected nodes, and how much they may have there.
// +kubebuilder:validation:XValidation:rule="self.outside.core <= self.lend.core && self.outside.mem <= self.lend.mem",message="must not be more than lend: a window lends more, not less",fieldPath=".outside"
type TideSpec struct {
	// NodeSelector are labels that the nodes have. Without any, all nodes are selected.
	// +kubebuilder:validation:MaxProperties=16
	// +optional
	NodeSelector map[string]string `json:"nodeSelector,omitempty"`
	// Windows are when the tide is open. Where they overlap or follow each other, they are one.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	Windows []TideWindow `json:"windows"`
	// Lend is how much of each device idle slices may have while the tide is open.
	Lend TideAmounts `json:"lend"`
	// Outside is the same while it is shut. Without it, none.
	// +kubebuilder:default={core: 0, mem: 0}
	// +optional
	Outside TideAmounts `json:"outside,omitempty"`
	// Reclaim is how the end of a window is kept.
	// +kubebuilder:default={}
	// +optional
	Reclaim TideReclaim `json:"reclaim,omitempty"`
}

// TideWindow is a time that comes again.
type TideWindow struct {
	// Schedule is when the window opens, as in a CronJob: minute, hour, day, month and weekday, or
	// @daily and the like.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=100
	// +kubebuilder:validation:XValidation:rule="!self.contains('TZ') && !self.startsWith('@every')",message="must be five fields or @daily and the like, without TZ and @every: set timeZone instead"
	Schedule string `json:"schedule"`
	// Duration is for how long it is open, 1m to 168h. Clocks that are put forward or back do not
	// change it.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(h|m|s))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) >= duration('1m') && duration(self) <= duration('168h')",message="must be from 1m to 168h"
	Duration metav1.Duration `json:"duration"`
	// TimeZone of the schedule, by its name in the IANA database such as Asia/Shanghai. A time of
	// day that a day does not have opens nothing, and one that it has twice opens twice.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	// +kubebuilder:default=UTC
	// +optional
	TimeZone string `json:"timeZone,omitempty"`
}

// TideAmounts are percent of each device.
type TideAmounts struct {
	// Core is percent of compute, for which idle slices were placed.
	// +kubebuilder:validation:Maximum=100
	Core Percent `json:"core"`
	// Mem is percent of memory.
	// +kubebuilder:validation:Maximum=100
	Mem Percent `json:"mem"`
}

// TideReclaim is how the end of a window is kept.
type TideReclaim struct {
	// Before is for how long before the end only pods are placed whose activeDeadlineSeconds ends by
	// then, 0s to 4h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(h|m|s))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('4h')",message="must be from 0s to 4h"
	// +kubebuilder:default="10m"
	// +optional
	Before metav1.Duration `json:"before,omitempty"`
	// Grace is for how long after the end a container may still be there, without compute, 0s to 1h.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MaxLength=16
	// +kubebuilder:validation:Pattern=`^([0-9]+(h|m|s))+$`
	// +kubebuilder:validation:XValidation:rule="duration(self) <= duration('1h')",message="must be from 0s to 1h"
	// +kubebuilder:default="30s"
	// +optional
	Grace metav1.Duration `json:"grace,omitempty"`
}

// TideStatus is what the allocator says of a tide.
type TideStatus struct {
	// Open reports whether the tide is open.
	// +optional
	Open bool `json:"open"`
	// Until is when it ends; absent while it is shut.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
	// Next is when it opens; absent while it is open, and where it never opens.
	// +optional
	Next *metav1.Time `json:"next,omitempty"`
	// Conditions of the tide: Accepted.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionAccepted is false while a tide cannot be read: its nodes then lend nothing. It is unknown
// while the allocator's clock cannot be trusted, which opens nothing.
const ConditionAccepted = "Accepted"
