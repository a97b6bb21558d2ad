// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Choice is what a reader asked to see.
type Choice struct {
	// Query is part of a node's, model's, workload's or pod's name.
	Query string
	// Only, Sort and By are of the values below.
	Only, Sort, By string
	Page           int
}

// What GPUs may be chosen; empty is all of them.
const (
	onlyFragments = "fragments" // in use, and not full
	onlyEmpty     = "empty"
	onlyTrouble   = "trouble"
)

// What nodes are sorted by; empty is their name.
const (
	sortFullest  = "fullest"
	sortEmptiest = "emptiest"
)

// What workloads are sorted by; empty is compute.
const (
	byMemory = "memory"
	byPods   = "pods"
	byName   = "name"
)

func choiceOf(values url.Values) Choice {
	among := func(key string, known ...string) string {
		if v := values.Get(key); slices.Contains(known, v) {
			return v
		}
		return ""
	}
	c := Choice{
		Query: strings.TrimSpace(values.Get("q")),
		Only:  among("only", onlyFragments, onlyEmpty, onlyTrouble),
		Sort:  among("sort", sortFullest, sortEmptiest),
		By:    among("by", byMemory, byPods, byName),
		Page:  1,
	}
	if n, err := strconv.Atoi(values.Get("page")); err == nil && n > 0 {
		c.Page = n
	}
	return c
}

// Narrow reports whether something less than everything was chosen.
func (c Choice) Narrow() bool { return c.Query != "" || c.Only != "" }

// Link is the address of another page of the same choice.
func (c Choice) Link(page int) string {
	c.Page = page
	return c.address()
}

// Order is the address of the same choice with the workloads sorted otherwise.
func (c Choice) Order(by string) string {
	c.By = by
	return c.address()
}

func (c Choice) address() string {
	return "?" + url.Values{"q": {c.Query}, "only": {c.Only}, "sort": {c.Sort}, "by": {c.By}, "page": {strconv.Itoa(c.Page)}}.Encode()
}

// Next is the address of the next page.
func (c Choice) Next() string { return c.Link(c.Page + 1) }

// Previous is the address of the page before.
func (c Choice) Previous() string { return c.Link(c.Page - 1) }

func (c Choice) named(text string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(c.Query))
}

// takes reports whether a GPU of a node is among what was chosen, and whose slices of it
// are: all of them where the node's or the GPU's own name was.
func (c Choice) takes(n *Node, g *GPU) (taken bool, whose func(*Part) bool) {
	switch c.Only {
	case onlyFragments:
		if g.Fill == 0 || g.Core.Free() == 0 && g.Mem.Free() == 0 {
			return false, nil
		}
	case onlyEmpty:
		if len(g.Parts) > 0 || g.Trouble != "" || n.Trouble != "" {
			return false, nil
		}
	case onlyTrouble:
		if g.Trouble == "" && n.Trouble == "" {
			return false, nil
		}
	}
	if c.named(n.Name) || c.named(g.Model) || c.named(g.UUID) {
		return true, func(*Part) bool { return true }
	}
	whose = func(p *Part) bool { return c.named(p.Owner) || c.named(p.Namespace+"/"+p.Workload) }
	return slices.ContainsFunc(g.Parts, func(p Part) bool { return whose(&p) }), whose
}

// sort brings nodes into the order that was chosen; they come by name.
func (c Choice) sort(nodes []Node) {
	full := func(n *Node) (percent float64) {
		for i := range n.GPUs {
			percent += max(n.GPUs[i].Core.Percent(), n.GPUs[i].Mem.Percent()) / float64(len(n.GPUs))
		}
		return percent
	}
	switch c.Sort {
	case sortFullest:
		slices.SortStableFunc(nodes, func(a, b Node) int { return cmp.Compare(full(&b), full(&a)) })
	case sortEmptiest:
		slices.SortStableFunc(nodes, func(a, b Node) int { return cmp.Compare(full(&a), full(&b)) })
	}
}
