// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"slices"
	"strings"

	"vernier.dev/vernier/allocator/placement"
	ledgers "vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/v1alpha1"
)

// NodeClass is nodes with the same GPUs, and what they have for a pod.
type NodeClass struct {
	// GPUs of each node, such as "8 x NVIDIA A100-SXM4-80GB".
	GPUs  string `json:"gpus"`
	Nodes int    `json:"nodes"`
	// Serves are the GPUClasses, among the ones that the pod asks for, of which the nodes have a GPU.
	Serves []string `json:"serves,omitempty"`
	// NotReady of them grant nothing now.
	NotReady int `json:"notReady,omitempty"`
	// Refused of them have room, and the scheduler's filters refuse them.
	Refused int `json:"refused,omitempty"`
	// ReservedFor are the pods, as NAMESPACE/NAME, for which the allocator keeps room on the nodes.
	ReservedFor []string `json:"reservedFor,omitempty"`
	// Fits are the nodes with room, best first, without those that are refused.
	Fits []Fitting `json:"fits"`
	// Reason why there is none.
	Reason string `json:"reason,omitempty"`
}

// Fitting is a node with room for a pod, and the devices that it would get there.
type Fitting struct {
	Node string `json:"node"`
	// Topology is how near to each other these are, for a pod that asks for some topology.
	Topology v1alpha1.TopologyLevel `json:"topology,omitempty"`
	Devices  []FittingDevice        `json:"devices"`
}

// FittingDevice is one container's part of one device.
type FittingDevice struct {
	Container string           `json:"container"`
	GPU       int32            `json:"gpu"`
	UUID      string           `json:"uuid"`
	Core      v1alpha1.Percent `json:"core"`
	Mem       v1alpha1.MiB     `json:"memMiB"`
}

// FitIn looks for room, class by class, in what room shows of each ledger, nil
// where nothing is granted. The kept is for whom room is missing there. The
// refusals are the scheduler's reasons against a node, empty where there are none.
func FitIn(demand *placement.Demand, all []v1alpha1.SliceLedger, kept Kept, room func(*v1alpha1.SliceLedger) *placement.Node, refusals func(node string) string) []NodeClass {
	classes := []NodeClass{}
	rooms, of := map[string][]*placement.Node{}, map[string][]*v1alpha1.SliceLedger{}
	for i := range all {
		gpus := gpusOf(&all[i])
		at := slices.IndexFunc(classes, func(c NodeClass) bool { return c.GPUs == gpus })
		if at < 0 {
			classes, at = append(classes, NodeClass{GPUs: gpus, Serves: serves(demand, &all[i]), Fits: []Fitting{}}), len(classes)
		}
		classes[at].Nodes++
		classes[at].ReservedFor = append(classes[at].ReservedFor, kept.on(all[i].Name)...)
		of[gpus] = append(of[gpus], &all[i])
		if room := room(&all[i]); room != nil {
			rooms[gpus] = append(rooms[gpus], room)
		} else {
			classes[at].NotReady++
		}
	}
	for i := range classes {
		c := &classes[i]
		refused, first := map[string]bool{}, ""
		for _, plan := range placement.Rank(demand, rooms[c.GPUs]) {
			if text := refusals(plan.Node); text != "" {
				if c.Refused++; first == "" {
					first = plan.Node + ": " + text
				}
				refused[plan.Node] = true
				continue
			}
			f := Fitting{Node: plan.Node, Topology: plan.Level(demand)}
			for _, g := range plan.Grants {
				f.Devices = append(f.Devices, FittingDevice{g.Container, g.Index, g.UUID, g.Core, g.Mem})
			}
			c.Fits = append(c.Fits, f)
		}
		if len(c.Fits) > 0 {
			continue
		}
		var reasons []string
		without := slices.DeleteFunc(rooms[c.GPUs], func(n *placement.Node) bool { return refused[n.Name] })
		if c.Refused > 0 {
			reasons = append(reasons, fmt.Sprintf("the scheduler refuses %d node(s) with room, such as %s", c.Refused, first))
		}
		if len(without) > 0 || c.Refused == 0 && c.NotReady < c.Nodes {
			reasons = append(reasons, placement.Explain(demand, without).String())
		}
		if len(c.ReservedFor) > 0 {
			reasons = append(reasons, "room is reserved for "+some(c.ReservedFor))
		}
		if withheld := ledgers.Withheld(slices.Values(of[c.GPUs])); withheld != "" {
			reasons = append(reasons, withheld)
		}
		c.Reason = strings.Join(reasons, "; ")
	}
	return classes
}

// serves are the GPUClasses of the demand of which the node has a GPU.
func serves(demand *placement.Demand, l *v1alpha1.SliceLedger) (names []string) {
	for i := range demand.Containers {
		c := &demand.Containers[i]
		if c.Class != "" && !slices.Contains(names, c.Class) &&
			slices.ContainsFunc(l.Status.Devices, func(d v1alpha1.DeviceStatus) bool { return c.Models.Allows(d.Model) }) {
			names = append(names, c.Class)
		}
	}
	return names
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
	// Most pods ask for none.
	withServes := slices.ContainsFunc(classes, func(c NodeClass) bool { return len(c.Serves) > 0 })
	if withServes {
		t.header = slices.Insert(t.header, 2, "SERVES")
	}
	for _, c := range classes {
		best, devices := "", ""
		if len(c.Fits) > 0 {
			best = c.Fits[0].Node
			var parts []string
			for _, d := range c.Fits[0].Devices {
				parts = append(parts, fmt.Sprintf("%s: GPU %d", d.Container, d.GPU))
			}
			if devices = strings.Join(parts, ", "); c.Fits[0].Topology != "" {
				devices += " (" + string(c.Fits[0].Topology) + ")"
			}
		}
		row := []string{number(v1alpha1.MiB(c.Nodes)), c.GPUs, number(v1alpha1.MiB(len(c.Fits))), best, devices, c.Reason}
		if withServes {
			row = slices.Insert(row, 2, strings.Join(c.Serves, ","))
		}
		t.rows = append(t.rows, row)
	}
	return t
}

// Fitted is a pod in a manifest, and the room that there is for it and its copies.
type Fitted struct {
	ExplainedPod
	// File that it stands in.
	File string `json:"file,omitempty"`
	// Pods that the object makes at a time; StartNow of them would start now, on Nodes.
	Pods     int        `json:"pods"`
	StartNow int        `json:"startNow"`
	Nodes    []NodePods `json:"nodes"`
	// Gang of which it is, and why that would wait, if it would.
	Gang        string `json:"gang,omitempty"`
	GangLacking string `json:"gangLacking,omitempty"`
	// Cause is why the first pod that would wait does so, in a word, and Lacks in a sentence.
	Cause cause.Cause `json:"cause,omitempty"`
	Lacks string      `json:"lacks,omitempty"`
	// SchedulerAsked reports whether the scheduler's filters were asked.
	SchedulerAsked bool `json:"schedulerAsked"`
	// Classes of nodes as the first pod that would wait finds them, or where none would the first.
	Classes []NodeClass `json:"classes"`
}

// NodePods is how many of the pods would start on a node.
type NodePods struct {
	Node string `json:"node"`
	Pods int    `json:"pods"`
}

// OnNodes counts pods by node, in the order of the first on each.
func OnNodes(nodes []string) []NodePods {
	all := []NodePods{}
	for _, name := range nodes {
		if i := slices.IndexFunc(all, func(n NodePods) bool { return n.Node == name }); i >= 0 {
			all[i].Pods++
		} else {
			all = append(all, NodePods{name, 1})
		}
	}
	return all
}

// Waits is how many of the pods would wait or be refused.
func (f Fitted) Waits() int {
	if f.Verdict == VerdictUntouched {
		return 0
	}
	return f.Pods - f.StartNow
}

// Heading says the outcome in a line, with the file where asked.
func (f Fitted) Heading(withFile bool) string {
	name := f.Name()
	if withFile && f.File != "" {
		name = f.File + ": " + name
	}
	return name + ": " + f.outcome()
}

func (f Fitted) outcome() string {
	switch {
	case f.Verdict == VerdictRefused:
		var why []string
		for _, r := range f.Refusals {
			why = append(why, strings.TrimPrefix(r.Field+": "+r.Message, ": "))
		}
		return "would be refused: " + strings.Join(why, "; ")
	case f.Verdict == VerdictUntouched:
		return "asks for nothing that Vernier gives"
	case f.Pods == 0:
		return "makes no pods"
	case f.GangLacking != "":
		return "would wait for its gang: " + f.GangLacking
	case f.Pods == 1 && f.StartNow == 0:
		return "would wait: " + f.Lacks
	case f.Pods == 1 && f.room() == 0:
		return "fits now"
	case f.Pods == 1 && f.room() == 1:
		return "fits now, on 1 node"
	case f.Pods == 1:
		return fmt.Sprintf("fits now, on %d nodes", f.room())
	case f.StartNow == 0:
		return fmt.Sprintf("all of %d pods would wait: %s", f.Pods, f.Lacks)
	case f.StartNow == f.Pods:
		return fmt.Sprintf("all of %d pods fit now%s", f.Pods, f.where())
	default:
		return fmt.Sprintf("%d of %d pods fit now%s; %d would wait: %s", f.StartNow, f.Pods, f.where(), f.Pods-f.StartNow, f.Lacks)
	}
}

// where names the first nodes.
func (f Fitted) where() string {
	const most = 5
	var parts []string
	for i, n := range f.Nodes {
		if i == most {
			parts = append(parts, fmt.Sprintf("others on %d more nodes", len(f.Nodes)-most))
			break
		}
		parts = append(parts, fmt.Sprintf("%d on %s", n.Pods, n.Node))
	}
	if len(parts) == 0 {
		return ""
	}
	return ": " + strings.Join(parts, ", ")
}

// room is on how many nodes there is room for the pod; 0 also where the ledgers were not read.
func (f Fitted) room() int {
	room := 0
	for _, c := range f.Classes {
		room += len(c.Fits)
	}
	return room
}
