// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// SliceLedger is the ledger of one GPU node. Its spec is what has been granted on each device. The
// allocator writes it by compare-and-swap, but for the cordons,
// which people write. Its status is what the node sees and did, and the node
// agent writes it. It is named after the node.
//
// The rules below check sums for every writer of the spec. The API server refuses
// slices whose amounts, less the declared reuse, add up to more than their
// device. Whether a declared reuse is true is not checked there: that would cost the
// square of the slices. The node agent adds up what really runs. Nor can the writer of
// the spec make a device larger than the node says. It is entered with the size in the
// status, and keeps it, or a smaller one.
//
// +kubebuilder:validation:XValidation:rule="!has(self.spec) || !has(self.spec.devices) || [has(oldSelf.spec) && has(oldSelf.spec.devices) ? oldSelf.spec.devices.map(o, [dyn(o.uuid), dyn(o.mem), dyn(o.core)]) : []].all(was, self.spec.devices.map(d, [dyn(d.uuid), dyn(d.mem), dyn(d.core)]).all(d, was.exists(o, o[0] == d[0] && d[1] <= o[1] && d[2] <= o[2]) || has(self.status) && has(self.status.devices) && d[2] == 100 && self.status.devices.exists(s, s.uuid == d[0] && s.mem == d[1])))",message="a device that is new or larger must be as in status.devices: with its uuid, its mem, and 100 as core",fieldPath=".spec.devices"
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=sl,categories=vernier
// +kubebuilder:printcolumn:name="GPUs",type=integer,JSONPath=`.status.summary.devices`
// +kubebuilder:printcolumn:name="Models",type=string,JSONPath=`.status.summary.models`
// +kubebuilder:printcolumn:name="Granted(%)",type=integer,JSONPath=`.status.summary.coreGranted`
// +kubebuilder:printcolumn:name="Free(%)",type=integer,JSONPath=`.status.summary.coreFree`
// +kubebuilder:printcolumn:name="Granted(MiB)",type=integer,JSONPath=`.status.summary.memGranted`
// +kubebuilder:printcolumn:name="Free(MiB)",type=integer,JSONPath=`.status.summary.memFree`
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].status`
// +kubebuilder:printcolumn:name="Agent",type=string,JSONPath=`.status.conditions[?(@.type=="AgentReachable")].status`
// +kubebuilder:printcolumn:name="Driver",type=string,JSONPath=`.status.driver.version`
// +kubebuilder:printcolumn:name="CUDA",type=string,JSONPath=`.status.driver.cuda`,priority=1
// +kubebuilder:printcolumn:name="MPS",type=boolean,JSONPath=`.status.driver.mps`,priority=1
// +kubebuilder:printcolumn:name="GDR",type=string,JSONPath=`.status.driver.gdr`,priority=1
// +kubebuilder:printcolumn:name="Note",type=string,JSONPath=`.status.conditions[?(@.type=="Ready")].message`,priority=1
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type SliceLedger struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec is what has been granted.
	// +optional
	Spec SliceLedgerSpec `json:"spec,omitempty"`
	// Status is what the node sees and did.
	// +optional
	Status SliceLedgerStatus `json:"status,omitempty"`
}

// SliceLedgerList is a list of ledgers.
// +kubebuilder:object:root=true
type SliceLedgerList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []SliceLedger `json:"items"`
}

// SliceLedgerSpec is what has been granted on a node.
type SliceLedgerSpec struct {
	// Devices that have or had slices, one entry a device.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +kubebuilder:validation:XValidation:rule="[self.map(d, d.uuid)].all(names, names.all(n, names.exists_one(m, m == n)))",message="a device may be listed once only"
	// +optional
	Devices []DeviceLedger `json:"devices,omitempty"`
	// Holds are which of these slices are held for a gang's pods and not granted yet.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Holds []Hold `json:"holds,omitempty"`
	// Cordons are the devices on which nothing new is to be granted because somebody
	// said so. People write them (kubectl vernier cordon), and only they take one out:
	// no state of the device does.
	// +listType=map
	// +listMapKey=uuid
	// +kubebuilder:validation:MaxItems=64
	// +optional
	Cordons []Cordon `json:"cordons,omitempty"`
	// Tide is how much of each device idle slices may have, and until when. Absent: no Tide selects
	// the node, and they may have all.
	// +optional
	Tide *LedgerTide `json:"tide,omitempty"`
	// OvercommitCore is how much of each device's compute is promised to burstable containers at most,
	// in percent. Each slice has its part of 100 of that. Absent: 100.
	// +kubebuilder:validation:Minimum=101
	// +kubebuilder:validation:Maximum=1000
	// +optional
	OvercommitCore Percent `json:"overcommitCore,omitempty"`
}

// Cordon keeps new slices off a device. A slice granted there already stays, and may
// start. It is of one piece of hardware: a device that takes the place of a cordoned
// one has another UUID.
type Cordon struct {
	// UUID of the device. It need not be on the node now.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UUID string `json:"uuid"`
	// By is the name of the user, as the user gave it.
	// +kubebuilder:validation:MaxLength=253
	// +optional
	By string `json:"by,omitempty"`
	// Reason in words.
	// +kubebuilder:validation:MaxLength=256
	// +optional
	Reason string `json:"reason,omitempty"`
	// Since is when.
	Since metav1.Time `json:"since"`
}

// String says who has cordoned the device, and why.
func (c *Cordon) String() string {
	text := "cordoned"
	if c.By != "" {
		text += " by " + c.By
	}
	if c.Reason != "" {
		text += ": " + c.Reason
	}
	return text
}

// Cordon is the device's, nil without one.
func (s *SliceLedgerSpec) Cordon(uuid string) *Cordon {
	for i := range s.Cordons {
		if s.Cordons[i].UUID == uuid {
			return &s.Cordons[i]
		}
	}
	return nil
}

// Hold keeps slices of a gang's pods on this node while the gang's other pods get
// theirs. The slices stand among the devices' others and are counted like them, by
// the rules too, so that nobody else can be given their room. A held amount is not
// granted: after Until the slices are taken back, and with the entry gone they are
// the pods'.
type Hold struct {
	// Owner is the gang, as podgroups.GROUP/namespace/name with the group of the API
	// that it is of.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=400
	Owner string `json:"owner"`
	// Until is when the hold expires.
	Until metav1.Time `json:"until"`
	// Pods are the UIDs of the pods whose slices are held.
	// +listType=atomic
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=8192
	Pods []types.UID `json:"pods"`
}

// The rules below are most of what a write of a ledger costs the API server: each time that
// one reads a field, it makes the schema of all fields beside it anew. Hence what only few
// slices have is looked for once, a sum is made without reuse before it is made with it, and
// devices are compared by names that were read once. A slice in mode mig has a mode, by a
// rule of its own.

// DeviceLedger is what has been granted on one device.
//
// +kubebuilder:validation:XValidation:rule="!has(self.slices) || !self.slices.exists(s, has(s.mode)) || [0, 1, 2, 3, 4, 5, 6, 7].all(p, self.slices.filter(s, has(s.mig) && s.mig.start <= p && p < s.mig.start + s.mig.size).size() <= 1) && (self.slices.all(s, has(s.mig)) || !self.slices.exists(s, has(s.mig))) && (self.slices.all(s, has(s.mode) && s.mode == 'mps') || !self.slices.exists(s, has(s.mode) && s.mode == 'mps'))",messageExpression="!(self.slices.all(s, has(s.mig)) || !self.slices.exists(s, has(s.mig))) ? 'a device has slices in mode mig or in other modes, not both' : !(self.slices.all(s, has(s.mode) && s.mode == 'mps') || !self.slices.exists(s, has(s.mode) && s.mode == 'mps')) ? 'a device has slices in mode mps or in other modes, not both' : 'instances of slices in mode mig overlap'",message="slices in modes that cannot be beside each other",fieldPath=".slices"
// +kubebuilder:validation:XValidation:rule="!has(self.slices) || self.slices.map(s, s.core).sum() <= self.core || self.slices.map(s, s.core - (has(s.reuseCore) ? s.reuseCore : 0)).sum() <= self.core",message="slices add up to more compute than the device has",fieldPath=".slices"
// +kubebuilder:validation:XValidation:rule="!has(self.slices) || self.slices.map(s, s.mem).sum() <= self.mem || self.slices.map(s, s.mem - (has(s.reuseMem) ? s.reuseMem : 0)).sum() <= self.mem + (has(self.lent) ? self.lent : 0)",message="slices add up to more memory than the device has",fieldPath=".slices"
// +kubebuilder:validation:XValidation:rule="!has(self.slices) || !self.slices.exists(s, has(s.idle) || has(s.leaving)) || self.slices.all(s, has(s.idle) ? s.core == 0 && !has(s.mode) : !has(s.leaving)) && self.slices.map(s, has(s.idle) ? s.idle : 0).sum() <= self.core",message="idle slices add up to no more compute than the device has, have no core and are in mode limiter; only they are leaving",fieldPath=".slices"
// +kubebuilder:validation:XValidation:rule="!has(self.lent) || has(self.slices) && self.lent <= self.slices.map(s, has(s.idle) ? s.mem : 0).sum()",message="no more memory is lent than idle slices have",fieldPath=".lent"
type DeviceLedger struct {
	// UUID of the device, as NVML gives it.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	UUID string `json:"uuid"`
	// Core is the device's compute in percent.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	Core Percent `json:"core"`
	// Mem is the device's memory in MiB, 4 TiB at most.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=4194304
	Mem MiB `json:"mem"`
	// Lent is the memory in MiB that slices have beyond the device's: idle slices, of what others do not use.
	// +kubebuilder:validation:Minimum=1
	// +optional
	Lent MiB `json:"lent,omitempty"`
	// Slices granted on the device.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=256
	// +optional
	Slices []Slice `json:"slices,omitempty"`
}

// Slice is one container's part of one device. Entries are slim: object size
// bounds how many grants a second the API server takes.
//
// +kubebuilder:validation:XValidation:rule="!has(self.reuseCore) || self.reuseCore <= self.core",message="reuseCore is more than core"
// +kubebuilder:validation:XValidation:rule="!has(self.reuseMem) || self.reuseMem <= self.mem",message="reuseMem is more than mem"
// +kubebuilder:validation:XValidation:rule="has(self.mig) == (has(self.mode) && self.mode == 'mig')",message="a slice has a place in mig if and only if its mode is mig"
type Slice struct {
	// Pod is the UID of the pod.
	// +kubebuilder:validation:Type=string
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Pod types.UID `json:"pod"`
	// Owner is the pod's namespace/name, for people and for the look-up that
	// proves a pod gone.
	// +kubebuilder:validation:MinLength=3
	// +kubebuilder:validation:MaxLength=317
	Owner string `json:"owner"`
	// Ctr is the container's name.
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Ctr string `json:"ctr"`
	// Core is percent of the device's compute; 0 is no quota.
	// +kubebuilder:validation:Maximum=100
	Core Percent `json:"core"`
	// Mem is memory in MiB.
	// +kubebuilder:validation:Minimum=1
	Mem MiB `json:"mem"`
	// ReuseCore is the part of Core that other slices of the same pod on this
	// device already count. They never run at the same time: init
	// containers run before the containers.
	// +optional
	ReuseCore Percent `json:"reuseCore,omitempty"`
	// ReuseMem is the same for memory.
	// +optional
	ReuseMem MiB `json:"reuseMem,omitempty"`
	// Idle is percent of the device's idle compute, of an idle slice. Nothing of it is promised: Core
	// is 0, and the slice is taken back when its memory is granted to others.
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=100
	// +optional
	Idle Percent `json:"idle,omitempty"`
	// Leaving: the idle slice is being taken back. The node agent ends its container at once, starts
	// no other, and releases it.
	// +optional
	Leaving bool `json:"leaving,omitempty"`
	// Asked are the amounts that the container asks for, where its slice has less: it was
	// resized, or began with less.
	// +optional
	Asked *Amounts `json:"asked,omitempty"`
	// Resize are the amounts that the slice is being changed to. Until the node agent reports that it is in
	// force, Core and Mem are the larger of before and after.
	// +optional
	Resize *SliceResize `json:"resize,omitempty"`
	// Mode in which the slice is to be enforced. Empty is limiter.
	// +kubebuilder:validation:Enum=limiter;exclusive;mig;mps
	// +optional
	Mode Mode `json:"mode,omitempty"`
	// MIG is the instance that the slice has to itself, in mode mig only.
	// +optional
	MIG *MIGPlace `json:"mig,omitempty"`
	// Since is when the slice was granted on this device, or held there for a gang. It is
	// absent where nobody knows: in slices that were lost and put back, or are older than
	// the field.
	// +optional
	Since *metav1.Time `json:"since,omitempty"`
}

// SliceResize is a change of a slice's amounts that is under way.
type SliceResize struct {
	Amounts `json:",inline"`
	// From are the amounts that the slice had before.
	From Amounts `json:"from"`
	// Number is greater than that of every earlier resize in the ledger.
	// +kubebuilder:validation:Minimum=1
	Number int64 `json:"number"`
}

// Of is what the container asks for of the device.
func (s *Slice) Of() Amounts {
	if s.Asked != nil {
		return *s.Asked
	}
	return Amounts{Core: s.Core, Mem: s.Mem}
}

// Drifted reports whether a container has other amounts than the slice, which is not being
// resized: somebody has edited the spec.
func (s *Slice) Drifted(status *SliceStatus) bool {
	return s.Resize == nil && status.InForce != nil && *status.InForce != Amounts{Core: s.Core, Mem: s.Mem}
}

// EffectiveMode is the slice's mode, with the default applied.
func (s *Slice) EffectiveMode() Mode { return cmp.Or(s.Mode, ModeLimiter) }
