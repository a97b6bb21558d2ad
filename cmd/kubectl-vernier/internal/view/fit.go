// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"

	ledgers "vernier.dev/vernier/allocator/index"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// NodeClass is nodes with the same GPUs, and what they have for a pod.
type NodeClass struct {
	// GPUs of each node, such as "8 x NVIDIA A100-SXM4-80GB".
	GPUs  string `json:"gpus"`
	Nodes int    `json:"nodes"`
	// NotReady of them grant nothing now.
	NotReady int `json:"notReady,omitempty"`
	// Fits are the nodes with room, best first.
	Fits []Fitting `json:"fits"`
	// Reason why there is none.
	Reason string `json:"reason,omitempty"`
}

// Fitting is a node with room for a pod, and the devices that it would get there.
type Fitting struct {
	Node    string          `json:"node"`
	Devices []FittingDevice `json:"devices"`
}

// FittingDevice is one container's part of one device.
type FittingDevice struct {
	Container string           `json:"container"`
	GPU       int32            `json:"gpu"`
	UUID      string           `json:"uuid"`
	Core      v1alpha1.Percent `json:"core"`
	Mem       v1alpha1.MiB     `json:"memMiB"`
}

// Fit looks for room, class by class. It counts what the ledgers leave, and nothing
// that only the scheduler knows of nodes.
func Fit(demand *placement.Demand, all []v1alpha1.SliceLedger) []NodeClass {
	classes := []NodeClass{}
	rooms, of := map[string][]*placement.Node{}, map[string][]*v1alpha1.SliceLedger{}
	for i := range all {
		gpus := gpusOf(&all[i])
		at := slices.IndexFunc(classes, func(c NodeClass) bool { return c.GPUs == gpus })
		if at < 0 {
			classes, at = append(classes, NodeClass{GPUs: gpus, Fits: []Fitting{}}), len(classes)
		}
		classes[at].Nodes++
		of[gpus] = append(of[gpus], &all[i])
		if room := ledgers.Room(&all[i]); room != nil {
			rooms[gpus] = append(rooms[gpus], room)
		} else {
			classes[at].NotReady++
		}
	}
	for i := range classes {
		c := &classes[i]
		for _, plan := range placement.Rank(demand, rooms[c.GPUs]) {
			f := Fitting{Node: plan.Node}
			for _, g := range plan.Grants {
				f.Devices = append(f.Devices, FittingDevice{g.Container, g.Index, g.UUID, g.Core, g.Mem})
			}
			c.Fits = append(c.Fits, f)
		}
		switch {
		case len(c.Fits) > 0:
		case c.NotReady == c.Nodes:
			c.Reason = ledgers.Withheld(slices.Values(of[c.GPUs]))
		default:
			c.Reason = placement.Explain(demand, rooms[c.GPUs]).String()
			if withheld := ledgers.Withheld(slices.Values(of[c.GPUs])); withheld != "" {
				c.Reason += "; " + withheld
			}
		}
	}
	return classes
}

// gpusOf names a node's GPUs, by model in their order.
func gpusOf(l *v1alpha1.SliceLedger) string {
	var models []string
	count := map[string]int{}
	for _, d := range l.Status.Devices {
		if count[d.Model] == 0 {
			models = append(models, d.Model)
		}
		count[d.Model]++
	}
	for i, model := range models {
		models[i] = fmt.Sprintf("%d x %s", count[model], model)
	}
	if len(models) == 0 {
		return "no GPU"
	}
	return strings.Join(models, ", ")
}

// FitTable has a row for each class of nodes.
func FitTable(classes []NodeClass) Table {
	t := Table{header: []string{"NODES", "GPUS", "ROOM-ON", "BEST", "DEVICES", "REASON"}}
	for _, c := range classes {
		best, devices := "", ""
		if len(c.Fits) > 0 {
			best = c.Fits[0].Node
			var parts []string
			for _, d := range c.Fits[0].Devices {
				parts = append(parts, fmt.Sprintf("%s: GPU %d", d.Container, d.GPU))
			}
			devices = strings.Join(parts, ", ")
		}
		t.rows = append(t.rows, []string{number(v1alpha1.MiB(c.Nodes)), c.GPUs, number(v1alpha1.MiB(len(c.Fits))), best, devices, c.Reason})
	}
	return t
}

// Fitted is a pod in a manifest, and the room that there is for it.
type Fitted struct {
	ExplainedPod
	Classes []NodeClass `json:"classes"`
}

// Heading says the outcome in a line.
func (f Fitted) Heading() string {
	switch room := f.Room(); {
	case f.Verdict == VerdictRefused:
		var why []string
		for _, r := range f.Refusals {
			why = append(why, strings.TrimPrefix(r.Field+": "+r.Message, ": "))
		}
		return f.Name() + ": would be refused: " + strings.Join(why, "; ")
	case f.Verdict == VerdictUntouched:
		return f.Name() + ": asks for nothing that Vernier gives"
	case room == 0:
		return f.Name() + ": would wait, no node has the room"
	case room == 1:
		return f.Name() + ": fits now, on 1 node"
	default:
		return fmt.Sprintf("%s: fits now, on %d nodes", f.Name(), room)
	}
}

// Room is on how many nodes there is room for the pod.
func (f Fitted) Room() int {
	room := 0
	for _, c := range f.Classes {
		room += len(c.Fits)
	}
	return room
}
