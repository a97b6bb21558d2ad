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
// list, unhealthy, for as long as NVML counts it.
func (inv *Inventory) Scan() (device.Snapshot, error) {
	units, err := inv.enumerate()
	if err != nil {
		return device.Snapshot{}, err
	}
	s := device.Snapshot{Driver: inv.driver}
	for _, u := range units {
		d := u.fixed
		d.MIG = inv.mig(u)
		d.Reason = inv.illness(u)
		d.Healthy = d.Reason == ""
		if d.MIG == v1alpha1.MIGEnabled {
			inv.layout(&d)
		}
		s.Devices = append(s.Devices, d)
	}
	return s, nil
}

// enumerate returns the devices by index, with the handles of the scan before
// where they are known: NVML keeps the order and the handles of a process.
func (inv *Inventory) enumerate() ([]*unit, error) {
	n, r := inv.lib.DeviceGetCount()
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("counting the devices: %w", r)
	}
	if n > v1alpha1.MaxDevices {
		return nil, fmt.Errorf("the node has %d devices; %d are supported", n, v1alpha1.MaxDevices)
	}
	inv.mu.Lock()
	known := inv.units
	inv.mu.Unlock()
	if len(known) == n {
		return known, nil
	}
	units := make([]*unit, 0, n)
	for i := range n {
		u, err := inv.identify(i)
		if err != nil {
			return nil, err
		}
		units = append(units, u)
	}
	inv.mu.Lock()
	inv.units = units
	inv.mu.Unlock()
	return units, nil
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
	d.Mem, r = inv.usable(handle)
	if r != nvml.SUCCESS {
		return nil, fmt.Errorf("device %s: reading its memory: %w", d.UUID, r)
	}
	if pci, r := handle.GetPciInfo(); r == nvml.SUCCESS {
		d.PCI = text(pci.BusId[:])
	}
	d.NUMA = inv.numa(handle)
	u.watched = inv.watch(handle)
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
