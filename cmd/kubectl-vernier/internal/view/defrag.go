// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	ledgers "vernier.dev/vernier/allocator/state/index"
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// Fragment is a GPU of which a part is granted, and what stands in the way of
// having it whole.
type Fragment struct {
	model.Device
	// Freeable: everything on it would fit elsewhere now.
	Freeable bool     `json:"freeable"`
	Holders  []Holder `json:"holders"`
}

// Holder is a pod's part of a fragment.
type Holder struct {
	Namespace string           `json:"namespace"`
	Pod       string           `json:"pod"`
	PodUID    types.UID        `json:"podUID"`
	Core      v1alpha1.Percent `json:"core"`
	Mem       v1alpha1.MiB     `json:"memMiB"`
	// To is where it would fit: NODE GPU INDEX; absent where that is nowhere.
	To string `json:"to,omitempty"`
	// Why it cannot move.
	Why string `json:"why,omitempty"`

	// needs is the room that it takes elsewhere.
	needs []placement.Container
}

// Defrag lists the fragments of all ledgers, those that take least to free first.
// Each is looked at alone: what would fit there if nothing else moved. It
// counts room only, not what the scheduler says of nodes.
func Defrag(all []v1alpha1.SliceLedger) []Fragment {
	rooms := make([]*placement.Node, len(all))
	spans := map[types.UID]int{}
	for i := range all {
		rooms[i] = ledgers.Room(&all[i])
		for d := range all[i].Spec.Devices {
			for _, pod := range podsOf(&all[i].Spec.Devices[d]) {
				spans[pod.PodUID]++
			}
		}
	}
	var found []Fragment
	for i := range all {
		granted := map[string]*v1alpha1.DeviceLedger{}
		for d := range all[i].Spec.Devices {
			granted[all[i].Spec.Devices[d].UUID] = &all[i].Spec.Devices[d]
		}
		for _, d := range model.DevicesOf(&all[i]) {
			whole := d.Core.Granted >= d.Core.Total && d.Mem.Granted >= d.Mem.Total
			if d.Health == model.HealthOK && d.Slices > 0 && !whole {
				found = append(found, fragment(d, granted[d.UUID], rooms, spans))
			}
		}
	}
	slices.SortStableFunc(found, func(a, b Fragment) int {
		switch {
		case a.Freeable && !b.Freeable:
			return -1
		case b.Freeable && !a.Freeable:
			return 1
		}
		return cmp.Or(cmp.Compare(a.use(), b.use()), cmp.Compare(a.Node, b.Node))
	})
	return found
}

// use is the greater of the two parts that are granted, in thousandths.
func (f Fragment) use() int64 {
	return max(int64(f.Core.Granted)*1000/int64(max(1, f.Core.Total)), int64(f.Mem.Granted)*1000/int64(max(1, f.Mem.Total)))
}

// podsOf adds up each pod's part of a device, the largest first: that is the
// hardest to move.
func podsOf(g *v1alpha1.DeviceLedger) []Holder {
	var all []Holder
	for _, s := range g.Slices {
		i := slices.IndexFunc(all, func(h Holder) bool { return h.PodUID == s.Pod })
		if i < 0 {
			namespace, pod, _ := strings.Cut(s.Owner, "/")
			all, i = append(all, Holder{Namespace: namespace, Pod: pod, PodUID: s.Pod}), len(all)
		}
		all[i].Core += s.Core - s.ReuseCore
		all[i].Mem += s.Mem - s.ReuseMem
		all[i].need(s)
	}
	slices.SortStableFunc(all, func(a, b Holder) int {
		return cmp.Or(cmp.Compare(b.Mem, a.Mem), cmp.Compare(b.Core, a.Core))
	})
	return all
}

// need adds a slice to the room that its pod takes elsewhere: an instance of its own,
// or its part of what the pod has in that mode, where what runs one after the other is
// counted once.
func (h *Holder) need(s v1alpha1.Slice) {
	mode := cmp.Or(s.Mode, v1alpha1.ModeLimiter)
	i := slices.IndexFunc(h.needs, func(c placement.Container) bool { return c.Mode == mode })
	if i < 0 || mode == v1alpha1.ModeMIG {
		h.needs, i = append(h.needs, placement.Container{Name: s.Ctr, Mode: mode, Share: v1alpha1.Share{GPUs: 1}}), len(h.needs)
	}
	h.needs[i].Share.Core += s.Core - s.ReuseCore
	h.needs[i].Share.MemMiB += s.Mem - s.ReuseMem
}

// fragment looks for room for everything on a device among all others.
func fragment(d model.Device, g *v1alpha1.DeviceLedger, rooms []*placement.Node, spans map[types.UID]int) Fragment {
	f := Fragment{Device: d, Freeable: true, Holders: podsOf(g)}
	others := make([]*placement.Node, len(rooms))
	for i, room := range rooms {
		others[i] = room
		if room != nil && room.Name == d.Node {
			others[i] = &placement.Node{Name: room.Name, Devices: slices.DeleteFunc(slices.Clone(room.Devices),
				func(dev placement.Device) bool { return dev.UUID == d.UUID })}
		}
	}
	for h := range f.Holders {
		holder := &f.Holders[h]
		if n := spans[holder.PodUID]; n > 1 {
			holder.Why = fmt.Sprintf("it has slices of %d GPUs", n)
		} else if holder.To = move(holder, d.Model, others); holder.To == "" {
			holder.Why = "no other GPU of its model in use has the room"
		}
		f.Freeable = f.Freeable && holder.To != ""
	}
	return f
}

// move finds room for a holder, an empty GPU last: taking that would free nothing.
// The room is taken for those who come after.
func move(h *Holder, model string, others []*placement.Node) string {
	demand := &placement.Demand{Policy: v1alpha1.PolicyPack, Containers: h.needs}
	for i, node := range others {
		if node == nil {
			continue
		}
		used := &placement.Node{Name: node.Name, Devices: slices.DeleteFunc(slices.Clone(node.Devices), func(dev placement.Device) bool {
			return dev.Model != model || dev.FreeCore == v1alpha1.WholeGPU && dev.FreeMem == dev.Mem
		})}
		if plan, ok := placement.Fit(demand, used); ok {
			others[i] = node.Without(&plan)
			return fmt.Sprintf("%s GPU %d", node.Name, plan.Grants[0].Index)
		}
	}
	return ""
}

// DefragTable has a row for each pod that stands in the way.
func DefragTable(all []Fragment) Table {
	t := Table{header: []string{"NODE", "IDX", "MODEL", "CORE(%)", "MEM(MiB)", "FREEABLE", "POD", "POD-CORE(%)", "POD-MEM(MiB)", "FITS-ON"}}
	for _, f := range all {
		freeable := "no"
		if f.Freeable {
			freeable = "yes"
		}
		for _, h := range f.Holders {
			to := h.To
			if to == "" {
				to = "-: " + h.Why
			}
			t.rows = append(t.rows, []string{f.Node, index(f.Index), f.Model, ratio(f.Core.Granted, f.Core.Total), ratio(f.Mem.Granted, f.Mem.Total),
				freeable, h.Namespace + "/" + h.Pod, number(h.Core), number(h.Mem), to})
		}
	}
	return t
}
