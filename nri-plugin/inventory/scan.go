// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"math/bits"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
)

// Scan looks at every device. A device that has fallen off the bus stays in the
// list, unhealthy, for as long as NVML counts it. One that did so before it could
// say who it is has no name to be listed under: the others are listed without it.
func (inv *Inventory) Scan() (device.Snapshot, error) {
	if err := inv.replaced(); err != nil {
		return device.Snapshot{}, err
	}
	units, unseen, err := inv.enumerate()
	if err != nil {
		return device.Snapshot{}, err
	}
	s := device.Snapshot{Driver: inv.driver, Unseen: unseen}
	for _, u := range units {
		if err := swapped(u); err != nil {
			return device.Snapshot{}, err
		}
		d := u.fixed
		d.MIG = inv.mig(u)
		d.Reason = inv.illness(u)
		d.Healthy = d.Reason == ""
		if d.MIG == v1alpha1.MIGEnabled {
			inv.layout(&d)
		}
		s.Devices = append(s.Devices, d)
	}
	s.Topology = inv.topology(units, s.Devices)
	return s, nil
}

// enumerate returns the devices by index, with the handles of the scan before
// where they are known: NVML keeps the order and the handles of a process.
func (inv *Inventory) enumerate() (units []*unit, unseen []string, err error) {
	n, r := inv.lib.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, nil, fmt.Errorf("counting the devices: %w", r)
	}
	if n > v1alpha1.MaxDevices {
		return nil, nil, fmt.Errorf("the node has %d devices; %d are supported", n, v1alpha1.MaxDevices)
	}
	known := map[int]*unit{}
	inv.mu.Lock()
	if inv.count == n {
		for _, u := range inv.units {
			known[int(u.fixed.Index)] = u
		}
	}
	inv.mu.Unlock()
	for i := range n {
		u := known[i]
		if u == nil {
			if u, err = inv.identify(i); err != nil {
				unseen = append(unseen, err.Error())
				continue
			}
		}
		units = append(units, u)
	}
	if len(units) == 0 && err != nil {
		return nil, nil, err
	}
	inv.mu.Lock()
	inv.count, inv.units = n, units
	inv.mu.Unlock()
	return units, unseen, nil
}

// identify reads what never changes of the device at an index, and subscribes to
// its events.
func (inv *Inventory) identify(index int) (*unit, error) {
	handle, r := inv.lib.DeviceGetHandleByIndex(index)
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("device %d: %w", index, r)
	}
	u := &unit{handle: handle, fixed: v1alpha1.DeviceStatus{Index: int32(index)}}
	d := &u.fixed
	if d.UUID, r = handle.GetUUID(); r != nvml.SUCCESS {
		return nil, fmt.Errorf("device %d: reading its UUID: %w", index, r)
	}
	if d.Model, r = handle.GetName(); r != nvml.SUCCESS {
		return nil, fmt.Errorf("device %s: reading its name: %w", d.UUID, r)
	}
	minor, r := handle.GetMinorNumber()
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("device %s: reading its minor number: %w", d.UUID, r)
	}
	d.Minor = int32(minor)
	memory, _, r := inv.memory(handle)
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("device %s: reading its memory: %w", d.UUID, r)
	}
	d.Mem = v1alpha1.MiBFromBytes(memory)
	if pci, r := handle.GetPciInfo(); r == nvml.SUCCESS {
		d.PCI = text(pci.BusId[:])
	}
	d.NUMA = inv.numa(handle)
	inv.watch(handle)
	return u, nil
}

// numaNodes bounds the nodes that are asked about.
const numaNodes = 64

// numa is the one NUMA node that the device is near to, nil where there are
// several or the driver does not know.
func (inv *Inventory) numa(handle nvml.Device) *int32 {
	if !inv.symbols[symbolAffinity] {
		return nil
	}
	set, r := handle.GetMemoryAffinity(numaNodes, nvml.AFFINITY_SCOPE_NODE)
	if r != nvml.SUCCESS {
		return nil
	}
	var node int32
	found := 0
	for word, mask := range set {
		if mask != 0 {
			node = int32(word*bits.UintSize + bits.TrailingZeros(mask))
		}
		found += bits.OnesCount(mask)
	}
	if found != 1 {
		return nil
	}
	return &node
}

func (inv *Inventory) mig(u *unit) v1alpha1.MIGState {
	if !inv.symbols[symbolMIG] {
		return v1alpha1.MIGUnsupported
	}
	current, _, r := u.handle.GetMigMode()
	switch {
	case r != nvml.SUCCESS:
		return v1alpha1.MIGUnsupported
	case current == nvml.DEVICE_MIG_ENABLE:
		return v1alpha1.MIGEnabled
	}
	return v1alpha1.MIGDisabled
}
