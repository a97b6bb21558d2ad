// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// MaxLedgerTides bounds the names in a ledger's tide. Further tides count, and are not named.
const MaxLedgerTides = 16

// LedgerTide is what the tides that select a node make together, in absolute times. With it the node
// keeps the end of a window without the API server. Its methods take nil as a node that no tide
// selects.
type LedgerTide struct {
	// Amounts that idle slices may have of each device until Until.
	TideAmounts `json:",inline"`
	// Since is when the amounts became less for the last time.
	Since metav1.Time `json:"since"`
	// Until is when they end. Where that is more than a day ahead, it is an earlier time, which the
	// allocator moves on. Absent: they stay.
	// +optional
	Until *metav1.Time `json:"until,omitempty"`
	// Outside are the amounts from Until on.
	Outside TideAmounts `json:"outside"`
	// BeforeSeconds is for how long before Until only pods are placed that end by then.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=14400
	BeforeSeconds int32 `json:"beforeSeconds"`
	// GraceSeconds is for how long slices beyond the amounts may still be there, without compute.
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=3600
	GraceSeconds int32 `json:"graceSeconds"`
	// Tides are the names of the tides, sorted.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MaxLength=63
	// +optional
	Tides []string `json:"tides,omitempty"`
}

// ended reports whether now is Until or later.
func (t *LedgerTide) ended(now time.Time) bool { return t.Until != nil && !now.Before(t.Until.Time) }

// Allows returns how much of each device all idle slices together may have, in percent.
func (t *LedgerTide) Allows(now time.Time) (core, mem Percent) {
	switch {
	case t == nil:
		return WholeGPU, WholeGPU
	case t.ended(now):
		return t.Outside.Core, t.Outside.Mem
	}
	return t.Core, t.Mem
}

// Shut reports whether no idle slice may be there.
func (t *LedgerTide) Shut(now time.Time) bool {
	core, mem := t.Allows(now)
	return core == 0 || mem == 0
}

// EndsAt is when what is allowed becomes less, zero where no such time is known.
func (t *LedgerTide) EndsAt() time.Time {
	if t == nil || t.Until == nil {
		return time.Time{}
	}
	return t.Until.Time
}

// AdmitsUntil reports whether a new idle slice may be placed whose pod ends by deadline, zero for
// never. It does not compare amounts: see Allows. Slices with which all stay within Outside need
// not end, and need not be asked for.
func (t *LedgerTide) AdmitsUntil(now, deadline time.Time) bool {
	end := t.EndsAt()
	return end.IsZero() || !now.Before(end) || end.Sub(now) > time.Duration(t.BeforeSeconds)*time.Second ||
		!deadline.IsZero() && !deadline.After(end)
}

// ChangedAt is when what Allows returns became less for the last time.
func (t *LedgerTide) ChangedAt(now time.Time) time.Time {
	switch {
	case t == nil:
		return time.Time{}
	case t.ended(now):
		return t.Until.Time
	}
	return t.Since.Time
}

// ReclaimBy is when slices beyond what is allowed now are ended.
func (t *LedgerTide) ReclaimBy(now time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.ChangedAt(now).Add(time.Duration(t.GraceSeconds) * time.Second)
}
