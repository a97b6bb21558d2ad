// SPDX-License-Identifier: Apache-2.0

package packer

import "vernier.dev/vernier/api/v1alpha1"

// Milli is a thousandth: of a device's compute, or of a core of the host.
type Milli int64

// Whole is all of a device.
const Whole Milli = 1000

// MaxDevices is the most devices that a node may have.
const MaxDevices = 64

type MiB = v1alpha1.MiB

// NodeID numbers the nodes in the order in which they were added. Among equal
// nodes the lowest is taken.
type NodeID int32

// Machine is a node as it is when nothing runs on it. All its devices are alike.
type Machine struct {
	Model   string
	Devices int
	// DeviceMem is the memory of each device, 1 or more.
	DeviceMem v1alpha1.MiB
	// CPU and Mem are the host's; zero when requests say nothing of them either.
	CPU Milli
	Mem v1alpha1.MiB
}

// Free is what can be given out of one device.
type Free struct {
	Core Milli
	Mem  v1alpha1.MiB
}

// Request is what a pod asks for. Equal requests are one class.
type Request struct {
	// GPUs is the number of devices, Core and Mem what it needs of each. A MemShare
	// in thousandths of the device's memory stands in for Mem on any model.
	GPUs     int
	Core     Milli
	Mem      v1alpha1.MiB
	MemShare Milli
	// Models restricts the devices, in words that New's allows understands; empty
	// allows all.
	Models string
	// Topology is the level within one set of which the devices have to be; empty for any.
	Topology v1alpha1.TopologyLevel
	// CPU and HostMem are of the host.
	CPU     Milli
	HostMem v1alpha1.MiB
}

// memOn is the memory needed of each device of mem.
func (r *Request) memOn(mem v1alpha1.MiB) v1alpha1.MiB {
	return r.Mem + mem*v1alpha1.MiB(r.MemShare)/v1alpha1.MiB(Whole)
}

// steps is the resolution of prices: a device counts as this many parts.
const steps = 100

// gap is the part of a device, in steps, that requests can count on: what is free
// of the scarcer of compute and memory.
func gap(f Free, mem v1alpha1.MiB) uint8 {
	return uint8(min(int64(f.Core)*steps/int64(Whole), int64(f.Mem)*steps/int64(mem)))
}

// size is the part of a device, in steps, that a request takes of the one of
// compute and memory that it needs more of.
func (r *Request) size(mem v1alpha1.MiB) int {
	up := func(n, of int64) int { return int((n*steps + of - 1) / of) }
	return min(steps, max(up(int64(r.Core), int64(Whole)), up(int64(r.memOn(mem)), int64(mem))))
}
