// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SliceAdvice is how much of a GPU one container of a workload uses, and how much it is advised to
// request. The allocator writes it from what node agents publish, at most every 15 minutes. It ends
// with its namespace, or when the workload has not been seen for 14 days. It decides nothing.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=sadv,categories=vernier
// +kubebuilder:printcolumn:name="Workload",type=string,JSONPath=`.status.workload`
// +kubebuilder:printcolumn:name="Container",type=string,JSONPath=`.status.container`
// +kubebuilder:printcolumn:name="Core(%)",type=integer,JSONPath=`.status.request.core`
// +kubebuilder:printcolumn:name="Mem(MiB)",type=integer,JSONPath=`.status.request.memMiB`
// +kubebuilder:printcolumn:name="Advised-Core(%)",type=integer,JSONPath=`.status.advice.core`
// +kubebuilder:printcolumn:name="Advised-Mem(MiB)",type=integer,JSONPath=`.status.advice.memMiB`
// +kubebuilder:printcolumn:name="Confidence",type=string,JSONPath=`.status.confidence`
// +kubebuilder:printcolumn:name="Through",type=date,JSONPath=`.status.through`,priority=1
type SliceAdvice struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Status is the use and the advice.
	// +optional
	Status SliceAdviceStatus `json:"status,omitempty"`
}

// SliceAdviceList is a list of advice.
// +kubebuilder:object:root=true
type SliceAdviceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SliceAdvice `json:"items"`
}

// GPUAmounts are amounts of one GPU.
type GPUAmounts struct {
	// Core is percent of a GPU's compute; 0 is no quota.
	// +kubebuilder:validation:Maximum=100
	Core Percent `json:"core"`
	// MemMiB is memory in MiB.
	MemMiB MiB `json:"memMiB"`
}

// AdviceConfidence is how much an advice rests on.
// +kubebuilder:validation:Enum=low;medium;high
type AdviceConfidence string

// Confidence in an advice. High is 24 hours of use or more, on three days and in three pods at least,
// that no quota cut off.
const (
	ConfidenceLow    AdviceConfidence = "low"
	ConfidenceMedium AdviceConfidence = "medium"
	ConfidenceHigh   AdviceConfidence = "high"
)

// SliceAdviceStatus is what is known of one container of a workload. All amounts are of one GPU.
type SliceAdviceStatus struct {
	// Workload is KIND/NAME, such as Deployment/web.
	// +kubebuilder:validation:MaxLength=317
	// +optional
	Workload string `json:"workload,omitempty"`
	// Container is the container's name.
	// +kubebuilder:validation:MaxLength=63
	// +optional
	Container string `json:"container,omitempty"`
	// Slices is how many run now, on all nodes.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Slices int32 `json:"slices,omitempty"`
	// Initial is true where the namespace's annotation vernier.dev/advice is initial: new pods start with the
	// advice.
	// +optional
	Initial bool `json:"initial,omitempty"`
	// Request are the amounts that the newest of the containers requested.
	// +optional
	Request GPUAmounts `json:"request,omitzero"`
	// Advice are the amounts that it should request.
	// +optional
	Advice GPUAmounts `json:"advice,omitzero"`
	// Confidence is how much the advice rests on.
	// +optional
	Confidence AdviceConfidence `json:"confidence,omitempty"`
	// Reasons for the advice, for people.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=4
	// +kubebuilder:validation:items:MaxLength=256
	// +optional
	Reasons []string `json:"reasons,omitempty"`
	// Core is the use of compute over time. Newer time counts more, with a half-life of 24 hours.
	// +optional
	Core CoreUse `json:"core,omitzero"`
	// Mem is the use of memory.
	// +optional
	Mem MemUse `json:"mem,omitzero"`
	// ThrottledPercent is the part of the time in which the compute quota held the container back.
	// +kubebuilder:validation:Maximum=100
	// +optional
	ThrottledPercent Percent `json:"throttledPercent,omitempty"`
	// Refusals is how often memory was refused in the last eight days with use.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Refusals int64 `json:"refusals,omitempty"`
	// Samples is how many there were, one each 10 seconds.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Samples int64 `json:"samples,omitempty"`
	// Pods is how many were seen.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Pods int64 `json:"pods,omitempty"`
	// Days is the number of days of UTC with use, of the last eight such days.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Days int32 `json:"days,omitempty"`
	// Since is the time of the first sample.
	// +optional
	Since metav1.Time `json:"since,omitzero"`
	// Through is the time of the last sample.
	// +optional
	Through metav1.Time `json:"through,omitzero"`
	// Checkpoint is a document of Vernier's: the use that had ended by checkpointThrough. The use
	// that nodes still publish is added to it.
	// +kubebuilder:validation:MaxLength=4096
	// +optional
	Checkpoint string `json:"checkpoint,omitempty"`
	// CheckpointThrough is until when ended use is in the checkpoint.
	// +optional
	CheckpointThrough metav1.Time `json:"checkpointThrough,omitzero"`
}

// CoreUse are uses of compute in percent of one GPU that were not exceeded for that part of the time.
type CoreUse struct {
	// P50 is of half of the time.
	P50 Percent `json:"p50"`
	// P95 is of 95 % of the time.
	P95 Percent `json:"p95"`
	// P99 is of 99 % of the time.
	P99 Percent `json:"p99"`
	// Max is the highest use that still counts.
	Max Percent `json:"max"`
}

// MemUse is memory of one GPU.
type MemUse struct {
	// P99MiB is the amount that was not exceeded for 99 % of the time, to 2 %.
	P99MiB MiB `json:"p99MiB"`
	// PeakMiB is the exact peak of the last eight days with use.
	PeakMiB MiB `json:"peakMiB"`
	// NeedMiB is the most that was held and refused together; absent where nothing was refused.
	// +optional
	NeedMiB MiB `json:"needMiB,omitempty"`
}
