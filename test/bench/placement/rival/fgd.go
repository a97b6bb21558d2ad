// SPDX-License-Identifier: Apache-2.0

package rival

import (
	"cmp"
	"math"
	"slices"

	"vernier.dev/vernier/test/bench/placement/trace"
)

// typical is a class of pods that fragments are measured by.
type typical struct {
	cpu         int64
	gpus, milli int
	spec        string
	part        float64
}

// FGD is fragmentation gradient descent ("Beware of Fragmentation", USENIX ATC
// 2023) with the settings of the authors' experiments: the most frequent pods
// that make up 95 % of the trace measure the fragments, pods without a GPU
// included, and the gradient goes through a sigmoid into whole percent.
func FGD(w *trace.Workload) Policy {
	f := newFragments(w)
	return func(n *Node, c *trace.Class) (float64, uint64) {
		before := f.amount(n.Left, n.CPULeft, n.Model)
		after := func(devices uint64) float64 {
			left := make([]int, 0, 64)
			for d, l := range n.Left {
				if devices>>d&1 == 1 {
					l -= c.Milli
				}
				left = append(left, l)
			}
			gain := before - f.amount(left, n.CPULeft-c.CPU, n.Model)
			return float64(int64(100 / (1 + math.Exp(-gain/1000))))
		}
		if c.GPUs != 1 || c.Milli == trace.Whole {
			devices := n.Choose(c, n.Tightest)
			return after(devices), devices
		}
		best, devices := -1.0, uint64(0)
		for d, l := range n.Left {
			if l < c.Milli {
				continue
			}
			if s := after(1 << d); s > best {
				best, devices = s, 1<<d
			}
		}
		return best, devices
	}
}

type fragments []typical

func newFragments(w *trace.Workload) fragments {
	counts := map[typical]float64{}
	for _, id := range w.Pods {
		c := &w.Classes[id]
		counts[typical{cpu: c.CPU, gpus: c.GPUs, milli: c.Milli, spec: c.Spec}]++
	}
	var all fragments
	for t, n := range counts {
		t.part = n
		all = append(all, t)
	}
	slices.SortFunc(all, func(a, b typical) int {
		return cmp.Or(cmp.Compare(b.part, a.part), cmp.Compare(b.cpu, a.cpu), cmp.Compare(b.milli, a.milli),
			cmp.Compare(b.gpus, a.gpus), cmp.Compare(b.spec, a.spec))
	})
	sum, kept := 0.0, 0
	for sum < 0.95*float64(len(w.Pods)) {
		sum += all[kept].part
		kept++
	}
	for i := range all[:kept] {
		all[i].part /= sum
	}
	return all[:kept]
}

// amount is how much of the free room the typical pods can't use.
func (f fragments) amount(left []int, cpu int64, model string) (sum float64) {
	total := 0
	for _, l := range left {
		total += l
	}
	for i := range f {
		t := &f[i]
		lost, need := 0, t.gpus
		for _, l := range left {
			if l < t.milli {
				lost += l
			} else {
				need--
			}
		}
		if t.milli == 0 || need > 0 || cpu < t.cpu || !trace.Allows(t.spec, model) {
			lost = total
		}
		sum += t.part * float64(lost)
	}
	return sum
}
