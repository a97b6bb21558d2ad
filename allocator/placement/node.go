// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// Node is a node that grants may be made on.
type Node struct {
	Name string
	// Devices that may take slices, in NVML's order.
	Devices []Device
}

// Device is the one with that UUID; nil without one, and on no node.
func (n *Node) Device(uuid string) *Device {
	if n == nil {
		return nil
	}
	for i := range n.Devices {
		if n.Devices[i].UUID == uuid {
			return &n.Devices[i]
		}
	}
	return nil
}

// cut reports whether a device is in MIG mode.
func (n *Node) cut() bool {
	return slices.ContainsFunc(n.Devices, func(d Device) bool { return d.Cut != nil })
}

// Device is one GPU and the room on it.
type Device struct {
	UUID, Model string
	// Index in NVML's order, for people.
	Index int32
	// Mem is all of the device's memory, 1 MiB or more. A percentage is of this.
	Mem v1alpha1.MiB
	// FreeCore and FreeMem are what is not granted.
	FreeCore v1alpha1.Percent
	FreeMem  v1alpha1.MiB
	// ReservedCore and ReservedMem are not granted either, and not free: they are promised to others.
	ReservedCore v1alpha1.Percent
	ReservedMem  v1alpha1.MiB
	// FreeIdle and FreeIdleMem are what idle slices may still take. The memory is part of what is free.
	FreeIdle    v1alpha1.Percent
	FreeIdleMem v1alpha1.MiB
	// Lendable is the memory that idle slices may have beyond what is free. FreeMem is less than 0 by as much
	// of it as they have.
	Lendable v1alpha1.MiB
	// Idle is the percent of the device's compute that is expected to be used by nobody.
	Idle v1alpha1.Percent
	// OvercommitCore is how much of its compute may be promised to burstable containers; 0 is all of it. Expected is how
	// much of it is expected to be used, of slices that are too young to say all that they ask for.
	OvercommitCore, Expected v1alpha1.Percent
	// Slots is how many slices the ledger still takes for the device.
	Slots int
	// Near is of which sets of the node's devices it is.
	Near v1alpha1.Near
	// Cut is set for a device in MIG mode.
	Cut *Cut
	// MPS: it takes slices in mode mps. MPSOnly: it has such, and takes no others.
	MPS, MPSOnly bool
}

// load is a container's part on one device; false when it can never be a slice
// of that device.
func (c *Container) load(d *Device) (Amount, bool) {
	mem, err := c.Share.Memory(d.Mem)
	// A slice of no memory could not even hold a context.
	if err != nil || mem < 1 || mem > d.Mem {
		return Amount{}, false
	}
	if c.Share.Idle > d.FreeIdle || c.Share.Idle > 0 && mem > d.FreeIdleMem {
		return Amount{}, false
	}
	return Amount{Core: c.core(d), Mem: mem}, true
}

// core is the quota that the container would have on a device. Of one that may be over-committed it is
// a part, if the container's use and what is expected of others come to no more than the device.
func (c *Container) core(d *Device) v1alpha1.Percent {
	asks := c.Share.Core
	if !c.Burstable || c.Asked.GPUs > 0 || asks == 0 || d.OvercommitCore <= v1alpha1.WholeGPU || d.Expected+asks > v1alpha1.WholeGPU {
		return asks
	}
	return max(1, asks*v1alpha1.WholeGPU/d.OvercommitCore)
}

// freeOf is what is free of the device for the demand.
func (d *Demand) freeOf(dev *Device) Amount {
	free := dev.Free()
	if d.Idle() {
		free.Mem += dev.Lendable
	}
	return free
}

// more is what the container asks for of a device, nil where that is what it is to have.
func (c *Container) more(d *Device, has Amount) *v1alpha1.Amounts {
	asks := c.Asked
	if asks.GPUs == 0 && has.Core < c.Share.Core {
		asks = c.Share
	}
	mem, err := asks.Memory(d.Mem)
	asked := v1alpha1.Amounts{Core: asks.Core, Mem: mem}
	if asks.GPUs == 0 || err != nil || asked == (v1alpha1.Amounts{Core: has.Core, Mem: has.Mem}) {
		return nil
	}
	return &asked
}

// on is the mode in which a slice of the container would be on the device; false
// when there is none. A program sees one instance of MIG and one MPS server, so a
// share over several devices is none of theirs.
func (c *Container) on(d *Device) (v1alpha1.Mode, bool) {
	switch {
	case d.Cut != nil:
		return v1alpha1.ModeMIG, c.mayCut() && c.Share.GPUs == 1
	case c.Mode == v1alpha1.ModeMPS:
		return c.Mode, d.MPS && c.Share.GPUs == 1
	case d.MPSOnly:
		return "", false
	case c.Mode == v1alpha1.ModeAuto:
		return v1alpha1.ModeLimiter, true
	}
	return c.Mode, c.Mode != v1alpha1.ModeMIG
}

// mayCut reports whether the container may be on an instance of MIG.
func (c *Container) mayCut() bool { return c.Mode == v1alpha1.ModeMIG || c.Mode == v1alpha1.ModeAuto }

// wholeDevice is the scale of leftover: each side of an empty device counts this.
const wholeDevice = 100_000

// leftover is what is left of a device under l, from 0 (full) to 2 × wholeDevice.
func (d *Device) leftover(l Amount) int64 {
	core := int64(d.FreeCore-l.Core) * (wholeDevice / int64(v1alpha1.WholeGPU))
	return core + int64(d.FreeMem-l.Mem)*wholeDevice/int64(max(d.Mem, 1))
}

// take is the device with one more slice in that mode on it: what else it takes.
func (d *Device) take(mode v1alpha1.Mode, place v1alpha1.MIGPlace) {
	switch {
	case d.Cut != nil:
		d.Cut = d.Cut.with(place)
	case mode == v1alpha1.ModeMPS && !d.MPSOnly:
		d.MPSOnly = true
		d.Slots -= v1alpha1.MaxSlicesPerDevice - v1alpha1.MaxMPSSlices
	case mode != v1alpha1.ModeMPS:
		d.MPS = false
	}
}

// takeIdle takes an idle slice off what such may take; 0 of the compute is none.
func (d *Device) takeIdle(core v1alpha1.Percent, mem v1alpha1.MiB) {
	if core > 0 {
		d.FreeIdle, d.FreeIdleMem, d.Idle = d.FreeIdle-core, d.FreeIdleMem-mem, d.Idle-core
	}
}

// TakeIdle is takeIdle of a slice of the ledger.
func (d *Device) TakeIdle(s *v1alpha1.Slice) { d.takeIdle(s.Idle, s.Mem) }
