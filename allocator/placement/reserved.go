// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// Reserved is what of a device is promised: to whom grants say, after the slices that are
// leaving have left.
type Reserved struct {
	UUID string
	// Grants are promised. Leaving is booked still, by slices that end before the grants are made.
	Grants  []Grant
	Leaving Amount
}

// Hide is the node as others may use it. Of each device that is what is free, and no more than is
// left of it in the end. That is min(free, max(0, free + leaving - reserved)). Reserved places of a
// device in MIG mode are taken.
func (n *Node) Hide(reserved []Reserved) *Node {
	seen := &Node{Name: n.Name, Devices: slices.Clone(n.Devices)}
	for _, r := range reserved {
		d := seen.Device(r.UUID)
		if d == nil {
			continue
		}
		left, was := r.Leaving, d.Free()
		for _, g := range r.Grants {
			left = left.Minus(g.Amount())
			if d.Cut == nil || !slices.Contains(d.Cut.taken, g.MIG) { // by one that leaves
				d.take(g.Mode, g.MIG)
			}
		}
		d.SetFree(d.Free().Least(was.Plus(left).Most(Amount{})))
		d.Lendable = 0 // idle slices would have what leaves
		d.ReservedCore += was.Core - d.FreeCore
		d.ReservedMem += was.Mem - d.FreeMem
	}
	return seen
}

// Holds reports whether the grants of a plan can be made on the node as it is.
func (n *Node) Holds(plan *Plan) bool {
	left := &Node{Name: n.Name, Devices: slices.Clone(n.Devices)}
	for _, g := range plan.Grants {
		d := left.Device(g.UUID)
		if d == nil {
			return false
		}
		room := d.Free()
		if g.Idle > 0 {
			room.Mem += d.Lendable
		}
		if !g.Amount().Fits(room) {
			return false
		}
		switch {
		case (d.Cut != nil) != (g.Mode == v1alpha1.ModeMIG), d.Cut != nil && !d.Cut.free(g.MIG):
			return false
		case g.Mode == v1alpha1.ModeMPS && !d.MPS, g.Mode != v1alpha1.ModeMPS && d.MPSOnly:
			return false
		}
		left = left.Without(&Plan{Grants: []Grant{g}})
	}
	return true
}

// unreserved is the node as it would be without what is reserved on it; nil where nothing is.
// Places of a device in MIG mode stay taken.
func (n *Node) unreserved() *Node {
	if !slices.ContainsFunc(n.Devices, func(d Device) bool { return d.ReservedCore > 0 || d.ReservedMem > 0 }) {
		return nil
	}
	open := &Node{Name: n.Name, Devices: slices.Clone(n.Devices)}
	for i := range open.Devices {
		d := &open.Devices[i]
		d.SetFree(d.Free().Plus(Amount{Core: d.ReservedCore, Mem: d.ReservedMem}))
		d.ReservedCore, d.ReservedMem = 0, 0
	}
	return open
}
