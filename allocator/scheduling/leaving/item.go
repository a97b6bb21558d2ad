// SPDX-License-Identifier: Apache-2.0

package leaving

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
)

// item is a pod that leaves alone, or a gang that leaves as a whole.
type item struct {
	Cost
	pods  []Pod
	gang  int
	whole bool
	uses  []use
	// on is what it has of this node, size how much of what a device lacks that is.
	on   []part
	size float64
	out  bool
}

// use is how much of a limit an item takes.
type use struct{ limit, pods int }

type part struct {
	device int
	has    placement.Amount
}

// local is a pod of the node: the items with which it leaves, alone or with its gang, -1 for none.
type local struct{ alone, whole int }

func (l local) leaves() bool { return l.alone >= 0 || l.whole >= 0 }

// add notes a pod of the node, and the items with which it may leave.
func (s *search) add(uid types.UID, gangs map[int]int) local {
	p, ok := s.c.Pods[uid]
	if !ok {
		return local{-1, -1}
	}
	s.single = append(s.single, p)
	l := local{s.addItem(item{Cost: None, pods: s.single[len(s.single)-1:], gang: p.Gang}), -1}
	if p.Gang < 0 || !s.c.Gangs[p.Gang].Whole {
		return l
	}
	if l.whole, ok = gangs[p.Gang]; !ok {
		l.whole = s.addItem(item{Cost: Cost{Priority: None.Priority, Broken: 1}, pods: s.c.Gangs[p.Gang].Pods, gang: p.Gang, whole: true})
		gangs[p.Gang] = l.whole
	}
	return l
}

// addItem is the number of a new item, -1 where limits keep it.
func (s *search) addItem(it item) int {
	if it.gang >= 0 && !it.whole {
		it.uses = append(it.uses, use{it.gang, 1})
	}
	for _, p := range it.pods {
		it.Cost = it.plus(p.Cost)
		if p.Budget < 0 {
			continue
		}
		limit := len(s.c.Gangs) + p.Budget
		at := slices.IndexFunc(it.uses, func(u use) bool { return u.limit == limit })
		if at < 0 {
			at, it.uses = len(it.uses), append(it.uses, use{limit: limit})
		}
		it.uses[at].pods++
	}
	if slices.ContainsFunc(it.uses, func(u use) bool { return s.limits[u.limit] < u.pods }) {
		return -1
	}
	n := len(s.parts)
	s.parts = append(s.parts, part{})
	it.on = s.parts[n : n : n+1]
	s.items = append(s.items, it)
	return len(s.items) - 1
}

func (it *item) hold(device int, has placement.Amount) {
	if n := len(it.on); n == 0 || it.on[n-1].device != device {
		it.on = append(it.on, part{device: device})
	}
	p := &it.on[len(it.on)-1]
	p.has = p.has.Plus(has)
}
