// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/view"
)

// reasons counts nodes by the scheduler's reason.
type reasons map[string]int

func (r reasons) add(of []string) {
	for _, reason := range of {
		r[reason]++
	}
}

// String lists the reasons as the scheduler does, the most frequent first.
func (r reasons) String() string {
	list := slices.SortedFunc(maps.Keys(r), func(a, b string) int {
		return cmp.Or(cmp.Compare(r[b], r[a]), strings.Compare(a, b))
	})
	for i, reason := range list {
		list[i] = fmt.Sprintf("%d %s", r[reason], reason)
	}
	return strings.Join(list, ", ")
}

// Diagnosis is why a pod cannot be placed.
type Diagnosis struct {
	// Known is true when the set waits already, for the same kind of thing, and it was
	// found out why a moment ago. Then nothing else is said.
	Known bool
	// Avoided is true where a node was left out for a moment, since the API server refused a write
	// of its ledger. No pod is to leave for this one.
	Avoided bool
	// refused is how many nodes have the devices and the scheduler would not take,
	// for reasons; unasked is how many of them lack CPU or memory and were not asked for
	// theirs. devices is what the others lack.
	refused int
	unasked int
	reasons reasons
	devices placement.Shortfall
	// withheld says what is not granted now of nodes and GPUs, empty for nothing.
	withheld string
	// unlabelled are labels that no node with GPUs has all of, where the pod needs them.
	unlabelled Within
}

// Cause is what does not change with the figures.
func (d *Diagnosis) Cause() string {
	if len(d.unlabelled.Keys) > 0 {
		return "no label " + d.unlabelled.Text()
	}
	if d.refused > 0 {
		return "refused " + strings.Join(slices.Sorted(maps.Keys(d.reasons)), ", ")
	}
	return "short of " + d.devices.Container
}

func (d *Diagnosis) String() string {
	if d.withheld == "" {
		return d.lacks()
	}
	return d.lacks() + "; " + d.withheld
}

func (d *Diagnosis) lacks() string {
	if w := d.unlabelled; len(w.Nodes) > 0 {
		return fmt.Sprintf("no node that takes slices has the value of label %s that the nodes of its running members have: %s", w.Text(), strings.Join(w.Nodes[:min(3, len(w.Nodes))], ", "))
	} else if len(w.Keys) > 0 {
		return fmt.Sprintf("no node that takes slices has label %s, as schedulingConstraints.topology of its group asks for: label the nodes, or correct the key", w.Text())
	}
	text := d.devices.String()
	if d.refused == 0 {
		return text
	}
	refused := fmt.Sprintf("%d node(s) have the devices, but %s%s", d.refused, view.RefusedNodes, d.reasons)
	if d.unasked > 0 {
		refused += fmt.Sprintf(", and %d more that lack CPU or memory", d.unasked)
	}
	if d.devices.Devices == 0 {
		return refused
	}
	return refused + "; elsewhere: " + text
}

// Refused reports whether there are devices, on nodes that the scheduler would refuse.
func (d *Diagnosis) Refused() bool { return d.refused > 0 }
