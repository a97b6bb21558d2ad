// SPDX-License-Identifier: Apache-2.0

// Package lending owns the decision how much of others' memory idle slices may have, and which of these
// are ended for it. It follows from the ledger, the containers' counters, and what was lent before.
//
// It keeps nothing, lends nothing and ends nothing.
package lending

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/tide"
)

// leastMargin is what an owner keeps beyond its expected use at the least.
const leastMargin v1alpha1.MiB = 512

// Owner is a running container with memory of the device.
type Owner struct {
	// ID is the runtime's.
	ID string
	// Limit is what it was promised, Ready what of that is not lent.
	Limit, Ready v1alpha1.MiB
	// Used is charged to it. Wanted is what a charge of it waits for.
	Used, Wanted v1alpha1.MiB
	// Peak is the most that it is expected to use.
	Peak v1alpha1.MiB
	// Settled: it has run long enough for Peak to be known, and nothing was taken back of late. Without
	// it, no more is lent.
	Settled bool
}

// Margin is what the owner keeps beyond its expected use.
func (o *Owner) Margin() v1alpha1.MiB { return max(leastMargin, o.Limit/10) }

// Lent is how much of its memory is.
func (o *Owner) Lent() v1alpha1.MiB { return o.Limit - o.Ready }

// Takes reports whether the owner takes back what it has lent: it has used up half of its margin, or
// waits.
func (o *Owner) Takes() bool {
	return o.Lent() > 0 && (o.Wanted > o.Ready || o.Used > o.Ready-o.Margin()/2)
}

// lendable is how much of its memory may be lent.
func (o *Owner) lendable() v1alpha1.MiB {
	switch {
	case o.Takes():
		return 0
	case !o.Settled:
		return o.Lent()
	}
	return max(o.Lent(), o.Limit-max(o.Used, o.Wanted, o.Peak)-o.Margin())
}

// Device is a device with its owners, and the memory that the ledger grants of it.
type Device struct {
	Mem    v1alpha1.MiB
	Owners []Owner
	// Granted is all of it, Leaving the part that idle slices have which are being taken back.
	Granted, Leaving v1alpha1.MiB
	// Idle are the other idle slices.
	Idle []tide.Slice
	// Off: nothing is lent.
	Off bool
}

// Decision is what is to be.
type Decision struct {
	// Lendable is how much may be lent in all.
	Lendable v1alpha1.MiB
	// Lend is how much of each owner's memory is to be lent, by its ID. As long as idle slices still have
	// more, it can't be put in force.
	Lend map[string]v1alpha1.MiB
	// End are the pods whose idle slices are to be ended, the youngest first.
	End []types.UID
}

// Decide decides. Owners that have lent already are the first to lend.
func Decide(d Device) Decision {
	all := Decision{Lend: map[string]v1alpha1.MiB{}}
	owners := slices.Clone(d.Owners)
	slices.SortFunc(owners, func(a, b Owner) int {
		return cmp.Or(cmp.Compare(b.Lent(), a.Lent()), cmp.Compare(b.lendable(), a.lendable()), cmp.Compare(a.ID, b.ID))
	})
	need := d.Granted - d.Mem
	for i, left := 0, need; i < len(owners) && !d.Off; i++ {
		o := &owners[i]
		all.Lendable += max(0, o.lendable())
		lend := max(0, min(o.lendable(), left))
		all.Lend[o.ID], left = lend, left-lend
	}
	youngest := slices.Clone(d.Idle)
	slices.SortFunc(youngest, tide.Younger)
	for i, beyond := 0, need-d.Leaving-all.Lendable; i < len(youngest) && beyond > 0; i++ {
		all.End = append(all.End, youngest[i].Pod)
		beyond -= youngest[i].Mem
	}
	return all
}
