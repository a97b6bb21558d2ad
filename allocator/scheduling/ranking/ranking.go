// SPDX-License-Identifier: Apache-2.0

package ranking

import (
	"slices"
	"strings"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/placement/packer"
	"vernier.dev/vernier/api/v1alpha1"
)

// Host is what a node has beside its devices.
type Host struct {
	// CPU and Mem are free, Cores all the CPU there is.
	CPU, Cores packer.Milli
	Mem        v1alpha1.MiB
	// Aside is a node that hardly any pod may go to now. It is looked at last.
	Aside bool
}

// Ranking is the engine with its picture of the cluster. The zero value is not
// ready; use New.
type Ranking struct {
	engine *packer.Engine
	nodes  map[string]*node
	// parts by the engine's numbers.
	parts []*part
	// spare are numbers of machines that went.
	spare map[packer.Machine][]packer.NodeID
	// partly are the nodes of which the engine does not see all: those that are set
	// aside, and those with unlike devices, which are several to it.
	partly map[string]*node
	// cut are the nodes with devices in MIG mode, which the engine does not see.
	cut map[string]*node
	// linked counts the nodes that have two devices near each other, by level.
	linked map[v1alpha1.TopologyLevel]int
	free   []packer.Free
	near   []v1alpha1.Near
}

// node is a node with room. room is nil while it takes nothing.
type node struct {
	room *placement.Node
	// linked are the sets that two devices of the room are of.
	linked v1alpha1.Near
	host   Host
	parts  []*part
}

// part is the devices of a node that are alike: a machine to the engine.
type part struct {
	node    *node
	id      packer.NodeID
	machine packer.Machine
	// devices of the room, in the engine's order.
	devices []int
}

// New is a ranking of no nodes that has learnt nothing.
func New() *Ranking {
	return &Ranking{
		engine: packer.New(allows), nodes: map[string]*node{}, partly: map[string]*node{}, cut: map[string]*node{},
		spare: map[packer.Machine][]packer.NodeID{}, free: make([]packer.Free, packer.MaxDevices),
		near:   make([]v1alpha1.Near, packer.MaxDevices),
		linked: map[v1alpha1.TopologyLevel]int{v1alpha1.TopologyNVLink: 0, v1alpha1.TopologyPCIe: 0, v1alpha1.TopologyNUMA: 0},
	}
}

func allows(models, model string) bool {
	for one := range strings.SplitSeq(models, both) {
		if list, err := v1alpha1.ParseAllowList(one); err != nil || !list.Allows(model) {
			return false
		}
	}
	return true
}

// Expect prepares for pods like this one. Before there are nodes that costs nothing,
// afterwards the first such pod is scored on every one.
func (r *Ranking) Expect(a *Ask) {
	if !a.Idle() {
		r.engine.Best(a.leading())
	}
}

// Learn takes note that the pod has arrived: once per pod.
func (r *Ranking) Learn(a *Ask) {
	if a.Idle() {
		return // what it takes is in no other pod's way
	}
	r.engine.Learn(a.leading())
	if a.SameGPU {
		return
	}
	for i := range a.Containers {
		// Init containers live in the room of the others, more or less.
		if i != a.Lead() && a.Containers[i].Kind != placement.Init {
			r.engine.Learn(a.request(i))
		}
	}
}

// Reprice is for the time between decisions: what was learnt begins to count.
func (r *Ranking) Reprice() { r.engine.Reprice() }

// Set notes what a node has. The room is nil for one that takes nothing now.
func (r *Ranking) Set(name string, room *placement.Node, host Host) {
	n := r.nodes[name]
	if n == nil {
		if room == nil {
			return
		}
		n = &node{}
		r.nodes[name] = n
	}
	n.room, n.host = room, host
	r.link(n, room)
	n.divide()
	used := 0
	for _, p := range n.parts {
		if len(p.devices) > p.machine.Devices || host.Cores > p.machine.CPU {
			r.retire(p)
			r.assign(p, host)
		}
		r.show(p)
		if len(p.devices) > 0 {
			used++
		}
	}
	delete(r.partly, name)
	delete(r.cut, name)
	cut := room != nil && slices.ContainsFunc(room.Devices, func(d placement.Device) bool { return d.Cut != nil })
	if room != nil && (host.Aside || used > 1 || cut && used > 0) {
		r.partly[name] = n
	}
	if cut {
		r.cut[name] = n
	}
}

// Delete notes that a node is gone.
func (r *Ranking) Delete(name string) {
	if n := r.nodes[name]; n != nil {
		r.link(n, nil)
		for _, p := range n.parts {
			r.retire(p)
		}
		delete(r.nodes, name)
		delete(r.partly, name)
		delete(r.cut, name)
	}
}

// link counts the node again.
func (r *Ranking) link(n *node, room *placement.Node) {
	was := n.linked
	n.linked = v1alpha1.Near{}
	if room != nil {
		var seen v1alpha1.Near
		for i := range room.Devices {
			near := room.Devices[i].Near
			n.linked, seen = n.linked.Or(near.And(seen)), seen.Or(near)
		}
	}
	if n.linked == was {
		return
	}
	for level := range r.linked {
		if was.At(level) != 0 {
			r.linked[level]--
		}
		if n.linked.At(level) != 0 {
			r.linked[level]++
		}
	}
}

// divide puts the devices of the room into parts. Parts stay when their devices
// have gone: as a rule those come back.
func (n *node) divide() {
	for _, p := range n.parts {
		p.devices = p.devices[:0]
	}
	if n.room == nil {
		return
	}
	for i := range n.room.Devices {
		d := &n.room.Devices[i]
		if d.Cut != nil || d.MPSOnly {
			continue
		}
		at := slices.IndexFunc(n.parts, func(p *part) bool {
			return p.machine.Model == d.Model && p.machine.DeviceMem == d.Mem && len(p.devices) < packer.MaxDevices
		})
		if at < 0 {
			at = len(n.parts)
			n.parts = append(n.parts, &part{node: n, id: none, machine: packer.Machine{Model: d.Model, DeviceMem: d.Mem}})
		}
		n.parts[at].devices = append(n.parts[at].devices, i)
	}
}

// none is the number of a part that the engine does not know yet.
const none packer.NodeID = -1

// coreStep is how coarse the CPU of machines is: the engine works out anew what all
// is worth for each kind of machine.
const coreStep packer.Milli = 8000

// assign finds a number for the part as it is now.
func (r *Ranking) assign(p *part, host Host) {
	p.machine.Devices = max(p.machine.Devices, len(p.devices))
	p.machine.CPU = max(p.machine.CPU, (host.Cores+coreStep-1)/coreStep*coreStep)
	if ids := r.spare[p.machine]; len(ids) > 0 {
		p.id = ids[len(ids)-1]
		r.spare[p.machine] = ids[:len(ids)-1]
		r.parts[p.id] = p
		return
	}
	p.id = r.engine.AddNode(p.machine)
	r.parts = append(r.parts, p)
}

// retire gives the part's number back.
func (r *Ranking) retire(p *part) {
	if p.id == none {
		return
	}
	free := r.free[:p.machine.Devices]
	clear(free)
	r.engine.Set(p.id, 0, 0, free)
	r.spare[p.machine] = append(r.spare[p.machine], p.id)
	r.parts[p.id], p.id = nil, none
}

// show has the engine see the part as it is, if it does not yet.
func (r *Ranking) show(p *part) {
	free, near := r.free[:p.machine.Devices], r.near[:p.machine.Devices]
	clear(free)
	clear(near)
	var cpu packer.Milli
	var mem v1alpha1.MiB
	if !p.node.host.Aside {
		// Less than nothing, as of a node that promised too much, refuses no pod
		// that asks for none.
		cpu, mem = max(0, p.node.host.CPU), max(0, p.node.host.Mem)
		for i, d := range p.devices {
			free[i] = roomOf(&p.node.room.Devices[d])
			near[i] = p.node.room.Devices[d].Near
		}
		r.engine.SetNear(p.id, near)
	}
	if c, m, f := r.engine.Free(p.id); c != cpu || m != mem || !slices.Equal(f, free) {
		r.engine.Set(p.id, cpu, mem, free)
	}
}

// roomOf is what the engine may give out of a device: nothing where it takes no more
// slices, or where somebody granted more than there is.
func roomOf(d *placement.Device) packer.Free {
	if d.Slots <= 0 || d.FreeCore < 0 || d.FreeMem < 0 {
		return packer.Free{}
	}
	return packer.Free{Core: milli(d.FreeCore), Mem: d.FreeMem}
}
