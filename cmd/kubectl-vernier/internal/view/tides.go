// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// Tide is a tide as the allocator says that it is.
type Tide struct {
	Name string `json:"name"`
	// Nodes are how many have it in their ledger; nil where the user may not read them.
	Nodes *int `json:"nodes,omitempty"`
	Open  bool `json:"open"`
	// Until is when an open one ends, Next when a shut one opens.
	Until   *metav1.Time         `json:"until,omitempty"`
	Next    *metav1.Time         `json:"next,omitempty"`
	Lend    v1alpha1.TideAmounts `json:"lend"`
	Outside v1alpha1.TideAmounts `json:"outside"`
	// Note is why it does not open; empty where it does.
	Note string `json:"note,omitempty"`
}

// Tides are these tides by name. Without ledgers it is not known on how many nodes they are.
func Tides(list []v1alpha1.Tide, all []v1alpha1.SliceLedger, withLedgers bool) []Tide {
	nodes := map[string]int{}
	for i := range all {
		if t := all[i].Spec.Tide; t != nil {
			for _, name := range t.Tides {
				nodes[name]++
			}
		}
	}
	out := []Tide{}
	for i := range list {
		s := &list[i].Status
		t := Tide{Name: list[i].Name, Open: s.Open, Until: s.Until, Next: s.Next, Lend: list[i].Spec.Lend, Outside: list[i].Spec.Outside}
		if withLedgers {
			n := nodes[t.Name]
			t.Nodes = &n
		}
		switch is := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionAccepted); {
		case is == nil || is.ObservedGeneration < list[i].Generation:
			t.Note = "the allocator has not read it yet"
		case is.Status != metav1.ConditionTrue:
			t.Note = is.Message
		}
		out = append(out, t)
	}
	slices.SortFunc(out, func(a, b Tide) int { return strings.Compare(a.Name, b.Name) })
	return out
}

// TideTable has a row for each tide, with compute/memory.
func TideTable(tides []Tide) Table {
	t := Table{header: []string{"NAME", "NODES", "OPEN", "UNTIL", "NEXT", "LEND(%)", "OUTSIDE(%)", "NOTE"}}
	percents := func(a v1alpha1.TideAmounts) string { return number(a.Core) + "/" + number(a.Mem) }
	when := func(at *metav1.Time) string {
		if at == nil {
			return ""
		}
		return at.UTC().Format(time.RFC3339)
	}
	for i := range tides {
		is := &tides[i]
		nodes, open := "", "no"
		if is.Nodes != nil {
			nodes = strconv.Itoa(*is.Nodes)
		}
		if is.Open {
			open = "yes"
		}
		t.rows = append(t.rows, []string{is.Name, nodes, open, when(is.Until), when(is.Next), percents(is.Lend), percents(is.Outside), is.Note})
	}
	return t
}
