// SPDX-License-Identifier: Apache-2.0

package placement

import "slices"

// Rebook is the plan that puts every container on the devices that it already
// has, by UUID; false when those are not all there with the room.
func Rebook(demand *Demand, node *Node, devices map[string][]string) (Plan, bool) {
	s := newSearch(demand, node)
	for _, i := range s.order {
		var at []int
		for _, uuid := range devices[demand.Containers[i].Name] {
			at = append(at, slices.IndexFunc(node.Devices, func(d Device) bool { return d.UUID == uuid }))
		}
		if !s.fix(i, at) {
			return Plan{}, false
		}
	}
	return Plan{Node: node.Name, Grants: s.book()}, true
}
