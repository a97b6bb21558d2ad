// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/allocator/scheduling/leaving"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/bench/placement/trace"
)

// reservation is what is kept for the first of the line.
type reservation struct {
	owner   *pod
	node    int
	devices uint64
	leaving map[int]bool
	until   time.Time
}

// reserve finds the room that the first of the line waits for.
func (s *waiting) reserve() {
	p := s.line[0]
	wait, node, ok := s.earliest(p.class)
	if !ok {
		s.refused = true
		return
	}
	held := &reservation{owner: p, node: node, leaving: map[int]bool{}}
	if wait.Cost.Priority != backfill.Unknown {
		held.until = at(s.now).Add(time.Duration(wait.Cost.Priority) * time.Second)
	}
	for _, g := range wait.Plan.Grants {
		held.devices |= 1 << g.Index
	}
	for _, uid := range wait.Victims {
		id, _ := strconv.Atoi(string(uid))
		held.leaving[id] = true
		s.remains = max(s.remains, s.hosts[node].pods[id].end-s.now)
	}
	s.waits.Reserved++
	s.waits.Bound = max(s.waits.Bound, s.ReserveAfter+s.remains)
	s.held = held
	s.hide(node)
	s.wake()
}

func (s *waiting) earliest(class int) (best leaving.Choice, node int, ok bool) {
	c := &s.w.Classes[class]
	demand := &placement.Demand{Policy: v1alpha1.PolicyPack, Containers: []placement.Container{{
		Name: "c", Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: v1alpha1.DeviceCount(c.GPUs), MemMiB: v1alpha1.MiB(c.Milli)},
	}}}
	for i, h := range s.hosts {
		if h.GPUs < c.GPUs || !trace.Allows(c.Spec, h.Model) {
			continue
		}
		ledger, ends := s.ledger(h)
		room := func(l *v1alpha1.SliceLedger) *placement.Node { return s.room(h, c, l) }
		wait, fits := backfill.Earliest(demand, ledger, room, func(uid types.UID) (time.Duration, bool) {
			end, known := ends[uid]
			return end.Sub(at(s.now)), known
		})
		if fits && (!ok || wait.Cost.Compare(best.Cost) < 0) {
			best, node, ok = wait, i, true
		}
	}
	return best, node, ok
}

// ledger is a node's, with a MiB for each thousandth of a device.
func (s *waiting) ledger(h *host) (*v1alpha1.SliceLedger, map[types.UID]time.Time) {
	l := &v1alpha1.SliceLedger{}
	l.Name = h.Name
	for d := range h.free {
		uuid := strconv.Itoa(d)
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: uuid, Index: int32(d), Mem: trace.Whole})
		l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: uuid, Core: v1alpha1.WholeGPU, Mem: trace.Whole})
	}
	ends := map[types.UID]time.Time{}
	for id, p := range h.pods {
		uid := types.UID(strconv.Itoa(id))
		for d := range h.free {
			if p.devices>>d&1 == 1 {
				on := &l.Spec.Devices[d]
				on.Slices = append(on.Slices, v1alpha1.Slice{Pod: uid, Mem: v1alpha1.MiB(s.w.Classes[p.class].Milli)})
			}
		}
		if s.EndsKnown {
			ends[uid] = at(p.end)
		}
	}
	return l, ends
}

// room is what a ledger leaves of a node; nil where the host lacks what the class needs.
func (s *waiting) room(h *host, c *trace.Class, l *v1alpha1.SliceLedger) *placement.Node {
	n := &placement.Node{Name: h.Name}
	stay := map[int]bool{}
	for i := range l.Spec.Devices {
		d := placement.Device{UUID: l.Spec.Devices[i].UUID, Index: int32(i), Mem: trace.Whole, FreeMem: trace.Whole, Slots: v1alpha1.MaxSlicesPerDevice}
		for _, slice := range l.Spec.Devices[i].Slices {
			id, _ := strconv.Atoi(string(slice.Pod))
			stay[id] = true
			d.FreeMem -= slice.Mem
			d.Slots--
		}
		n.Devices = append(n.Devices, d)
	}
	cpu, mem := h.CPU, h.Mem
	for id, p := range h.pods {
		if p.devices != 0 && !stay[id] {
			cpu += s.w.Classes[p.class].CPU
			mem += s.w.Classes[p.class].Mem
		}
	}
	if cpu < c.CPU || mem < c.Mem {
		return nil
	}
	return n
}

// hide keeps what is reserved on the node, and not visible to others, from the policy.
func (s *waiting) hide(node int) {
	if s.held == nil || s.held.node != node {
		return
	}
	h, c := s.hosts[node], &s.w.Classes[s.held.owner.class]
	leaving := host{free: make([]int, len(h.free))}
	for id := range s.held.leaving {
		if p := h.pods[id]; p != nil {
			leaving.take(&s.w.Classes[p.class], p.devices, -1)
		}
	}
	devices := make([]int, len(h.free))
	for d := range devices {
		if s.held.devices>>d&1 == 1 {
			devices[d] = h.free[d] - visible(h.free[d], leaving.free[d], c.Milli)
		}
	}
	s.policy.Hide(node, trace.Node{
		CPU: h.CPU - visible(h.CPU, leaving.CPU, c.CPU),
		Mem: h.Mem - visible(h.Mem, leaving.Mem, c.Mem),
	}, devices)
}

// show hides nothing.
func (s *waiting) show() {
	s.policy.Hide(s.held.node, trace.Node{}, make([]int, len(s.hosts[s.held.node].free)))
}

// visible is how much of an amount others see of which some is reserved for one that waits for
// what leaves.
func visible[T int | int64](free, leaving, reserved T) T {
	return min(free, max(0, free+leaving-reserved))
}
