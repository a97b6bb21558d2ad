// SPDX-License-Identifier: Apache-2.0

package placement

import "vernier.dev/vernier/api/v1alpha1"

// Amount is a part of a device: what slices hold of it, or what is free.
type Amount struct {
	Core v1alpha1.Percent
	Mem  v1alpha1.MiB
	// Slots is how many slices it is, or may become.
	Slots int
}

// Amount is what the grant adds to what is granted of its device.
func (g *Grant) Amount() Amount { return Amount{g.Core - g.ReuseCore, g.Mem - g.ReuseMem, 1} }

// asks is the compute that the grant's container asks for.
func (g *Grant) asks() v1alpha1.Percent {
	if g.Asked != nil {
		return g.Asked.Core
	}
	return g.Core
}

// AmountOf is what a slice adds to what is granted of its device.
func AmountOf(s *v1alpha1.Slice) Amount { return Amount{s.Core - s.ReuseCore, s.Mem - s.ReuseMem, 1} }

// Plus is both together.
func (a Amount) Plus(b Amount) Amount {
	return Amount{a.Core + b.Core, a.Mem + b.Mem, a.Slots + b.Slots}
}

// Minus is what b leaves of a; a side of it is negative where b has more.
func (a Amount) Minus(b Amount) Amount {
	return Amount{a.Core - b.Core, a.Mem - b.Mem, a.Slots - b.Slots}
}

// Most is the greater on each side.
func (a Amount) Most(b Amount) Amount {
	return Amount{max(a.Core, b.Core), max(a.Mem, b.Mem), max(a.Slots, b.Slots)}
}

// Least is the smaller on each side.
func (a Amount) Least(b Amount) Amount {
	return Amount{min(a.Core, b.Core), min(a.Mem, b.Mem), min(a.Slots, b.Slots)}
}

// Fits reports whether there is no more of a than of the room on any side.
func (a Amount) Fits(room Amount) bool {
	return a.Core <= room.Core && a.Mem <= room.Mem && a.Slots <= room.Slots
}

// Free is what is free of the device.
func (d *Device) Free() Amount { return Amount{d.FreeCore, d.FreeMem, d.Slots} }

// SetFree makes that what is free of the device.
func (d *Device) SetFree(a Amount) { d.FreeCore, d.FreeMem, d.Slots = a.Core, a.Mem, a.Slots }
