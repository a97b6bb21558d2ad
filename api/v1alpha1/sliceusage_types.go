// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// SliceUsage is the account of one GPU node. It has the time of its GPUs by namespace, how much
// of that was measured as used, and the time that was not granted. The node agent writes it every 15
// minutes and after each hour. It is named after the node and owned by it. It decides nothing.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=su,categories=vernier
// +kubebuilder:printcolumn:name="Since",type=date,JSONPath=`.status.since`
// +kubebuilder:printcolumn:name="Through",type=date,JSONPath=`.status.through`
// +kubebuilder:printcolumn:name="Models",type=string,JSONPath=`.status.sums[*].model`
type SliceUsage struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Status is the account.
	// +optional
	Status SliceUsageStatus `json:"status,omitempty"`
}

// SliceUsageList is a list of accounts.
// +kubebuilder:object:root=true
type SliceUsageList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SliceUsage `json:"items"`
}

// Bounds of an account. Where the entries of its hours, or its hours, are more, the oldest
// hours go. Their amounts stay in the sums. A full object takes about 0.5 MiB.
const (
	// MaxUsageHours are eight days.
	MaxUsageHours = 192
	// MaxUsageEntries bounds the models of all hours together, with the namespaces of each.
	MaxUsageEntries = 2048
	// MaxUsageHourEntries bounds those of one hour, MaxUsageSumEntries those of the sums. Amounts
	// of further namespaces are counted under OtherNamespaces. Full sums also move namespaces there
	// that were granted nothing in the last 24 hours.
	MaxUsageHourEntries = 256
	MaxUsageSumEntries  = 384
	// MaxUsageModels bounds the models of an hour and of the sums. Further ones are counted
	// under OtherModels.
	MaxUsageModels = 64
)

// OtherNamespaces and OtherModels stand for all that an account has no room to name. They are
// no names that a namespace or a GPU can have.
const (
	OtherNamespaces = "*"
	OtherModels     = "*"
)

// PercentSeconds is percent of a GPU's compute, times seconds: 360,000 is one GPU for an hour.
// +kubebuilder:validation:Minimum=0
type PercentSeconds int64

// MiBSeconds is memory in MiB, times seconds: 3,686,400 is one GiB for an hour.
// +kubebuilder:validation:Minimum=0
type MiBSeconds int64

// PerGPUHour and PerGiBHour are how many of them make an hour of a GPU and of a GiB.
const (
	PerGPUHour PercentSeconds = 100 * 3600
	PerGiBHour MiBSeconds     = 1024 * 3600
)

// SliceUsageStatus is an account. Of each model, in each hour and in the sums:
//
//	the granted of all namespaces + free + unavailable + unknown = total
//
// to the second, for compute and for memory.
type SliceUsageStatus struct {
	// Since is when the account began.
	// +optional
	Since metav1.Time `json:"since,omitzero"`
	// Through is until when everything is counted.
	// +optional
	Through metav1.Time `json:"through,omitzero"`
	// Hours of UTC, the oldest first. The last one is not over yet.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=192
	// +optional
	Hours []UsageHour `json:"hours,omitempty"`
	// Sums of everything since the account began, by model.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=65
	// +optional
	Sums []ModelUsage `json:"sums,omitempty"`
	// Containers are the use by workloads here, for advice. It is a container's own word, and no
	// part of the account.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Containers []ContainerUse `json:"containers,omitempty"`
}

// UsageHour is one hour of an account.
type UsageHour struct {
	// Start of the hour.
	Start metav1.Time `json:"start"`
	// Models that the node had in it.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=65
	// +optional
	Models []ModelUsage `json:"models,omitempty"`
}

// ModelUsage is the time of all GPUs of one model.
type ModelUsage struct {
	// Model is the devices' name as in the ledger, or * for further models.
	// +kubebuilder:validation:MaxLength=128
	Model string `json:"model"`
	// Total is the time of the devices that the agent has seen.
	Total DeviceTime `json:"total"`
	// Free is time that no namespace was granted, of devices that take slices.
	Free DeviceTime `json:"free"`
	// Unavailable is the same of devices that take none: cordoned, unhealthy, or in MIG mode
	// without a profile.
	// +optional
	Unavailable DeviceTime `json:"unavailable,omitzero"`
	// Unknown is time of an agent that was away, less the time that the ledger's slices prove by
	// their since.
	// +optional
	Unknown DeviceTime `json:"unknown,omitzero"`
	// Granted is the time of namespaces, by name.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=448
	// +optional
	Granted []NamespaceUsage `json:"granted,omitempty"`
}

// DeviceTime is an amount of devices, times seconds.
type DeviceTime struct {
	// Core is compute in percent, times seconds. 360,000 is one GPU for an hour.
	Core PercentSeconds `json:"core"`
	// Mem is memory in MiB, times seconds. A device counts with what it has, or with what is granted
	// of it where that is more.
	Mem MiBSeconds `json:"mem"`
}

// Add adds t.
func (d *DeviceTime) Add(t DeviceTime) { d.Core, d.Mem = d.Core+t.Core, d.Mem+t.Mem }

// Sub takes t away.
func (d *DeviceTime) Sub(t DeviceTime) { d.Core, d.Mem = d.Core-t.Core, d.Mem-t.Mem }

// UsageKind is under which terms a namespace had a slice.
type UsageKind string

// UsageGuaranteed is of slices that the ledger grants, or holds for a gang.
const UsageGuaranteed UsageKind = "guaranteed"

// NamespaceUsage is the time that one namespace had of a model.
type NamespaceUsage struct {
	// Namespace, or * for further namespaces.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Kind is guaranteed, the one there is.
	// +kubebuilder:validation:Enum=guaranteed
	Kind       UsageKind `json:"kind"`
	DeviceTime `json:",inline"`
	// UsedMilliseconds is the device time that was measured in slices with a compute quota and
	// in whole GPUs. It is what containers' counters say, and counts in the hour in which
	// the agent reads it. Absent where nothing was measured, as in slices of MIG and MPS.
	// +kubebuilder:validation:Minimum=0
	// +optional
	UsedMilliseconds *int64 `json:"usedMilliseconds,omitempty"`
}

// Bounds of the use of containers in an account.
const (
	// MaxUsageContainers bounds the entries of a node, MaxUsageContainerBytes all of their documents
	// together. Of more, the ones go first that ended or were seen first.
	MaxUsageContainers     = 256
	MaxUsageContainerBytes = 320 << 10
)

// ContainerUse is what the node has seen of one container of a workload, in all of the workload's pods
// on GPUs of one model. It is what the containers' own counters say. SliceAdvice has the sum over
// nodes.
type ContainerUse struct {
	// Namespace of the workload.
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// Workload is KIND/NAME of the controller that made the pods, such as Deployment/web, or of the
	// pod itself.
	// +kubebuilder:validation:MaxLength=317
	Workload string `json:"workload"`
	// Container is the container's name.
	// +kubebuilder:validation:MaxLength=63
	Container string `json:"container"`
	// Model of the GPUs, as in the ledger.
	// +kubebuilder:validation:MaxLength=128
	Model string `json:"model"`
	// GPUMem is the memory of such a GPU.
	// +optional
	GPUMem MiB `json:"gpuMem,omitempty"`
	// Slices is how many run now. A container has one on each of its GPUs.
	// +kubebuilder:validation:Minimum=0
	// +optional
	Slices int32 `json:"slices,omitempty"`
	// Ended is from when on nothing is added, an hour after the last of the containers had ended. The
	// entry goes 24 hours later. Containers that run then have another entry.
	// +optional
	Ended *metav1.Time `json:"ended,omitempty"`
	// Use is a document of Vernier's: histograms, peaks and counts.
	// +kubebuilder:validation:MaxLength=4096
	Use string `json:"use"`
}
