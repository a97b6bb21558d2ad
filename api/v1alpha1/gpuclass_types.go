// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxGPUClasses bounds the classes that count, the oldest first: each node advertises every one.
const MaxGPUClasses = 64

// GPUClass is a name for a share of a GPU of some models. With a class gold, a container asks
// for 2 units of it by the limit vernier.dev/gpu-gold: 2. Administrators make classes.
//
// A unit and its models are for good: pods of the class have what these say.
// +kubebuilder:object:root=true
// +kubebuilder:resource:scope=Cluster,categories=vernier
// +kubebuilder:subresource:status
// +kubebuilder:validation:XValidation:rule="self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$') && !(self.metadata.name in ['core', 'mem', 'mem-mib'])",message="metadata.name must be a DNS label of at most 32 characters, and none of core, mem and mem-mib: vernier.dev/gpu-NAME is its resource"
// +kubebuilder:printcolumn:name="Models",type=string,JSONPath=`.spec.models`
// +kubebuilder:printcolumn:name="Unit(%)",type=integer,JSONPath=`.spec.unit.core`
// +kubebuilder:printcolumn:name="Unit(MiB)",type=integer,JSONPath=`.spec.unit.memMiB`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Topology",type=string,JSONPath=`.spec.topology`
// +kubebuilder:printcolumn:name="Available",type=string,JSONPath=`.status.conditions[?(@.type=="Available")].status`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type GPUClass struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what the class stands for.
	Spec GPUClassSpec `json:"spec"`
	// Status is what the allocator says of the class.
	// +optional
	Status GPUClassStatus `json:"status,omitempty"`
}

// GPUClassStatus is what the allocator says of a class.
type GPUClassStatus struct {
	// Conditions of the class: Available.
	// +listType=map
	// +listMapKey=type
	// +kubebuilder:validation:MaxItems=16
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`
}

// ConditionAvailable is false while no GPU of the cluster could serve one unit of a class, however
// empty it were. Its message says why.
const ConditionAvailable = "Available"

// GPUClassList is a list of classes.
// +kubebuilder:object:root=true
type GPUClassList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []GPUClass `json:"items"`
}

// GPUClassSpec is what a class stands for.
// +kubebuilder:validation:XValidation:rule="self.mode != 'exclusive' || self.unit.core == 100 && !has(self.unit.memMiB)",message="mode exclusive gives whole GPUs: set unit.core to 100 and leave unit.memMiB out, or use another mode",fieldPath=".mode"
type GPUClassSpec struct {
	// Models are those of the class, each as in the annotation vernier.dev/gpu-model: its words
	// appear one after the other in the device's model. They cannot change, and have no control
	// characters.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=128
	// +kubebuilder:validation:items:Pattern=`^[A-Za-z0-9][^,!\x00-\x1f\x7f-\x9f]*$`
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot change, pods have what it says: make another class"
	Models []string `json:"models"`
	// Unit is what one unit of the class is. It cannot change.
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="cannot change, pods have what it says: make another class"
	Unit GPUUnit `json:"unit"`
	// Mode is how its shares are held, as in the annotation vernier.dev/mode. A pod may choose
	// another only where this is auto.
	// +kubebuilder:validation:Enum=auto;limiter;mps;mig;exclusive
	// +kubebuilder:default=auto
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// Topology is how near to each other the GPUs of a pod of the class are, as in the
	// annotation vernier.dev/topology. A pod may ask for nearer ones.
	// +kubebuilder:validation:Pattern=`^(numa|pcie|nvlink|rdma)(:required)?$`
	// +optional
	Topology string `json:"topology,omitempty"`
}

// GPUUnit is one unit of a class.
type GPUUnit struct {
	// Core is percent of a GPU's compute.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Core Percent `json:"core"`
	// MemMiB is memory. Without it the percent of a GPU's memory is that of core.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4194304
	// +optional
	MemMiB MiB `json:"memMiB,omitempty"`
}

const classPrefix = string(ResourceGPUs) + "-"

// ClassResource is the resource of which a container asks for units of the class.
func ClassResource(class string) corev1.ResourceName {
	return corev1.ResourceName(classPrefix + class)
}

// ClassOf is the class of a resource, such as gold of vernier.dev/gpu-gold; empty for a
// resource that is none's.
func ClassOf(name corev1.ResourceName) string {
	class, found := strings.CutPrefix(string(name), classPrefix)
	if !found || slices.Contains(Resources, name) {
		return ""
	}
	return class
}

// Share is what n units are on each GPU: on one while that is at most all of it, and above on
// whole GPUs. The error of another number names the nearest that are possible.
func (u GPUUnit) Share(n int64) (Share, error) {
	onOne := int64(WholeGPU / u.Core)
	step, gpus := u.whole()
	last := MaxContainerDevices / gpus * step
	if step*int64(u.MemMiB)%gpus != 0 {
		last = 0
	}
	share := Share{GPUs: 1}
	switch {
	case n >= 1 && n <= onOne:
		share.Core, share.MemMiB = u.Core*Percent(n), u.MemMiB*MiB(n)
	case n > onOne && n <= last && n%step == 0:
		share.GPUs, share.Core = DeviceCount(n/step*gpus), WholeGPU
		share.MemMiB = u.MemMiB * MiB(n) / MiB(share.GPUs)
	default:
		return Share{}, u.impossible(n, onOne, step, last)
	}
	if share.MemMiB == 0 {
		share.MemPercent = share.Core
	}
	return share, nil
}

func (u GPUUnit) impossible(n, onOne, step, last int64) error {
	below := max(onOne, min(n/step*step, last))
	switch above := (min(n, last)/step + 1) * step; {
	case n < 1:
		return fmt.Errorf("%d: %w: ask for 1 or more", n, ErrRange)
	case above <= last:
		return fmt.Errorf("%d units of %d %% are more than one GPU and no whole number of GPUs: ask for %d or %d", n, u.Core, below, above)
	}
	return fmt.Errorf("%d units of %d %% are more than a container can have: ask for %d or less", n, u.Core, below)
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// On is how many units devices of these sizes have at most. Where a unit does not divide a GPU,
// whole GPUs have more units together than the sum of what each has. 40 % are 2 units on
// one GPU and 5 on two.
func (u GPUUnit) On(mems ...MiB) (n int64) {
	onOne := int64(WholeGPU / u.Core)
	step, gpus := u.whole()
	wholes := int64(0)
	for _, mem := range mems {
		of := onOne
		if u.MemMiB > 0 {
			of = min(of, int64(mem/u.MemMiB))
		}
		n += of
		if u.MemMiB*MiB(step) <= mem*MiB(gpus) {
			wholes++
		}
	}
	if gpus > MaxContainerDevices || step*int64(u.MemMiB)%gpus != 0 {
		return n
	}
	return n + wholes/gpus*(step-gpus*onOne)
}

// whole is the least number of units that are whole GPUs, and how many GPUs these are.
func (u GPUUnit) whole() (units, gpus int64) {
	common := gcd(int64(u.Core), int64(WholeGPU))
	return int64(WholeGPU) / common, int64(u.Core) / common
}
