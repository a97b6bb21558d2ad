// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand"

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
	ties     *rand.Rand
}

func newOurs(w *trace.Workload, ties *rand.Rand) *ours {
	o := &ours{Engine: packer.New(trace.Allows), ties: ties}
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
	if o.ties == nil {
		id, devices, ok := o.Engine.Place(o.requests[class])
		return int(id), devices, ok
	}
	// The index knows only fixed ties.
	o.Learn(o.requests[class])
	id, devices, ok := o.Scan(o.requests[class], func(n int) bool { return o.ties.Intn(n) == 0 })
	if ok {
		o.Book(o.requests[class], id, devices)
	}
	return int(id), devices, ok
}

func (o *ours) Release(class, node int, devices uint64) {
	o.Engine.Release(o.requests[class], packer.NodeID(node), devices)
}
