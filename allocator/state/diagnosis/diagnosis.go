// SPDX-License-Identifier: Apache-2.0

// Package diagnosis says why a pod cannot be placed: a cause, and a sentence with its figures.
// The scheduler makes a Diagnosis of what its filters said, others of what they see. It keeps no
// state, and does not link the scheduler: the webhook uses it too.
package diagnosis

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"slices"
	"strings"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/v1alpha1"
)

// Reasons counts nodes by what the scheduler has against them.
type Reasons map[string]int

// Add counts a node.
func (r Reasons) Add(of []string) {
	for _, reason := range of {
		r[reason]++
	}
}

// AgainstSelector and AgainstTaint begin reasons; the selector or the taint follows.
const (
	AgainstSelector = "node(s) didn't match node selector "
	AgainstTaint    = "node(s) had untolerated taint "
)

// shownReasons bounds the reasons of a sentence: each node may have a taint of its own.
const shownReasons = 5

// String lists the reasons as the scheduler does, the most frequent first.
func (r Reasons) String() string {
	list := slices.SortedFunc(maps.Keys(r), func(a, b string) int {
		return cmp.Or(cmp.Compare(r[b], r[a]), strings.Compare(a, b))
	})
	for i, reason := range list[:min(shownReasons, len(list))] {
		list[i] = fmt.Sprintf("%d %s", r[reason], reason)
	}
	return v1alpha1.NamesText(list, shownReasons)
}

// kinds are the reasons without the selector or the taint that they name.
func (r Reasons) kinds() []string {
	all := map[string]bool{}
	for reason := range r {
		for _, kind := range []string{AgainstSelector, AgainstTaint} {
			if strings.HasPrefix(reason, kind) {
				reason = kind
			}
		}
		all[reason] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// Diagnosis is why a pod cannot be placed.
type Diagnosis struct {
	// Refused is how many nodes have the devices and the scheduler would not take, for Reasons.
	// Unasked of them lack CPU or memory and were not asked for theirs.
	Refused, Unasked int
	Reasons          Reasons
	// Devices is what the other nodes lack.
	Devices placement.Shortfall
	// Excluded is how many nodes lack the devices and may not be the pod's either, for ExcludedFor.
	// They are counted by Of alone.
	Excluded    int
	ExcludedFor Reasons
	// Withheld says what is not granted now of nodes and GPUs, empty for nothing. WouldDo says that
	// some of that would do for the pod.
	Withheld string
	WouldDo  bool
	// Labels are those of which the pod needs the same values as its gang, and that no node with
	// GPUs has. Beside are the nodes of its running members.
	Labels, Beside []string
}

// Of is why none of the nodes takes a pod with the demand; nil where one would. The refusals are what
// the scheduler has against a node, none for nothing.
func Of(demand *placement.Demand, nodes iter.Seq[*placement.Node], refusals func(node string) []string) *Diagnosis {
	d := &Diagnosis{Reasons: Reasons{}, ExcludedFor: Reasons{}}
	var without []*placement.Node
	for node := range nodes {
		fits, against := placement.Fits(demand, node), refusals(node.Name)
		switch {
		case len(against) == 0 && fits:
			return nil
		case len(against) == 0:
			without = append(without, node)
		case fits:
			d.Refused++
			d.Reasons.Add(against)
		default:
			d.Excluded++
			d.ExcludedFor.Add(against)
		}
	}
	d.Devices = placement.Explain(demand, without)
	return d
}

// Key is what does not change with the figures.
func (d *Diagnosis) Key() string {
	if len(d.Labels) > 0 {
		return "no label " + strings.Join(d.Labels, ", ")
	}
	if d.Refused > 0 {
		return "refused " + strings.Join(d.Reasons.kinds(), ", ")
	}
	return "short of " + d.Devices.Container
}

// Cause is what kind of thing keeps the pod waiting.
func (d *Diagnosis) Cause() cause.Cause {
	of, _ := d.explain()
	return of
}

// String is the sentence.
func (d *Diagnosis) String() string {
	_, text := d.explain()
	if d.Withheld == "" {
		return text
	}
	return text + "; " + d.Withheld
}

func (d *Diagnosis) explain() (cause.Cause, string) {
	labels := strings.Join(d.Labels, ", ")
	if len(d.Beside) > 0 {
		return cause.NoNodeLabel, fmt.Sprintf("no node that takes slices has the value of label %s that the nodes of its running members have: %s", labels, strings.Join(d.Beside[:min(3, len(d.Beside))], ", "))
	} else if len(d.Labels) > 0 {
		return cause.NoNodeLabel, fmt.Sprintf("no node that takes slices has label %s, as schedulingConstraints.topology of its group asks for: label the nodes, or correct the key", labels)
	}
	of, text := d.Devices.Cause(), d.Devices.String()
	if d.Refused == 0 {
		switch {
		case d.WouldDo || of == cause.NoGPU && d.Withheld != "":
			return cause.NotGranted, text
		case of == cause.NoGPU && d.Excluded > 0:
			return cause.SchedulerRefuses, fmt.Sprintf("it may go to none of the %d node(s) with GPUs: %s", d.Excluded, d.ExcludedFor)
		case d.Excluded > 0:
			text += fmt.Sprintf("; it may not go to %d more node(s): %s", d.Excluded, d.ExcludedFor)
		}
		return of, text
	}
	refused := fmt.Sprintf("%d node(s) have the devices, but the scheduler would refuse them: %s", d.Refused, d.Reasons)
	if d.Unasked > 0 {
		refused += fmt.Sprintf(", and %d more that lack CPU or memory", d.Unasked)
	}
	if d.Devices.Devices > 0 {
		refused += "; elsewhere: " + text
	}
	return cause.SchedulerRefuses, refused
}

// OfGang is the cause of a gang by that of a member: the gang's own where more room would help.
func OfGang(member cause.Cause) cause.Cause {
	if member == cause.Insufficient || member == cause.Reserved || member == cause.Topology {
		return cause.GangNoRoom
	}
	return member
}
