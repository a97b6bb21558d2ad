// SPDX-License-Identifier: Apache-2.0

package placement

import "slices"

// Rebook is the plan that puts every container on the devices that it already
// has, by UUID; false when those are not all there with the room.
func Rebook(demand *Demand, node *Node, devices map[string][]string) (Plan, bool) {
	s := newSearch(demand, node)
	for _, i := range s.order {
		c := &demand.Containers[i]
		if len(devices[c.Name]) != int(c.Share.GPUs) {
			return Plan{}, false
		}
		for _, uuid := range devices[c.Name] {
			d := slices.IndexFunc(node.Devices, func(d Device) bool { return d.UUID == uuid })
			if d < 0 || slices.Contains(s.chosen[i], d) || !slices.Contains(s.preferred(i), d) {
				return Plan{}, false
			}
			s.add(i, d)
		}
	}
	return Plan{Node: node.Name, Grants: s.book()}, true
}
