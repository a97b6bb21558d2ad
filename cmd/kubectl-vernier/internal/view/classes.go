// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	ledgers "vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/fleet"
)

// Class is a GPUClass, and how many units of it there are.
type Class struct {
	Name   string           `json:"name"`
	Models []string         `json:"models"`
	Unit   v1alpha1.GPUUnit `json:"unit"`
	Mode   v1alpha1.Mode    `json:"mode"`
	// Topology is empty where the class says none.
	Topology string `json:"topology,omitempty"`
	// Capacity is what healthy GPUs of its models amount to. Free is what would fit now, by
	// containers of one unit each; other pods have the rest.
	Capacity int64 `json:"capacity"`
	Free     int64 `json:"free"`
	// Granted is what pods have that ask for the class; nil where the user may not read them.
	Granted *int64 `json:"granted,omitempty"`
	// Earlier of these are of another unit: the class was deleted and made again since.
	Earlier int64 `json:"grantedEarlier,omitempty"`
	// Unavailable is why no GPU of the cluster could serve the class; empty where one could.
	Unavailable string `json:"unavailable,omitempty"`
}

// classOn is a class on a node.
type classOn struct{ class, node string }

// Classes says how many units there are of each class, by name. Pods are those of all
// namespaces; without these it is not known what is granted.
func Classes(list []v1alpha1.GPUClass, all []v1alpha1.SliceLedger, pods []corev1.Pod, withPods bool) []Class {
	known, granted, earlier, on := classes.Of(list...), map[string]int64{}, map[string]int64{}, map[classOn]int64{}
	for i := range pods {
		p := &pods[i]
		if podstate.Gated(p) || !podrequest.Placed(p) || podstate.Terminal(p) {
			continue
		}
		for class, n := range podrequest.Units(p) {
			granted[class] += n.Value()
			on[classOn{class, podstate.TargetNode(p)}] += n.Value()
			if of := known.Get(class); of != nil && !ofUnit(p, of) {
				earlier[class] += n.Value()
			}
		}
	}
	out := []Class{}
	for i := range list {
		spec := &list[i].Spec
		c := Class{Name: list[i].Name, Models: spec.Models, Unit: spec.Unit, Mode: cmp.Or(spec.Mode, v1alpha1.ModeAuto), Topology: spec.Topology}
		if of := known.Get(c.Name); of != nil {
			c.count(of, all, on)
		}
		if is := model.Available(&list[i], known, all); is.Status == metav1.ConditionFalse {
			c.Unavailable = is.Message
		}
		if withPods {
			n := granted[c.Name]
			c.Granted, c.Earlier = &n, earlier[c.Name]
		}
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b Class) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// ofUnit reports whether the pod has what its units of the class are now.
func ofUnit(p *corev1.Pod, of *classes.Class) bool {
	r := podrequest.Of(p)
	return r.SharesErr != nil || !slices.ContainsFunc(r.Containers, func(c podrequest.Container) bool {
		share, err := of.Unit.Share(c.Units)
		return c.Class == of.Name && (err != nil || share != r.Shares[c.Name])
	})
}

// count adds up the units of the nodes. on are those that pods have.
func (c *Class) count(of *classes.Class, all []v1alpha1.SliceLedger, on map[classOn]int64) {
	for i := range all {
		var seen, healthy []v1alpha1.MiB
		for _, d := range all[i].Status.Devices {
			if of.Models.Allows(d.Model) {
				seen = append(seen, d.Mem)
				if d.Healthy {
					healthy = append(healthy, d.Mem)
				}
			}
		}
		c.Capacity += c.Unit.On(healthy...)
		room := ledgers.Room(&all[i])
		if room == nil {
			continue
		}
		fit := int64(0)
		for _, d := range room.Devices {
			if !of.Models.Allows(d.Model) {
				continue
			}
			n := int64(d.FreeCore / c.Unit.Core)
			if mem, err := (v1alpha1.Share{MemMiB: c.Unit.MemMiB, MemPercent: c.Unit.Core}).Memory(d.Mem); err == nil && mem > 0 {
				n = min(n, int64(max(0, d.FreeMem)/mem))
			}
			fit += min(n, int64(d.Slots))
		}
		// The scheduler counts units, of whatever size they were when they were granted.
		c.Free += min(fit, max(c.Unit.On(seen...)-on[classOn{c.Name, all[i].Name}], 0))
	}
}

// ClassTable has a row for each class.
func ClassTable(all []Class) Table {
	t := Table{header: []string{"NAME", "MODELS", "CORE(%)/UNIT", "MEM/UNIT", "MODE", "TOPOLOGY", "CAPACITY", "GRANTED", "FREE"}}
	for i := range all {
		c := &all[i]
		mem, granted := number(c.Unit.Core)+" %", ""
		if c.Unit.MemMiB > 0 {
			mem = number(c.Unit.MemMiB) + " MiB"
		}
		if c.Granted != nil {
			granted = strconv.FormatInt(*c.Granted, 10)
		}
		if c.Earlier > 0 {
			granted += fmt.Sprintf(" (%d of an earlier unit)", c.Earlier)
		}
		t.rows = append(t.rows, []string{c.Name, strings.Join(c.Models, ","), number(c.Unit.Core), mem, string(c.Mode), c.Topology,
			strconv.FormatInt(c.Capacity, 10), granted, strconv.FormatInt(c.Free, 10)})
	}
	return t
}

// RoomTable has a row for each class of which the webhook says how much room there is.
func RoomTable(rooms []fleet.Room) Table {
	t := Table{header: []string{"NAME", "FREE", "REASON"}}
	for _, room := range rooms {
		free := strconv.Itoa(room.Pods)
		if room.Pods == fleet.MaxPods {
			free += " or more"
		}
		t.rows = append(t.rows, []string{room.Class, free, room.Why})
	}
	return t
}
