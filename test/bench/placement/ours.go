// SPDX-License-Identifier: Apache-2.0

package main

import (
	"math/rand"
	"slices"

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
	hidden   map[int]hidden
}

// hidden is what is kept of a node from the engine.
type hidden struct {
	host    trace.Node
	devices []int
}

func newOurs(w *trace.Workload, ties *rand.Rand) *ours {
	o := &ours{Engine: packer.New(trace.Allows), ties: ties, hidden: map[int]hidden{}}
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
	o.Learn(class)
	if o.ties == nil {
		node, devices, ok = o.Best(class)
	} else {
		// The index knows only fixed ties.
		var id packer.NodeID
		id, devices, ok = o.Scan(o.requests[class], func(n int) bool { return o.ties.Intn(n) == 0 })
		node = int(id)
	}
	if ok {
		o.Book(class, node, devices)
	}
	return node, devices, ok
}

func (o *ours) Release(class, node int, devices uint64) { o.book(class, node, devices, -1) }

func (o *ours) Learn(class int) {
	o.Reprice()
	o.Engine.Learn(o.requests[class])
}

func (o *ours) Best(class int) (node int, devices uint64, ok bool) {
	id, devices, ok := o.Engine.Best(o.requests[class])
	return int(id), devices, ok
}

func (o *ours) Book(class, node int, devices uint64) { o.book(class, node, devices, 1) }

// book shows the engine what is left of the node with a pod of the class, or with sign -1
// without it.
func (o *ours) book(class, node int, devices uint64, sign int) {
	r := &o.requests[class]
	cpu, mem, left := o.Free(packer.NodeID(node))
	left = slices.Clone(left)
	for d := range left {
		if devices>>d&1 == 1 {
			left[d].Core -= packer.Milli(sign) * r.Core
			left[d].Mem -= memOf(sign * int(r.MemShare))
		}
	}
	o.Set(packer.NodeID(node), cpu-packer.Milli(sign)*r.CPU, mem-v1alpha1.MiB(sign)*r.HostMem, left)
}

func (o *ours) Hide(node int, host trace.Node, devices []int) {
	was, ok := o.hidden[node]
	if !ok {
		was.devices = make([]int, len(devices))
	}
	cpu, mem, left := o.Free(packer.NodeID(node))
	left = slices.Clone(left)
	for d := range left {
		left[d].Core += packer.Milli(was.devices[d] - devices[d])
		left[d].Mem += memOf(was.devices[d]) - memOf(devices[d])
	}
	o.Set(packer.NodeID(node), cpu+packer.Milli(was.host.CPU-host.CPU), mem+v1alpha1.MiB(was.host.Mem-host.Mem), left)
	o.hidden[node] = hidden{host, devices}
}

// memOf is the memory of a share, as the engine counts it.
func memOf(milli int) v1alpha1.MiB { return deviceMem * v1alpha1.MiB(milli) / trace.Whole }
