// SPDX-License-Identifier: Apache-2.0

package leaving

import (
	"cmp"
	"math"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/v1alpha1"
)

// Weights are what the pods of a node hold, summed by priority: what Bound needs of a ledger.
// They follow from the ledger and from priorities, which never change. So they are made once
// for a version of a ledger, and serve every pod that looks for room.
type Weights struct {
	devices []weights
	// span is on how many devices a pod of the node is at most.
	span int
}

type weights struct {
	// now is the device as it is, nil while it takes nothing; most is the device when all
	// pods that have a priority are gone.
	now, most *placement.Device
	// levels are by priority, the lowest first, each with those below it.
	levels []level
}

// level is what the pods up to a priority hold of a device, and the least and the most that one
// of them does.
type level struct {
	priority          int32
	pods              int
	sum, small, large placement.Amount
}

// and is what two levels are together.
func (l level) and(m level) level {
	return level{max(l.priority, m.priority), l.pods + m.pods, l.sum.Plus(m.sum), l.small.Least(m.small), l.large.Most(m.large)}
}

// count is how many of the pods have to end at the least so that so much gets free: so many of
// the largest make it up, and so many of the smallest would fit beside it.
func (l *level) count(lack placement.Amount) int {
	n := max(parts(lack.Core, l.large.Core), parts(lack.Mem, l.large.Mem), parts(lack.Slots, l.large.Slots))
	spare := l.sum.Minus(lack)
	stay := min(fill(spare.Core, l.small.Core, l.pods), fill(spare.Mem, l.small.Mem, l.pods))
	return max(n, l.pods-stay)
}

// parts is how many of b make up a, rounded up, and 0 where a or b is nothing.
func parts[T v1alpha1.Percent | v1alpha1.MiB | int](a, b T) int {
	if a <= 0 || b <= 0 {
		return 0
	}
	return int((a + b - 1) / b)
}

func fill[T v1alpha1.Percent | v1alpha1.MiB](room, small T, most int) int {
	if small <= 0 {
		return most
	}
	return int(room / small)
}

// Weigh makes the weights of a ledger. A pod without a priority never ends. The room may be
// more than what the pod is offered in the end, as where some is reserved.
func Weigh(ledger *v1alpha1.SliceLedger, room Room, priority func(types.UID) (int32, bool)) *Weights {
	w := &Weights{}
	known, on := map[types.UID]int32{}, map[types.UID]int{}
	all := func(pod types.UID) bool { _, ok := known[pod]; return ok }
	for i := range ledger.Spec.Devices {
		for j := range ledger.Spec.Devices[i].Slices {
			pod := ledger.Spec.Devices[i].Slices[j].Pod
			if p, ok := priority(pod); ok {
				known[pod] = p
			}
		}
	}
	now, most := room(ledger), room(grants.Without(ledger, all))
	if most == nil {
		return w
	}
	for d := range most.Devices {
		dev := weights{now: now.Device(most.Devices[d].UUID), most: &most.Devices[d]}
		held := map[types.UID]placement.Amount{}
		for i := range ledger.Spec.Devices {
			if ledger.Spec.Devices[i].UUID != dev.most.UUID {
				continue
			}
			for j := range ledger.Spec.Devices[i].Slices {
				if s := &ledger.Spec.Devices[i].Slices[j]; all(s.Pod) {
					held[s.Pod] = held[s.Pod].Plus(placement.AmountOf(s))
				}
			}
		}
		of := map[int32]level{}
		for pod, a := range held {
			one := level{known[pod], 1, a, a, a}
			if l, ok := of[one.priority]; ok {
				one = one.and(l)
			}
			of[one.priority] = one
			on[pod]++
			w.span = max(w.span, on[pod])
		}
		for _, l := range of {
			dev.levels = append(dev.levels, l)
		}
		slices.SortFunc(dev.levels, func(a, b level) int { return cmp.Compare(a.priority, b.priority) })
		for i := 1; i < len(dev.levels); i++ {
			dev.levels[i] = dev.levels[i].and(dev.levels[i-1])
		}
		w.devices = append(w.devices, dev)
	}
	return w
}

// Bound is a cost that no choice on the node falls below, where victims have a priority below
// that. It is false where no choice can make room. Gangs and budgets only make choices
// dearer. Of no Pods it is where the demand may fit as it is.
func (w *Weights) Bound(demand *placement.Demand, below int32) (Cost, bool) {
	bound := None
	for i := range demand.Containers {
		cost, ok := w.bound(demand, i, below)
		if !ok {
			return Cost{}, false
		}
		if cost.Compare(bound) > 0 {
			bound = cost
		}
	}
	return bound, true
}

// lacking is a device, what it lacks, and the priority up to which pods have to end for that.
type lacking struct {
	on *weights
	// least is how much at the least; all is set where nothing may stay.
	least placement.Amount
	all   bool
	from  int32
}

// bound looks at the container at i alone or, with SameGPU, at all of them on one device.
func (w *Weights) bound(demand *placement.Demand, i int, below int32) (Cost, bool) {
	var buffer [v1alpha1.MaxDevices]lacking
	able := buffer[:0]
	for d := range w.devices {
		if l, ok := w.devices[d].lack(demand, i); ok && (l.from < below || l.from == math.MinInt32) {
			able = append(able, l)
		}
	}
	k := int(demand.Containers[i].Share.GPUs)
	if len(able) < k {
		return Cost{}, false
	}
	slices.SortFunc(able, func(a, b lacking) int { return cmp.Compare(a.from, b.from) })
	cost := Cost{Priority: able[k-1].from}
	// Of a priority that is needed somewhere the pods are there everywhere.
	var counts [v1alpha1.MaxDevices]int
	pods := counts[:0]
	for _, l := range able {
		if l.from <= cost.Priority {
			pods = append(pods, l.pods(cost.Priority))
		}
	}
	slices.Sort(pods)
	sum := 0
	for _, n := range pods[:k] {
		sum += n
	}
	cost.Pods = max(pods[k-1], (sum+w.span-1)/max(w.span, 1))
	return cost, true
}

// lack is what the device lacks for the container at i, or for all with SameGPU; false where they
// can't be on it, whatever ends.
func (w *weights) lack(demand *placement.Demand, i int) (lacking, bool) {
	l := lacking{on: w, from: math.MinInt32}
	need, ok := demand.Need(i, w.most)
	if !ok {
		return l, false
	}
	if w.now != nil {
		_, may := demand.Need(i, w.now)
		l.all = !may
	}
	switch {
	case l.all:
	case w.now == nil:
		l.least = placement.Amount{Slots: 1}
	default:
		l.least = need.Minus(w.now.Free()).Most(placement.Amount{})
		// A device in MIG mode may have the room and no place.
		if l.least == (placement.Amount{}) && w.now.Cut != nil {
			one := *demand
			if !demand.SameGPU {
				one.Containers, one.Topology = demand.Containers[i:i+1], v1alpha1.TopologyRequest{}
			}
			if !placement.Fits(&one, &placement.Node{Devices: []placement.Device{*w.now}}) {
				l.least = placement.Amount{Slots: 1}
			}
		}
		if l.least == (placement.Amount{}) {
			return l, true
		}
	}
	at := -1
	if !l.all {
		at = slices.IndexFunc(w.levels, func(v level) bool { return l.least.Fits(v.sum) })
	}
	if at < 0 {
		// The last slice gone may give more than the slices add up to.
		l.all, at = true, len(w.levels)-1
	}
	if at < 0 || !need.Fits(w.most.Free()) {
		return l, false
	}
	l.from = w.levels[at].priority
	return l, true
}

// pods is how many have to end at the least, where those up to the priority may.
func (l *lacking) pods(priority int32) int {
	if l.from == math.MinInt32 && !l.all && l.least == (placement.Amount{}) {
		return 0
	}
	at := len(l.on.levels)
	for at > 0 && l.on.levels[at-1].priority > priority {
		at--
	}
	if l.all {
		return l.on.levels[at-1].pods
	}
	return l.on.levels[at-1].count(l.least)
}
