// SPDX-License-Identifier: Apache-2.0

package main

import (
	"vernier.dev/vernier/allocator/placement/packer"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/bench/placement/trace"
)

// deviceMem is what every device is given, as the trace does not say: pods need
// the same share of it as of the compute, so its amount changes nothing.
const deviceMem v1alpha1.MiB = 16 << 10

// ours is Vernier's packer on the trace's cluster.
type ours struct {
	*packer.Engine
	requests []packer.Request
}

func newOurs(w *trace.Workload) *ours {
	o := &ours{Engine: packer.New(trace.Allows)}
	for i := range w.Nodes {
		n := &w.Nodes[i]
		o.AddNode(packer.Machine{Model: n.Model, Devices: n.GPUs, DeviceMem: deviceMem, CPU: packer.Milli(n.CPU), Mem: v1alpha1.MiB(n.Mem)})
	}
	for i := range w.Classes {
		c := &w.Classes[i]
		o.requests = append(o.requests, packer.Request{
			GPUs: c.GPUs, Core: packer.Milli(c.Milli), MemShare: packer.Milli(c.Milli), Models: c.Spec,
			CPU: packer.Milli(c.CPU), HostMem: v1alpha1.MiB(c.Mem),
		})
	}
	return o
}

func (o *ours) Place(class int) (node int, devices uint64, ok bool) {
	o.Reprice()
	id, devices, ok := o.Engine.Place(o.requests[class])
	return int(id), devices, ok
}

func (o *ours) Release(class, node int, devices uint64) {
	o.Engine.Release(o.requests[class], packer.NodeID(node), devices)
}
