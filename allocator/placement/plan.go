// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Grant is one container's part of one device, as the ledger books it.
type Grant struct {
	Container string
	UUID      string
	Index     int32
	Core      v1alpha1.Percent
	Mem       v1alpha1.MiB
	// ReuseCore and ReuseMem are already booked by grants of this plan on this
	// device that never run at the same time.
	ReuseCore v1alpha1.Percent
	ReuseMem  v1alpha1.MiB
	// Asked is what the container asks for of the device, nil where the grant is that.
	Asked *v1alpha1.Amounts
	Mode  v1alpha1.Mode
	// Idle is percent of the device's idle compute, of an idle slice.
	Idle v1alpha1.Percent
	// MIG is the instance, in mode mig.
	MIG v1alpha1.MIGPlace
}

// Plan is a pod's devices on one node.
type Plan struct {
	Node string
	// Grants in the order of the demand's containers.
	Grants []Grant

	// cut is how many of the grants are instances of MIG.
	cut int
	// level of topology, the lower the nearer the devices are.
	level int
	// opened is how many of the devices used are empty otherwise, touched the mean leftover of
	// those used, rest that of the node.
	opened, touched, rest int64
}

// Cut reports whether some grants are instances of MIG.
func (p *Plan) Cut() bool { return p.cut > 0 }

// Level is how near to each other the devices of a plan of the demand's are, by the levels that
// the demand names. It is empty where it names none.
func (p *Plan) Level(d *Demand) v1alpha1.TopologyLevel {
	if levels := d.Levels(); p.level < len(levels) {
		return levels[p.level]
	}
	return d.Topology.Level
}

// Without is what the plan leaves of the node that it was made on.
func (n *Node) Without(plan *Plan) *Node {
	left := &Node{Name: n.Name, Devices: slices.Clone(n.Devices)}
	for _, g := range plan.Grants {
		dev := left.Device(g.UUID)
		dev.SetFree(dev.Free().Minus(g.Amount()))
		dev.take(g.Mode, g.MIG)
		dev.takeIdle(g.Idle, g.Mem)
		dev.Expected += g.asks()
	}
	return left
}

// Recount sets what a pod's slices on one device reuse of each other, by the rules of book.
// The containers are the pod's, in the order in which they start.
func Recount(containers []podrequest.Container, slices []*v1alpha1.Slice) {
	of := map[string]*v1alpha1.Slice{}
	for _, s := range slices {
		if of[s.Ctr] = s; s.MIG != nil {
			return
		}
	}
	booked, started := Amount{}, Amount{}
	for _, c := range containers {
		if s := of[c.Name]; s != nil && (!c.Init || c.Sidecar) {
			booked = booked.Plus(Amount{Core: s.Core, Mem: s.Mem})
		}
	}
	for _, c := range containers {
		s := of[c.Name]
		if s == nil || !c.Init {
			continue
		}
		own := Amount{Core: s.Core, Mem: s.Mem}
		need := started.Plus(own)
		if c.Sidecar {
			started = need
			continue
		}
		s.ReuseCore, s.ReuseMem = own.Core-max(0, need.Core-booked.Core), own.Mem-max(0, need.Mem-booked.Mem)
		booked = booked.Most(need)
	}
}

// book turns the devices chosen for each container into grants.
//
// On every device the booked amounts (Core - ReuseCore, Mem - ReuseMem) add up to
// exactly the pod's peak there: the greater of all app containers and sidecars
// together, and each init container with the sidecars started before it. App
// containers and sidecars are booked in full; an init container is booked with
// what it needs beyond everything booked before it. An instance of MIG is one
// container's for the pod's life, and nothing of it is reused.
func (s *search) book() []Grant {
	app := s.phases - 1
	booked := make([]Amount, len(s.node.Devices))
	for d := range booked {
		booked[d] = s.loads[d][app]
	}
	var grants []Grant
	for i := range s.demand.Containers {
		c := &s.demand.Containers[i]
		for _, d := range s.chosen[i] {
			dev := &s.node.Devices[d]
			own, _ := c.load(dev)
			g := Grant{Container: c.Name, UUID: dev.UUID, Index: dev.Index, Core: own.Core, Mem: own.Mem, Idle: c.Share.Idle}
			g.Mode, _ = c.on(dev)
			g.Asked = c.more(dev, own)
			switch {
			case dev.Cut != nil:
				g.MIG = s.places[i]
			case c.Kind == Init:
				need := s.loads[d][s.runs[i].from]
				g.ReuseCore = own.Core - max(0, need.Core-booked[d].Core)
				g.ReuseMem = own.Mem - max(0, need.Mem-booked[d].Mem)
				booked[d] = booked[d].Most(need)
			}
			grants = append(grants, g)
		}
	}
	return grants
}
