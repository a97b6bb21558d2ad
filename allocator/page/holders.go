// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
)

// holdersShown bounds the list, the largest first.
const holdersShown = 50

// Holders are the workloads that hold slices of the GPUs that were chosen.
type Holders struct {
	Rows []Holder
	// All is how many there are.
	All int
}

// Holder is the pods of one workload, and what they hold together.
type Holder struct {
	Namespace, Workload string
	Hue                 uint32
	Pods, GPUs          int
	Core                v1alpha1.Percent
	Mem                 v1alpha1.MiB

	pods map[types.UID]bool
}

type workload struct{ namespace, name string }

// holdings are holders while they are added up.
type holdings map[workload]*Holder

// add adds the slices of a GPU that are whose.
func (h holdings) add(g *GPU, whose func(*Part) bool) {
	seen := map[*Holder]bool{}
	for i := range g.Parts {
		p := &g.Parts[i]
		if !whose(p) {
			continue
		}
		key := workload{p.Namespace, p.Workload}
		of := h[key]
		if of == nil {
			of = &Holder{Namespace: p.Namespace, Workload: p.Workload, Hue: p.Hue, pods: map[types.UID]bool{}}
			h[key] = of
		}
		of.pods[p.PodUID] = true
		of.Core += p.Core - p.ReuseCore
		of.Mem += p.Mem - p.ReuseMem
		if !seen[of] {
			seen[of] = true
			of.GPUs++
		}
	}
}

func (h holdings) sorted(by string) Holders {
	all := make([]Holder, 0, len(h))
	for _, of := range h {
		of.Pods = len(of.pods)
		all = append(all, *of)
	}
	slices.SortFunc(all, func(a, b Holder) int {
		first := 0
		switch by {
		case byMemory:
			first = cmp.Compare(b.Mem, a.Mem)
		case byPods:
			first = cmp.Compare(b.Pods, a.Pods)
		case byName:
		default:
			first = cmp.Compare(b.Core, a.Core)
		}
		return cmp.Or(first, cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Workload, b.Workload))
	})
	return Holders{Rows: all[:min(len(all), holdersShown)], All: len(all)}
}
