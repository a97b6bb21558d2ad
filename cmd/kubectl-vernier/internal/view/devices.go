// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// Health of a device.
const (
	HealthOK = "ok"
	// HealthBad: the device had a critical error; Reason says which.
	HealthBad = "unhealthy"
	// HealthMissing: the ledger has grants on it, the node does not see it.
	HealthMissing = "missing"
)

// Device is one GPU and what is granted of it.
type Device struct {
	Node string `json:"node"`
	// Index in NVML's order; absent while the device is missing.
	Index  *int32            `json:"index,omitempty"`
	UUID   string            `json:"uuid"`
	Model  string            `json:"model,omitempty"`
	Core   Core              `json:"core"`
	Mem    Memory            `json:"memMiB"`
	Slices int               `json:"slices"`
	MIG    v1alpha1.MIGState `json:"mig,omitempty"`
	PCI    string            `json:"pci,omitempty"`
	NUMA   *int32            `json:"numa,omitempty"`
	Health string            `json:"health"`
	Reason string            `json:"reason,omitempty"`
}

// Devices lists the GPUs of all ledgers, by node and index; those that a node no
// longer sees but still has grants on come last of their node.
func Devices(ledgers []v1alpha1.SliceLedger) []Device {
	var all []Device
	for i := range ledgers {
		all = append(all, devicesOf(&ledgers[i])...)
	}
	slices.SortStableFunc(all, func(a, b Device) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

func devicesOf(l *v1alpha1.SliceLedger) []Device {
	granted := make(map[string]*v1alpha1.DeviceLedger, len(l.Spec.Devices))
	for i := range l.Spec.Devices {
		granted[l.Spec.Devices[i].UUID] = &l.Spec.Devices[i]
	}
	var devices []Device
	for _, s := range l.Status.Devices {
		d := Device{
			Node: l.Name, Index: &s.Index, UUID: s.UUID, Model: s.Model,
			Core: Core{Total: v1alpha1.WholeGPU}, Mem: Memory{Total: s.Mem},
			MIG: s.MIG, PCI: s.PCI, NUMA: s.NUMA, Health: HealthOK, Reason: s.Reason,
		}
		if !s.Healthy {
			d.Health = HealthBad
		}
		if g := granted[s.UUID]; g != nil {
			d.count(g)
			delete(granted, s.UUID)
		}
		devices = append(devices, d)
	}
	slices.SortStableFunc(devices, func(a, b Device) int { return cmp.Compare(*a.Index, *b.Index) })
	for _, g := range l.Spec.Devices {
		if granted[g.UUID] == nil || len(g.Slices) == 0 {
			continue
		}
		d := Device{Node: l.Name, UUID: g.UUID, Health: HealthMissing, Reason: "the node does not see this device"}
		d.count(&g)
		devices = append(devices, d)
	}
	return devices
}

// count adds up the grants as the CRD's rules do: what a slice reuses of its own
// pod's other slices counts once.
func (d *Device) count(g *v1alpha1.DeviceLedger) {
	d.Core.Total, d.Mem.Total, d.Slices = g.Core, g.Mem, len(g.Slices)
	for _, s := range g.Slices {
		d.Core.Granted += s.Core - s.ReuseCore
		d.Mem.Granted += s.Mem - s.ReuseMem
	}
}
