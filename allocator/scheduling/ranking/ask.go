// SPDX-License-Identifier: Apache-2.0

package ranking

import (
	"math/bits"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/placement/packer"
	"vernier.dev/vernier/api/v1alpha1"
)

// Ask is what a pod asks for: devices, and CPU and memory of the host.
type Ask struct {
	*placement.Demand
	CPU packer.Milli
	Mem v1alpha1.MiB
}

// inWords reports whether the engine can rank nodes for the pod. It packs, so it
// cannot spread, and it knows devices by model and room, not by UUID nor by what
// shares them.
func (a *Ask) inWords() bool {
	return a.Policy != v1alpha1.PolicySpread && !a.UUIDs.Any() && !a.MPS()
}

// request is what one container asks for, in the engine's words, without the host.
func (a *Ask) request(container int) packer.Request {
	s := &a.Containers[container].Share
	return packer.Request{
		GPUs: int(s.GPUs), Core: milli(s.Core), Mem: s.MemMiB, MemShare: milli(s.MemPercent),
		Models: modelsOf(a.Models, a.Containers[container].Models),
	}
}

// modelsOf is both lists in the engine's words, which allows reads.
func modelsOf(pod, class v1alpha1.AllowList) string {
	if !class.Any() {
		return pod.String()
	}
	return pod.String() + both + class.String()
}

// both separates two lists, each of which a model has to be in. No annotation has it.
const both = "\x00"

// leading is the request that stands for the pod: that of its largest container, or of
// all if they have to be on one device, with all that the pod needs of the host, at the level
// of topology that it names.
func (a *Ask) leading() packer.Request {
	r := a.request(a.Lead())
	if a.SameGPU {
		r = a.together()
	}
	// One device is near itself.
	if r.GPUs > 1 || a.Topology.Level == v1alpha1.TopologyRDMA {
		r.Topology = a.Topology.Level
	}
	r.CPU, r.HostMem = packer.Milli(coarse(int64(a.CPU))), v1alpha1.MiB(coarse(int64(a.Mem)))
	return r
}

// together is the request for one device with the containers that run together in the end.
func (a *Ask) together() packer.Request {
	r, shares := a.request(a.Lead()), 0
	for i := range a.Containers {
		if i != a.Lead() && a.Containers[i].Kind != placement.Init {
			c := a.request(i)
			r.Core, r.Mem, r.MemShare = r.Core+c.Core, r.Mem+c.Mem, r.MemShare+c.MemShare
		}
	}
	for i := range a.Containers {
		if c := &a.Containers[i]; c.Share.MemMiB == 0 && c.Kind != placement.Init {
			shares++
		}
	}
	// Each percentage of memory is rounded down to a MiB. The engine must leave out no node
	// that has the room.
	r.Mem -= v1alpha1.MiB(max(0, shares-1))
	return r
}

// coarse rounds an amount of the host's down by at most a sixteenth, so that pods
// that differ by little are one class to the engine. Down, so that the engine leaves
// out no node that has the room; whether it has is compared exactly afterwards.
func coarse(n int64) int64 {
	low := max(0, bits.Len64(uint64(n))-5)
	return n >> low << low
}

func milli(p v1alpha1.Percent) packer.Milli {
	return packer.Milli(p) * packer.Whole / packer.Milli(v1alpha1.WholeGPU)
}
