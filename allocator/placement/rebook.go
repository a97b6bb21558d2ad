// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"cmp"
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// Has is a device that a container has already, and on it the instance of MIG, if
// that is known.
type Has struct {
	UUID string
	MIG  v1alpha1.MIGPlace
}

// Rebook is the plan that puts every container on the devices that it already
// has, however near they are to each other. It is false when those are not all there with the room.
func Rebook(demand *Demand, node *Node, devices map[string][]Has) (Plan, bool) {
	s := newSearch(demand, node)
	// Those first that lie somewhere: the others find places beside them.
	slices.SortStableFunc(s.order, func(a, b int) int {
		return cmp.Compare(b2i(!lies(devices[demand.Containers[a].Name])), b2i(!lies(devices[demand.Containers[b].Name])))
	})
	if !s.keep(s.order, devices) {
		return Plan{}, false
	}
	return s.plan(), true
}

// Refit is the plan that leaves containers on their devices and finds
// others for the rest, all as near each other as the demand says. It is false when that does not fit.
func Refit(demand *Demand, node *Node, devices map[string][]Has) (Plan, bool) {
	return within(demand, node, func(s *search) bool { return s.refit(devices) })
}

func (s *search) refit(devices map[string][]Has) bool {
	demand := s.demand
	moves := func(i int) bool { return devices[demand.Containers[i].Name] == nil }
	slices.SortStableFunc(s.order, func(a, b int) int {
		on := func(i int) []Has { return devices[demand.Containers[i].Name] }
		return cmp.Or(cmp.Compare(b2i(moves(a)), b2i(moves(b))), cmp.Compare(b2i(!lies(on(a))), b2i(!lies(on(b)))))
	})
	kept := s.order
	if first := slices.IndexFunc(s.order, moves); first >= 0 {
		kept = s.order[:first]
	}
	return s.keep(kept, devices) && s.place(len(kept))
}

// keep puts these containers on the devices that they have.
func (s *search) keep(containers []int, devices map[string][]Has) bool {
	for _, i := range containers {
		var at []int
		for _, has := range devices[s.demand.Containers[i].Name] {
			at = append(at, slices.IndexFunc(s.node.Devices, func(d Device) bool { return d.UUID == has.UUID }))
			s.places[i] = has.MIG
		}
		if !s.fix(i, at) {
			return false
		}
	}
	return true
}

func lies(on []Has) bool {
	return slices.ContainsFunc(on, func(h Has) bool { return h.MIG.Size > 0 })
}
