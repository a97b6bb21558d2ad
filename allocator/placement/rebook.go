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
// has; false when those are not all there with the room.
func Rebook(demand *Demand, node *Node, devices map[string][]Has) (Plan, bool) {
	s := newSearch(demand, node)
	// Those first that lie somewhere: the others find places beside them.
	slices.SortStableFunc(s.order, func(a, b int) int {
		return cmp.Compare(b2i(!lies(devices[demand.Containers[a].Name])), b2i(!lies(devices[demand.Containers[b].Name])))
	})
	for _, i := range s.order {
		var at []int
		for _, has := range devices[demand.Containers[i].Name] {
			at = append(at, slices.IndexFunc(node.Devices, func(d Device) bool { return d.UUID == has.UUID }))
			s.places[i] = has.MIG
		}
		if !s.fix(i, at) {
			return Plan{}, false
		}
	}
	return s.plan(), true
}

func lies(on []Has) bool {
	return slices.ContainsFunc(on, func(h Has) bool { return h.MIG.Size > 0 })
}
