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
	Core, Mem                         Amount
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
	Name, UUID, Model string
	// Trouble says why nothing is granted on it.
	Trouble   string
	Core, Mem Bar
	Slices    []Slice
	// Fill is how full it is, from 0 to 10, by the side that is fuller.
	Fill int
}

// Amount is granted of a total.
type Amount struct{ Granted, Total int64 }

// Free is what is left.
func (a Amount) Free() int64 { return max(a.Total-a.Granted, 0) }

// Percent of the total that is granted.
func (a Amount) Percent() float64 {
	if a.Total == 0 {
		return 0
	}
	return 100 * float64(a.Granted) / float64(a.Total)
}

// Bar is one side of a GPU, cut into the slices' parts.
type Bar struct {
	Amount
	Parts []Part
}

// Part is what one slice counts of a bar.
type Part struct {
	Owner, Container, Mode string
	Amount                 int64
	// Percent of the bar; Hue numbers the owner's namespace.
	Percent float64
	Hue     uint32
}

// Slice is what a container has of a GPU, as granted.
type Slice struct {
	Part
	Core v1alpha1.Percent
	Mem  v1alpha1.MiB
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
		if len(g.Mem.Parts) > 0 || g.Trouble != "" || n.Trouble != "" {
			return false
		}
	case onlyTrouble:
		if g.Trouble == "" && n.Trouble == "" {
			return false
		}
	}
	has := func(s string) bool { return strings.Contains(strings.ToLower(s), strings.ToLower(c.Query)) }
	return has(n.Name) || has(g.Model) || has(g.UUID) ||
		slices.ContainsFunc(g.Mem.Parts, func(p Part) bool { return has(p.Owner) })
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
		t.Slices += len(g.Mem.Parts)
		switch {
		case g.Trouble != "" || n.Trouble != "":
			t.Unfit++
			continue
		case len(g.Mem.Parts) == 0:
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
	if ready := l.Status.Readiness(); ready == nil {
		n.Trouble = "the node agent has not said that it is ready"
	} else if ready.Status != "True" {
		n.Trouble = ready.Reason + ": " + ready.Message
	}
	granted := map[string]*v1alpha1.DeviceLedger{}
	for i := range l.Spec.Devices {
		granted[l.Spec.Devices[i].UUID] = &l.Spec.Devices[i]
	}
	for _, d := range l.Status.Devices {
		g := GPU{Name: fmt.Sprintf("GPU %d", d.Index), UUID: d.UUID, Model: d.Model}
		g.Core.Total, g.Mem.Total = int64(v1alpha1.WholeGPU), int64(d.Mem)
		switch c := l.Spec.Cordon(d.UUID); {
		case !d.Healthy:
			g.Trouble = d.Reason
		case c != nil:
			g.Trouble = c.String()
		}
		if d.MIG == v1alpha1.MIGEnabled {
			g.Model += ", MIG"
		}
		if book := granted[d.UUID]; book != nil {
			g.count(book)
			delete(granted, d.UUID)
		}
		n.GPUs = append(n.GPUs, g)
	}
	for _, book := range l.Spec.Devices {
		if granted[book.UUID] != nil && len(book.Slices) > 0 {
			g := GPU{Name: "missing GPU", UUID: book.UUID, Trouble: "the node does not see it"}
			g.count(book.DeepCopy())
			n.GPUs = append(n.GPUs, g)
		}
	}
	return n
}

// count adds up as the ledger's own rules do: what a slice reuses of its pod's
// other slices counts once.
func (g *GPU) count(book *v1alpha1.DeviceLedger) {
	g.Core.Total, g.Mem.Total = int64(book.Core), int64(book.Mem)
	for i := range book.Slices {
		s := &book.Slices[i]
		namespace, _, _ := strings.Cut(s.Owner, "/")
		part := Part{Owner: s.Owner, Container: s.Ctr, Mode: string(s.EffectiveMode()), Hue: hue(namespace)}
		g.Slices = append(g.Slices, Slice{Part: part, Core: s.Core, Mem: s.Mem})
		g.Core.add(part, int64(s.Core-s.ReuseCore))
		g.Mem.add(part, int64(s.Mem-s.ReuseMem))
	}
	g.Fill = int(max(g.Core.Percent(), g.Mem.Percent())+9.99) / 10
}

func (b *Bar) add(p Part, amount int64) {
	p.Amount, p.Percent = amount, 100*float64(amount)/float64(b.Total)
	b.Granted += amount
	b.Parts = append(b.Parts, p)
}
