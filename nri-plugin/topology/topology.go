// SPDX-License-Identifier: Apache-2.0

// Package topology owns how the sets of a node's devices that are near each other follow from
// what is known of each pair.
//
// It asks nobody: what the driver says comes from package inventory.
package topology

import (
	"cmp"
	"math/bits"
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// maxSets is how many sets of a level the ledger takes. Where there are more, the largest count.
const maxSets = 32

// Cliques are the largest sets of n devices in which each pair is near, the larger ones first.
// A device that is near no other is in none. The n is v1alpha1.MaxDevices at most. Even if the
// pairs were chosen for it, there would not be more than some 100,000 sets to look at.
func Cliques(n int, near func(a, b int) bool) []v1alpha1.DeviceSet {
	g := graph{neighbours: make([]mask, n)}
	var all mask
	for a := range n {
		all |= 1 << a
		for b := range a {
			if near(a, b) {
				g.neighbours[a] |= 1 << b
				g.neighbours[b] |= 1 << a
			}
		}
	}
	g.extend(0, all, 0)
	slices.SortFunc(g.cliques, func(a, b mask) int {
		// Reversed, the lowest position counts most.
		return cmp.Or(cmp.Compare(a.len(), b.len()), cmp.Compare(bits.Reverse32(uint32(a)), bits.Reverse32(uint32(b))))
	})
	slices.Reverse(g.cliques)
	var sets []v1alpha1.DeviceSet
	for _, m := range g.cliques[:min(len(g.cliques), maxSets)] {
		sets = append(sets, v1alpha1.DeviceSetOf(m.positions()))
	}
	return sets
}

// mask is a set of positions.
type mask uint32

func (m mask) len() int { return bits.OnesCount32(uint32(m)) }

func (m mask) positions() []int {
	var all []int
	for ; m != 0; m &= m - 1 {
		all = append(all, bits.TrailingZeros32(uint32(m)))
	}
	return all
}

// graph has an edge for each pair that is near.
type graph struct {
	neighbours []mask
	cliques    []mask
}

// extend finds the cliques that have all of those in clique, some of those in open and none of
// those in done, which were tried before (Bron and Kerbosch, with a pivot).
func (g *graph) extend(clique, open, done mask) {
	if open|done == 0 {
		if clique.len() > 1 {
			g.cliques = append(g.cliques, clique)
		}
		return
	}
	// Each clique has the pivot or one that is not its neighbour.
	var pivot mask
	for _, p := range (open | done).positions() {
		if near := g.neighbours[p]; pivot == 0 || (open&near).len() > (open&pivot).len() {
			pivot = near
		}
	}
	for _, p := range (open &^ pivot).positions() {
		near := g.neighbours[p]
		g.extend(clique|1<<p, open&near, done&near)
		open &^= 1 << p
		done |= 1 << p
	}
}

// NUMA are the devices of each NUMA node, by the first of them.
func NUMA(devices []v1alpha1.DeviceStatus) []v1alpha1.DeviceSet {
	var nodes []int32
	of := map[int32][]int{}
	for i, d := range devices {
		if d.NUMA == nil {
			continue
		}
		if of[*d.NUMA] == nil {
			nodes = append(nodes, *d.NUMA)
		}
		of[*d.NUMA] = append(of[*d.NUMA], i)
	}
	var sets []v1alpha1.DeviceSet
	for _, node := range nodes[:min(len(nodes), maxSets)] {
		sets = append(sets, v1alpha1.DeviceSetOf(of[node]))
	}
	return sets
}
