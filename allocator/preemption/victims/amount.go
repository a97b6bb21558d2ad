// SPDX-License-Identifier: Apache-2.0

package victims

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// amount is a part of a device.
type amount struct {
	core  v1alpha1.Percent
	mem   v1alpha1.MiB
	slots int
}

func roomOn(d *placement.Device) amount { return amount{d.FreeCore, d.FreeMem, d.Slots} }

func sliceOf(s *v1alpha1.Slice) amount { return amount{s.Core - s.ReuseCore, s.Mem - s.ReuseMem, 1} }

func (a amount) plus(b amount) amount {
	return amount{a.core + b.core, a.mem + b.mem, a.slots + b.slots}
}

func (a amount) minus(b amount) amount {
	return amount{a.core - b.core, a.mem - b.mem, a.slots - b.slots}
}

func (a amount) most(b amount) amount {
	return amount{max(a.core, b.core), max(a.mem, b.mem), max(a.slots, b.slots)}
}

func (a amount) least(b amount) amount {
	return amount{min(a.core, b.core), min(a.mem, b.mem), min(a.slots, b.slots)}
}

// times is how many of b make up a, rounded up, and 0 where a is nothing; false where no number
// does.
func (a amount) times(b amount) (int, bool) {
	core, can := times(a.core, b.core)
	mem, could := times(a.mem, b.mem)
	slots, might := times(a.slots, b.slots)
	return max(core, mem, slots), can && could && might
}

func times[T v1alpha1.Percent | v1alpha1.MiB | int](a, b T) (int, bool) {
	switch {
	case a <= 0:
		return 0, true
	case b <= 0:
		return 0, false
	}
	return int((a + b - 1) / b), true
}

// without is the ledger when those pods are gone. It shares what does not change.
func without(ledger *v1alpha1.SliceLedger, gone func(types.UID) bool) *v1alpha1.SliceLedger {
	left := *ledger
	left.Spec.Devices = slices.Clone(ledger.Spec.Devices)
	leaves := func(s v1alpha1.Slice) bool { return gone(s.Pod) }
	for i := range left.Spec.Devices {
		if d := &left.Spec.Devices[i]; slices.ContainsFunc(d.Slices, leaves) {
			d.Slices = slices.DeleteFunc(slices.Clone(d.Slices), leaves)
		}
	}
	// What a pod uses without a grant keeps a device closed.
	left.Status.Slices = slices.DeleteFunc(slices.Clone(ledger.Status.Slices), func(s v1alpha1.SliceStatus) bool { return gone(s.Pod) })
	return &left
}
