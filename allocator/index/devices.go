// SPDX-License-Identifier: Apache-2.0

package index

import (
	"iter"

	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// Room is the node as the placement engine sees it: the devices that may take
// slices now, and what is free on each. Nil while the node is not ready.
func Room(ledger *v1alpha1.SliceLedger) *placement.Node {
	if ledger.DeletionTimestamp != nil || !meta.IsStatusConditionTrue(ledger.Status.Conditions, v1alpha1.ConditionReady) {
		return nil
	}
	taken := map[string]bool{}
	for _, uuid := range Adrift(ledger) {
		taken[uuid] = true
	}
	return devices(ledger, func(seen *v1alpha1.DeviceStatus) bool {
		// With MIG on, a device runs nothing outside of an instance.
		return seen.Healthy && seen.MIG != v1alpha1.MIGEnabled && !taken[seen.UUID]
	})
}

// Unfiltered is the node with all devices, whatever their state: for writing down
// what is so already.
func Unfiltered(ledger *v1alpha1.SliceLedger) *placement.Node {
	return devices(ledger, func(*v1alpha1.DeviceStatus) bool { return true })
}

// Adrift yields the pods, each with a device, that have a container which uses the
// device although the ledger grants that container nothing on it: its slices were
// lost. How much it uses nobody knows any more. What another container of the pod
// has on the device is of no help to it.
func Adrift(ledger *v1alpha1.SliceLedger) iter.Seq2[types.UID, string] {
	type use struct {
		pod       types.UID
		ctr, uuid string
	}
	return func(yield func(types.UID, string) bool) {
		if len(ledger.Status.Slices) == 0 {
			return
		}
		known := map[use]bool{}
		for _, d := range ledger.Spec.Devices {
			for _, s := range d.Slices {
				known[use{s.Pod, s.Ctr, d.UUID}] = true
			}
		}
		for _, s := range ledger.Status.Slices {
			u := use{s.Pod, s.Ctr, s.UUID}
			if !known[u] && !yield(s.Pod, s.UUID) {
				return
			}
			known[u] = true
		}
	}
}

func devices(ledger *v1alpha1.SliceLedger, usable func(*v1alpha1.DeviceStatus) bool) *placement.Node {
	node := &placement.Node{Name: ledger.Name}
	for i := range ledger.Status.Devices {
		seen := &ledger.Status.Devices[i]
		if seen.Mem < 1 || !usable(seen) {
			continue
		}
		d := placement.Device{
			UUID: seen.UUID, Model: seen.Model, Index: seen.Index, Mem: seen.Mem,
			FreeCore: v1alpha1.WholeGPU, FreeMem: seen.Mem, Slots: v1alpha1.MaxSlicesPerDevice,
		}
		for j := range ledger.Spec.Devices {
			if ledger.Spec.Devices[j].UUID == seen.UUID {
				subtract(&d, &ledger.Spec.Devices[j])
			}
		}
		node.Devices = append(node.Devices, d)
	}
	return node
}

// subtract takes what is granted off the device's room. While a device has
// slices the smaller of both capacities holds: the ledger's, which the API server
// checks against, and the node's.
func subtract(d *placement.Device, granted *v1alpha1.DeviceLedger) {
	if len(granted.Slices) > 0 {
		d.FreeCore, d.FreeMem = min(d.FreeCore, granted.Core), min(d.FreeMem, granted.Mem)
	}
	for _, s := range granted.Slices {
		d.FreeCore -= s.Core - s.ReuseCore
		d.FreeMem -= s.Mem - s.ReuseMem
	}
	d.Slots -= len(granted.Slices)
}

// roomier tells whether now has room somewhere that before had not: only then
// can a pod that waits for a device be helped.
func roomier(before, now *placement.Node) bool {
	if now == nil {
		return false
	}
	for _, d := range now.Devices {
		helps := true
		if before != nil {
			for _, b := range before.Devices {
				if b.UUID == d.UUID {
					helps = d.FreeCore > b.FreeCore || d.FreeMem > b.FreeMem || d.Slots > b.Slots || d.Model != b.Model
				}
			}
		}
		if helps {
			return true
		}
	}
	return false
}
