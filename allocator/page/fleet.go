// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"net/url"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// nodesPerPage bounds what is drawn in full; the map has every GPU.
const nodesPerPage = 20

// Fleet is what is shown.
type Fleet struct {
	Choice
	Totals Totals
	// Map is every node that was chosen, small; Nodes are those of this page.
	Map, Nodes []Node
	// Pages is how many there are.
	Pages int
	Waiting
}

// Totals of the whole fleet, whatever was chosen.
type Totals struct {
	Nodes, GPUs, Unfit, Empty, Slices int
	Core                              view.Core
	Mem                               view.Memory
}

// Node is a node with its GPUs.
type Node struct {
	Name string
	// Trouble says why nothing is granted there.
	Trouble string
	GPUs    []GPU
}

// GPU is one device and what is granted of it.
type GPU struct {
	view.Device
	// Trouble says why nothing is granted on it.
	Trouble string
	Parts   []Part
	// Fill is how full it is, from 0 to 10, by the side that is fuller.
	Fill int
}

// Name of a GPU on its node.
func (g *GPU) Name() string {
	if g.Index == nil {
		return "missing GPU"
	}
	return fmt.Sprintf("GPU %d", *g.Index)
}

// Part is what a container has of a GPU.
type Part struct {
	view.Slice
	Owner string
	// Hue numbers the namespace.
	Hue uint32
}

// Segment is one slice's part of a bar.
type Segment struct {
	*Part
	// Amount that it counts, and the percent of the bar that this is.
	Amount  int64
	Percent float64
}

// CoreBar is the compute side, cut into the slices' parts: what a slice reuses of its
// pod's other slices counts once.
func (g *GPU) CoreBar() []Segment {
	return bar(g.Parts, int64(g.Core.Total), func(s *view.Slice) int64 { return int64(s.Core - s.ReuseCore) })
}

// MemBar is the memory side.
func (g *GPU) MemBar() []Segment {
	return bar(g.Parts, int64(g.Mem.Total), func(s *view.Slice) int64 { return int64(s.Mem - s.ReuseMem) })
}

func bar(parts []Part, total int64, counted func(*view.Slice) int64) []Segment {
	var all []Segment
	for i := range parts {
		if n := counted(&parts[i].Slice); n > 0 {
			all = append(all, Segment{&parts[i], n, 100 * float64(n) / float64(total)})
		}
	}
	return all
}

// hues is how many there are in the style sheet.
const hues = 8

func hue(namespace string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(namespace)) // never fails
	return h.Sum32() % hues
}

// Choice is what a reader asked to see.
type Choice struct {
	// Query is part of a node's, model's or owner's name.
	Query string
	// Only is one of the values below.
	Only string
	Page int
}

// What may be chosen; empty is everything.
const (
	onlyFragments = "fragments" // in use, and not full
	onlyEmpty     = "empty"
	onlyTrouble   = "trouble"
)

func choiceOf(values url.Values) Choice {
	c := Choice{Query: strings.TrimSpace(values.Get("q")), Only: values.Get("only"), Page: 1}
	if !slices.Contains([]string{onlyFragments, onlyEmpty, onlyTrouble}, c.Only) {
		c.Only = ""
	}
	if n, err := strconv.Atoi(values.Get("page")); err == nil && n > 0 {
		c.Page = n
	}
	return c
}

// Link is the address of another page of the same choice.
func (c Choice) Link(page int) string {
	return "?" + url.Values{"q": {c.Query}, "only": {c.Only}, "page": {strconv.Itoa(page)}}.Encode()
}

// Next is the address of the next page.
func (c Choice) Next() string { return c.Link(c.Page + 1) }

// Previous is the address of the page before.
func (c Choice) Previous() string { return c.Link(c.Page - 1) }

// takes tells whether a GPU of a node is among what was chosen.
func (c Choice) takes(n *Node, g *GPU) bool {
	switch c.Only {
	case onlyFragments:
		if g.Fill == 0 || g.Core.Free() == 0 && g.Mem.Free() == 0 {
			return false
		}
	case onlyEmpty:
		if len(g.Parts) > 0 || g.Trouble != "" || n.Trouble != "" {
			return false
		}
	case onlyTrouble:
		if g.Trouble == "" && n.Trouble == "" {
			return false
		}
	}
	has := func(s string) bool { return strings.Contains(strings.ToLower(s), strings.ToLower(c.Query)) }
	return has(n.Name) || has(g.Model) || has(g.UUID) ||
		slices.ContainsFunc(g.Parts, func(p Part) bool { return has(p.Owner) })
}

func (s Sources) read(ctx context.Context, choice Choice) (*Fleet, error) {
	ledgers, err := s.Ledgers(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the ledgers: %w", err)
	}
	f := &Fleet{Choice: choice}
	slices.SortFunc(ledgers, func(a, b *v1alpha1.SliceLedger) int { return cmp.Compare(a.Name, b.Name) })
	for _, l := range ledgers {
		n := nodeOf(l)
		f.Totals.add(&n)
		n.GPUs = slices.DeleteFunc(n.GPUs, func(g GPU) bool { return !choice.takes(&n, &g) })
		if len(n.GPUs) > 0 || len(l.Status.Devices) == 0 && choice == (Choice{Page: choice.Page}) {
			f.Map = append(f.Map, n)
		}
	}
	f.Pages = max((len(f.Map)+nodesPerPage-1)/nodesPerPage, 1)
	f.Page = min(f.Page, f.Pages)
	f.Nodes = f.Map[(f.Page-1)*nodesPerPage : min(f.Page*nodesPerPage, len(f.Map))]
	f.Waiting, err = s.waiting(ctx)
	return f, err
}

func (t *Totals) add(n *Node) {
	t.Nodes++
	for i := range n.GPUs {
		g := &n.GPUs[i]
		t.GPUs++
		t.Slices += len(g.Parts)
		switch {
		case g.Trouble != "" || n.Trouble != "":
			t.Unfit++
			continue
		case len(g.Parts) == 0:
			t.Empty++
		}
		t.Core.Granted += g.Core.Granted
		t.Core.Total += g.Core.Total
		t.Mem.Granted += g.Mem.Granted
		t.Mem.Total += g.Mem.Total
	}
}

func nodeOf(l *v1alpha1.SliceLedger) Node {
	n := Node{Name: l.Name}
	if v := view.NodeOf(l); v.Ready != metav1.ConditionTrue {
		n.Trouble = v.Note
	}
	parts := map[string][]Part{}
	for _, s := range view.SlicesOf(l) {
		parts[s.UUID] = append(parts[s.UUID], Part{Slice: s, Owner: s.Namespace + "/" + s.Pod, Hue: hue(s.Namespace)})
	}
	for _, d := range view.DevicesOf(l) {
		g := GPU{Device: d, Parts: parts[d.UUID], Fill: int(max(d.Core.Percent(), d.Mem.Percent())+9.99) / 10}
		if d.Health != view.HealthOK || d.Cordon != nil {
			g.Trouble = cmp.Or(d.Why(), d.State())
		}
		n.GPUs = append(n.GPUs, g)
	}
	return n
}
