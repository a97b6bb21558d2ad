// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// Health of a device.
const (
	HealthOK = "ok"
	// HealthBad: the device had a critical error; Reason says which.
	HealthBad = "unhealthy"
	// HealthMissing: the ledger has grants on it or a cordon, the node does not see it.
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
	// NICs are the RDMA devices near it.
	NICs   []string `json:"nics,omitempty"`
	Health string   `json:"health"`
	Reason string   `json:"reason,omitempty"`
	// Cordon is there while nothing new is granted because somebody said so.
	Cordon *Cordon `json:"cordon,omitempty"`
}

// Cordon says who keeps new slices off a device, why, and since when.
type Cordon struct {
	By     string      `json:"by,omitempty"`
	Reason string      `json:"reason,omitempty"`
	Since  metav1.Time `json:"since"`
}

func cordonOf(l *v1alpha1.SliceLedger, uuid string) *Cordon {
	c := l.Spec.Cordon(uuid)
	if c == nil {
		return nil
	}
	return &Cordon{By: c.By, Reason: c.Reason, Since: c.Since}
}

// State is the health, with the cordon as kubectl shows a node's.
func (d *Device) State() string {
	if d.Cordon != nil {
		return d.Health + ",cordoned"
	}
	return d.Health
}

// Why says what is behind the state.
func (d *Device) Why() string {
	if d.Cordon == nil {
		return d.Reason
	}
	text := (&v1alpha1.Cordon{By: d.Cordon.By, Reason: d.Cordon.Reason}).String()
	if d.Reason != "" {
		text = d.Reason + "; " + text
	}
	return text
}

// Devices lists the GPUs of all ledgers, by node and index. Those that a node no
// longer sees but still has grants on, or a cordon, come last of their node.
func Devices(ledgers []v1alpha1.SliceLedger) []Device {
	var all []Device
	for i := range ledgers {
		all = append(all, DevicesOf(&ledgers[i])...)
	}
	slices.SortStableFunc(all, func(a, b Device) int { return cmp.Compare(a.Node, b.Node) })
	return all
}

// DevicesOf lists the GPUs of one ledger, in the order of Devices.
func DevicesOf(l *v1alpha1.SliceLedger) []Device {
	granted := make(map[string]*v1alpha1.DeviceLedger, len(l.Spec.Devices))
	for i := range l.Spec.Devices {
		granted[l.Spec.Devices[i].UUID] = &l.Spec.Devices[i]
	}
	var devices []Device
	for _, s := range l.Status.Devices {
		d := Device{
			Node: l.Name, Index: &s.Index, UUID: s.UUID, Model: s.Model,
			Core: Core{Total: v1alpha1.WholeGPU}, Mem: Memory{Total: s.Mem},
			MIG: s.MIG, PCI: s.PCI, NUMA: s.NUMA, NICs: s.NICs, Health: HealthOK, Reason: s.Reason, Cordon: cordonOf(l, s.UUID),
		}
		if !s.Healthy {
			d.Health = HealthBad
		} else if d.Reason == "" {
			d.Reason = instancesIll(s.Instances)
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
		d := Device{Node: l.Name, UUID: g.UUID, Health: HealthMissing, Reason: missing, Cordon: cordonOf(l, g.UUID)}
		d.count(&g)
		devices = append(devices, d)
	}
	for _, c := range l.Spec.Cordons {
		if !slices.ContainsFunc(devices, func(d Device) bool { return d.UUID == c.UUID }) {
			devices = append(devices, Device{Node: l.Name, UUID: c.UUID, Health: HealthMissing, Reason: missing, Cordon: cordonOf(l, c.UUID)})
		}
	}
	return devices
}

// instancesIll says which instances of a device that is well are not.
func instancesIll(all []v1alpha1.MIGInstance) string {
	var ill []string
	for _, i := range all {
		if i.Reason != "" {
			ill = append(ill, fmt.Sprintf("MIG instance at %d: %s", i.Start, i.Reason))
		}
	}
	return strings.Join(ill, "; ")
}

const missing = "the node does not see this device"

// count adds up the grants as the CRD's rules do: what a slice reuses of its own
// pod's other slices counts once.
func (d *Device) count(g *v1alpha1.DeviceLedger) {
	d.Core.Total, d.Mem.Total, d.Slices = g.Core, g.Mem, len(g.Slices)
	for _, s := range g.Slices {
		d.Core.Granted += s.Core - s.ReuseCore
		d.Mem.Granted += s.Mem - s.ReuseMem
	}
}
