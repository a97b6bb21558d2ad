// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SliceLedgerStatus is what the node sees and did.
type SliceLedgerStatus struct {
	// ObservedGeneration is the spec that the node agent last acted on.
	// +optional
	ObservedGeneration int64 `json:"observedGeneration,omitempty"`
	// Driver of the node.
	// +optional
	Driver DriverStatus `json:"driver,omitempty"`
	// Summary for tables.
	// +optional
	Summary SummaryStatus `json:"summary,omitempty"`
	// Devices in NVML's order.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Devices []DeviceStatus `json:"devices,omitempty"`
	// Topology is which of the devices are near each other.
	// +optional
	Topology *TopologyStatus `json:"topology,omitempty"`
	// Slices that are attached to a container, with the guarantee in force.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8192
	// +optional
	Slices []SliceStatus `json:"slices,omitempty"`
	// Released are UIDs of pods whose containers are gone from this node and
	// will never be started by it again. The allocator may take their slices
	// back. An entry goes once no slice of the pod is in the spec.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8192
	// +optional
	Released []types.UID `json:"released,omitempty"`
	// Misaligned are pods that require one NUMA node (vernier.dev/topology: numa:required)
	// and have CPUs from the kubelet of another than their devices are of. The node agent
	// starts none of their containers until the allocator has moved their slices there. An
	// entry goes then, or with the pod.
	// +listType=map
	// +listMapKey=pod
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Misaligned []MisalignedPod `json:"misaligned,omitempty"`
	// Conditions: Ready and Drifted, which the node agent writes, and AgentReachable, which
	// the allocator writes. Nothing is granted unless Ready is True and AgentReachable not False.
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionReady is true while the node agent sees its devices and is connected
// to containerd. While it is not, no slice is granted on the node.
const ConditionReady = "Ready"

// ConditionAgentReachable is false while the node agent's pod is not ready, or is not there:
// what the agent wrote last may no longer be so. The allocator that leads writes it, as the
// node controller does for nodes. Nothing is granted on the node while it is false.
const ConditionAgentReachable = "AgentReachable"

// ConditionDrifted is true while containers run with other amounts than the spec grants them,
// because somebody has edited it. The node agent writes it when it first comes to that.
const ConditionDrifted = "Drifted"

// Readiness is the condition that says whether slices are granted on the node. It is
// Ready, or AgentReachable where that is false alone; nil when nothing was said. Where both
// are false it is Ready with the messages of both. The agent's pod is not ready either while
// the agent says that its driver fails.
func (s *SliceLedgerStatus) Readiness() *metav1.Condition {
	ready := meta.FindStatusCondition(s.Conditions, ConditionReady)
	reachable := meta.FindStatusCondition(s.Conditions, ConditionAgentReachable)
	switch {
	case reachable == nil || reachable.Status != metav1.ConditionFalse:
		return ready
	case ready == nil || ready.Status == metav1.ConditionTrue:
		return reachable
	}
	both := *ready
	both.Message = cmp.Or(ready.Message, ready.Reason) + "; " + reachable.Message
	return &both
}

// TakesSlices reports if slices may be granted on the node.
func (s *SliceLedgerStatus) TakesSlices() bool {
	c := s.Readiness()
	return c != nil && c.Type == ConditionReady && c.Status == metav1.ConditionTrue
}

// DriverStatus says what the node's driver is and can do.
type DriverStatus struct {
	// Version of the kernel driver, such as 570.86.15.
	// +optional
	Version string `json:"version,omitempty"`
	// NVML is the library's version.
	// +optional
	NVML string `json:"nvml,omitempty"`
	// CUDA is the highest CUDA version that the driver serves, such as 13.4.
	// +optional
	CUDA string `json:"cuda,omitempty"`
	// MemoryLimits is true when the driver can hold a container to a memory
	// limit by its cgroup.
	// +optional
	MemoryLimits bool `json:"memoryLimits,omitempty"`
	// MemoryLimitsReason says why not.
	// +optional
	MemoryLimitsReason string `json:"memoryLimitsReason,omitempty"`
	// MPS is true when slices can be in mode mps on the node's devices.
	// +optional
	MPS bool `json:"mps,omitempty"`
	// MPSReason says why not.
	// +optional
	MPSReason string `json:"mpsReason,omitempty"`
	// GDR is how RDMA devices reach the memory of the GPUs (GPUDirect RDMA): dmabuf (the
	// kernel's own buffers), peermem (NVIDIA's kernel module), or none.
	// +kubebuilder:validation:Enum=dmabuf;peermem;none
	// +optional
	GDR GDRState `json:"gdr,omitempty"`
}

// GDRState is how RDMA devices reach the memory of a node's GPUs.
type GDRState string

// States of GPUDirect RDMA.
const (
	GDRDMABuf  GDRState = "dmabuf"
	GDRPeerMem GDRState = "peermem"
	GDRNone    GDRState = "none"
)

// SummaryStatus is what `kubectl get sliceledgers` shows.
type SummaryStatus struct {
	// Devices is the number of devices.
	// +optional
	Devices DeviceCount `json:"devices,omitempty"`
	// Models, without repetition, separated by commas.
	// +optional
	Models string `json:"models,omitempty"`
	// CoreGranted is the percent of compute that the spec of observedGeneration grants or
	// holds, added up over devices.
	// +optional
	CoreGranted *Percent `json:"coreGranted,omitempty"`
	// CoreFree is the compute left on the devices that are healthy and not cordoned.
	// +optional
	CoreFree *Percent `json:"coreFree,omitempty"`
	// MemGranted is the same of memory in MiB.
	// +optional
	MemGranted *MiB `json:"memGranted,omitempty"`
	// MemFree is the same of memory in MiB.
	// +optional
	MemFree *MiB `json:"memFree,omitempty"`
}

// DeviceStatus is one device as NVML shows it.
type DeviceStatus struct {
	// UUID as NVML gives it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UUID string `json:"uuid"`
	// Index in NVML's order. It may change with a restart of the driver.
	Index int32 `json:"index"`
	// Minor is N of /dev/nvidiaN.
	Minor int32 `json:"minor"`
	// Model is the device's name.
	Model string `json:"model"`
	// Mem is its memory that programs can have in MiB, rounded down: the total less
	// what driver and firmware reserve. 4 TiB at most.
	// +kubebuilder:validation:Maximum=4194304
	Mem MiB `json:"mem"`
	// PCI is its bus id.
	// +optional
	PCI string `json:"pci,omitempty"`
	// NUMA is its NUMA node; absent where it has none.
	// +optional
	NUMA *int32 `json:"numa,omitempty"`
	// NICs are the RDMA devices nearest to it that have a port which is up, by the kernel's
	// names such as mlx5_0. Nearest are those behind the same PCIe switch, else those of the same NUMA node.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	// +optional
	NICs []string `json:"nics,omitempty"`
	// MIG is unsupported, disabled or enabled.
	// +kubebuilder:validation:Enum=unsupported;disabled;enabled
	// +optional
	MIG MIGState `json:"mig,omitempty"`
	// Profiles are the kinds of instance that it can be cut into while MIG is on. Without
	// any, nothing is granted on such a device.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	Profiles []MIGProfile `json:"profiles,omitempty"`
	// Instances that it is cut into now.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=8
	// +optional
	Instances []MIGInstance `json:"instances,omitempty"`
	// ExpectedBusy is the percent of its compute that its slices are expected to use at most, from what
	// their containers have used so far. It is absent while that is not known of one of them.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=100
	// +optional
	ExpectedBusy *Percent `json:"expectedBusy,omitempty"`
	// Lendable is the memory in MiB that idle slices may have of what others were promised. Absent: none.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=4194304
	// +optional
	Lendable MiB `json:"lendable,omitempty"`
	// MPS: the node agent shares it by MPS; nothing beside MPS' clients can use it.
	// +optional
	MPS bool `json:"mps,omitempty"`
	// Healthy is false after a critical error; Reason says which.
	Healthy bool `json:"healthy"`
	// Reason why it is unhealthy, or why a healthy device takes no slices, in words.
	// +optional
	Reason string `json:"reason,omitempty"`
}

// MIGState is what a device can do with MIG, and whether it is on.
type MIGState string

// States of MIG.
const (
	MIGUnsupported MIGState = "unsupported"
	MIGDisabled    MIGState = "disabled"
	MIGEnabled     MIGState = "enabled"
)

// Guarantee says what holds one side of a share.
type Guarantee string

// Guarantees, strongest first.
const (
	// GuaranteeDevice: the container has the whole device.
	GuaranteeDevice Guarantee = "device"
	// GuaranteeHardware: the device itself is cut, and the container has its part.
	GuaranteeHardware Guarantee = "hardware"
	// GuaranteeDriver: the driver refuses more; nothing in the container can
	// change that.
	GuaranteeDriver Guarantee = "driver"
	// GuaranteeCooperative: libvgpu in the container's processes refuses more. A
	// program that goes out of its way can evade it.
	GuaranteeCooperative Guarantee = "cooperative"
	// GuaranteeNone: the side is not limited, as compute of a share without
	// gpu-core.
	GuaranteeNone Guarantee = "none"
)

// SliceStatus is a slice in use and the guarantee that is really in force.
type SliceStatus struct {
	// Pod is the UID of the pod.
	Pod types.UID `json:"pod"`
	// Ctr is the container's name.
	Ctr string `json:"ctr"`
	// UUID of the device.
	UUID string `json:"uuid"`
	// Container is the runtime's id of the container.
	Container string `json:"container"`
	// Mode in force.
	Mode Mode `json:"mode"`
	// MIG is the instance, in mode mig.
	// +optional
	MIG *MIGPlace `json:"mig,omitempty"`
	// Memory is the guarantee in force for memory: device, hardware, driver, cooperative or
	// none.
	Memory Guarantee `json:"memory"`
	// Compute is the guarantee in force for compute, in the same words.
	Compute Guarantee `json:"compute"`
	// Note says why nothing stronger is in force.
	// +optional
	Note string `json:"note,omitempty"`
	// Aligned reports whether the CPUs that the container is held to
	// are all of the device's NUMA node. The kubelet (CPU manager policy static) or the node agent holds it. Absent
	// where it is held to none, or the device has no NUMA node.
	// +optional
	Aligned *bool `json:"aligned,omitempty"`
	// InForce are the amounts that the container runs with, where it asks for or is granted others.
	// It was resized, or the spec was edited.
	// +optional
	InForce *Amounts `json:"inForce,omitempty"`
	// Resized is the number of the last resize that the node agent has put in force or refused.
	// +optional
	Resized int64 `json:"resized,omitempty"`
	// Refused is why it was refused; absent where it is in force.
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Refused string `json:"refused,omitempty"`
	// IdleSince is since when the container has done no work on the device. Absent where it
	// works, has not been idle for some minutes yet, or where its work is not measured.
	// +optional
	IdleSince *metav1.Time `json:"idleSince,omitempty"`
	// StarvedSince is since when an idle slice has had launches that wait, and less than 1 % of the
	// device. Absent where it has more, or does not want any.
	// +optional
	StarvedSince *metav1.Time `json:"starvedSince,omitempty"`
}

// MaxMisaligned is how many pods status.misaligned has room for.
const MaxMisaligned = 256

// MisalignedPod is a pod whose GPUs have to follow its CPUs.
type MisalignedPod struct {
	// Pod is the UID of the pod.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Pod types.UID `json:"pod"`
	// NUMA is the NUMA node that its CPUs are of.
	// +kubebuilder:validation:Minimum=0
	NUMA int32 `json:"numa"`
}

// Amounts of one device.
type Amounts struct {
	// Core is percent of the device's compute; 0 is no quota.
	Core Percent `json:"core"`
	// Mem is memory in MiB.
	Mem MiB `json:"mem"`
}
