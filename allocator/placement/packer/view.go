// SPDX-License-Identifier: Apache-2.0

package packer

import "vernier.dev/vernier/api/v1alpha1"

// view is a node prepared for scoring.
type view struct {
	*node
	kind *kind
	// p are the prices that the node is scored by.
	p    *prices
	free []Free
	gaps []uint8
	near []v1alpha1.Near
	// value of all gaps at each price.
	value [hostPrices]float64
	// count and room of the gaps large enough for each group.
	count [maxGroups]int
	room  [maxGroups]float64
	// level of free CPU to usable room of all gaps, where known.
	usable [levels]float64
	known  [levels]bool
	// worth of the node as it is, and what its being free counts against it.
	worth float64
}

func (e *Engine) gapsOf(id NodeID) []uint8 {
	n := &e.nodes[id]
	return e.gaps[n.first : int(n.first)+e.kinds[n.kind].Devices]
}

func (e *Engine) look(id NodeID) *view {
	v := &e.view
	v.node, v.p = &e.nodes[id], e.pricesOf(id)
	v.kind = &e.kinds[v.node.kind]
	v.gaps = e.gapsOf(id)
	v.free = e.free[v.first : int(v.first)+v.kind.Devices]
	v.near = e.near[v.first : int(v.first)+v.kind.Devices]
	left := e.value(v)
	v.worth += fullerWeight*float64(left)*float64(Whole)/steps + spareWeight*v.p.spare*float64(v.cpu)
	return v
}

// value works out what the node in view is worth with its gaps, and returns their sum.
func (e *Engine) value(v *view) (left int) {
	p := v.p
	v.value, v.count, v.room = [hostPrices]float64{}, [maxGroups]int{}, [maxGroups]float64{}
	clear(v.known[:])
	for _, g := range v.gaps {
		left += int(g)
		if g == 0 {
			continue
		}
		for k := range v.value {
			v.value[k] += p.value[g][k]
		}
		for j := range p.groups {
			if int(g) >= p.groups[j].size {
				v.count[j]++
				v.room[j] += float64(g) * float64(Whole) / steps
			}
		}
	}
	c := &e.cand
	c.set(v)
	v.worth = p.worth(v.cpu, v.mem, &v.value) + p.kept(v.kind, &v.count, v.cpu) + roomWeight*e.usable(v, c, v.cpu)
	return left
}
