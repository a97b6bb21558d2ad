// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
)

// States of a slice.
const (
	// StateGranted: the device's share is taken, no container has it yet.
	StateGranted = "granted"
	// StateAttached: a container has it, under the guarantees shown.
	StateAttached = "attached"
	// StateReleasing: the containers are gone; the allocator takes it back.
	StateReleasing = "releasing"
	// StateDrifted: a container has it with other amounts than the ledger grants; the note
	// says which.
	StateDrifted = "drifted"
)

// Slice is one container's part of one GPU.
type Slice struct {
	Namespace string    `json:"namespace"`
	Pod       string    `json:"pod"`
	PodUID    types.UID `json:"podUID"`
	Container string    `json:"container"`
	Node      string    `json:"node"`
	// GPU is the device's index on its node; absent while it is missing.
	GPU  *int32 `json:"gpu,omitempty"`
	UUID string `json:"uuid"`
	// Core is percent of the device's compute; 0 is no quota.
	Core v1alpha1.Percent `json:"core"`
	Mem  v1alpha1.MiB     `json:"memMiB"`
	// Idle is percent of the device's idle compute that an idle slice was placed for; 0 of any other.
	Idle v1alpha1.Percent `json:"idle,omitempty"`
	// ReuseCore and ReuseMem are what other slices of the pod already count.
	ReuseCore v1alpha1.Percent `json:"reuseCore,omitempty"`
	ReuseMem  v1alpha1.MiB     `json:"reuseMemMiB,omitempty"`
	Mode      v1alpha1.Mode    `json:"mode"`
	// The guarantees in force; absent unless the slice is attached.
	MemoryGuarantee  v1alpha1.Guarantee `json:"memoryGuarantee,omitempty"`
	ComputeGuarantee v1alpha1.Guarantee `json:"computeGuarantee,omitempty"`
	// Note says why nothing stronger is in force, or what is.
	Note string `json:"note,omitempty"`
	// InForce is what a drifted slice's container runs with.
	InForce *v1alpha1.Amounts `json:"inForce,omitempty"`
	State   string            `json:"state"`
	// Since is when the ledger granted it; absent where that is not known.
	Since *metav1.Time `json:"since,omitempty"`
	// IdleSince is since when it has done no work; absent where it works or nothing is known.
	IdleSince *metav1.Time `json:"idleSince,omitempty"`
}

// Slices lists the slices of all ledgers that belong to a namespace, or to any
// if it is empty, by namespace, pod, container and device.
func Slices(ledgers []v1alpha1.SliceLedger, namespace string) []Slice {
	var all []Slice
	for i := range ledgers {
		for _, s := range SlicesOf(&ledgers[i]) {
			if namespace == "" || s.Namespace == namespace {
				all = append(all, s)
			}
		}
	}
	slices.SortStableFunc(all, func(a, b Slice) int {
		return cmp.Or(
			cmp.Compare(a.Namespace, b.Namespace),
			cmp.Compare(a.Pod, b.Pod),
			cmp.Compare(a.Container, b.Container),
			cmp.Compare(a.Node, b.Node),
			cmp.Compare(indexOrder(a.GPU), indexOrder(b.GPU)),
			cmp.Compare(a.UUID, b.UUID),
		)
	})
	return all
}

// SlicesOf lists the slices of one ledger, device by device as the ledger does.
func SlicesOf(l *v1alpha1.SliceLedger) []Slice {
	type key struct {
		pod       types.UID
		ctr, uuid string
	}
	attached := make(map[key]v1alpha1.SliceStatus, len(l.Status.Slices))
	for _, s := range l.Status.Slices {
		attached[key{s.Pod, s.Ctr, s.UUID}] = s
	}
	index := make(map[string]*int32, len(l.Status.Devices))
	for _, d := range l.Status.Devices {
		index[d.UUID] = &d.Index
	}
	released := releasedOf(l)

	var all []Slice
	for _, d := range l.Spec.Devices {
		for _, s := range d.Slices {
			namespace, pod, _ := strings.Cut(s.Owner, "/")
			v := Slice{
				Namespace: namespace, Pod: pod, PodUID: s.Pod, Container: s.Ctr,
				Node: l.Name, GPU: index[d.UUID], UUID: d.UUID,
				Core: s.Core, Mem: s.Mem, Idle: s.Idle, ReuseCore: s.ReuseCore, ReuseMem: s.ReuseMem,
				Mode: s.EffectiveMode(), State: StateGranted, Since: s.Since,
			}
			st, ok := attached[key{s.Pod, s.Ctr, d.UUID}]
			switch {
			case released[s.Pod] || s.Leaving:
				v.State = StateReleasing
			case ok:
				v.State, v.Mode, v.Note, v.IdleSince = StateAttached, st.Mode, st.Note, st.IdleSince
				v.MemoryGuarantee, v.ComputeGuarantee = st.Memory, st.Compute
				switch has := st.InForce; {
				case s.Resize != nil:
					v.Note = "it is being resized to " + v1alpha1.AmountsText(s.Resize.Core, s.Resize.Mem)
				case s.Drifted(&st):
					v.State, v.InForce = StateDrifted, has
					v.Note = "it runs with " + v1alpha1.AmountsText(has.Core, has.Mem) + ": the ledger was edited"
				}
			}
			if s.Idle > 0 && v.Note == "" {
				v.Note = fmt.Sprintf("an idle slice, placed for %d %% compute", s.Idle)
			}
			if s.Asked != nil && v.Note == "" {
				v.Note = "its container asks for " + v1alpha1.AmountsText(s.Asked.Core, s.Asked.Mem)
			}
			all = append(all, v)
		}
	}
	return all
}

// indexOrder puts missing devices last.
func indexOrder(index *int32) int64 {
	if index == nil {
		return 1 << 32
	}
	return int64(*index)
}
