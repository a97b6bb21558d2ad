// SPDX-License-Identifier: Apache-2.0

package page

import (
	"cmp"
	"context"
	"fmt"
	"hash/fnv"
	"slices"
	"strconv"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/advice"
	"vernier.dev/vernier/api/v1alpha1"
)

// nodesPerPage bounds what is drawn in full; the map has every GPU.
const nodesPerPage = 20

// Fleet is what is shown.
type Fleet struct {
	Choice
	Totals Totals
	// Sees is whether the reader may see what containers use.
	Sees    bool
	Holders Holders
	// Map is every node that was chosen, small; Nodes are those of this page.
	Map, Nodes []Node
	// Pages is how many there are.
	Pages   int
	Waiting Waiting
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
	// Trouble says why nothing is granted there, and Unread why nothing is known of use.
	Trouble, Unread string
	// Tide is how much idle slices may have of each GPU now; nil where no tide says it.
	Tide *Tide
	GPUs []GPU
}

// Tide is how much idle slices may have of each GPU, in percent.
type Tide struct {
	v1alpha1.TideAmounts
	// Until is when that becomes less; nil where no such time is known.
	Until *metav1.Time
	// Names are the tides'.
	Names string
}

// tideOf is what a ledger's tide allows at a time.
func tideOf(t *v1alpha1.LedgerTide, now time.Time) *Tide {
	if t == nil {
		return nil
	}
	is := &Tide{Names: v1alpha1.NamesText(t.Tides, 3)}
	if is.Core, is.Mem = t.Allows(now); now.Before(t.EndsAt()) {
		is.Until = t.Until
	}
	return is
}

// GPU is one device and what is granted of it.
type GPU struct {
	view.Device
	// Trouble says why nothing is granted on it.
	Trouble string
	// Kept are the workloads that it is kept for, by the last events of the pods that wait.
	Kept  []Kept
	Parts []Part
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
	// Owner is NAMESPACE/POD; Workload what the pod belongs to, as KIND/NAME.
	Owner, Workload string
	// Use is what the container uses of it now; nil where nobody says.
	Use *view.Use
	// Advice is how much its workload should request, empty where nobody says.
	Advice string
	// Hue numbers the namespace.
	Hue uint32
}

// Segment is one slice's part of a bar.
type Segment struct {
	*Part
	// Amount that it counts, and the percent of the bar that this is.
	Amount  int64
	Percent float64
	// Used is the percent of the segment that is in use; negative where nobody says.
	Used float64
	Unit string
}

// coreUsed is the compute that the container uses of the GPU; negative where nobody says.
func (p *Part) coreUsed() int64 {
	if p.Use == nil || p.Use.Duty == nil {
		return -1
	}
	return int64(*p.Use.Duty)
}

// memUsed is the memory.
func (p *Part) memUsed() int64 {
	if p.Use == nil {
		return -1
	}
	return int64(p.Use.Used)
}

// CoreBar is the compute side, cut into the slices' parts: what a slice reuses of its
// pod's other slices counts once.
func (g *GPU) CoreBar() []Segment {
	return bar(g.Parts, int64(g.Core.Total), "%", func(p *Part) int64 { return int64(p.Core - p.ReuseCore) }, (*Part).coreUsed)
}

// MemBar is the memory side.
func (g *GPU) MemBar() []Segment {
	return bar(g.Parts, int64(g.Mem.Total), "MiB", func(p *Part) int64 { return int64(p.Mem - p.ReuseMem) }, (*Part).memUsed)
}

// CoreUsed is the compute that containers use of a GPU; empty where nobody says.
func (g *GPU) CoreUsed() string { return sum(g.Parts, (*Part).coreUsed) }

// MemUsed is the memory that they use.
func (g *GPU) MemUsed() string { return sum(g.Parts, (*Part).memUsed) }

func sum(parts []Part, used func(*Part) int64) string {
	all, known := int64(0), false
	for i := range parts {
		if n := used(&parts[i]); n >= 0 {
			all, known = all+n, true
		}
	}
	if !known {
		return ""
	}
	return strconv.FormatInt(all, 10)
}

func bar(parts []Part, total int64, unit string, counted, used func(*Part) int64) []Segment {
	var all []Segment
	for i := range parts {
		p := &parts[i]
		if n := counted(p); n > 0 {
			all = append(all, Segment{p, n, percent(n, total), min(percent(used(p), n), 100), unit})
		}
	}
	return all
}

func percent(n, of int64) float64 { return 100 * float64(n) / float64(max(of, 1)) }

// hues is how many there are in the style sheet.
const hues = 8

func hue(namespace string) uint32 {
	h := fnv.New32a()
	_, _ = h.Write([]byte(namespace)) // never fails
	return h.Sum32() % hues
}

func (s Sources) read(ctx context.Context, choice Choice, sees bool) (*Fleet, error) {
	ledgers, err := s.Ledgers(ctx)
	if err != nil {
		return nil, fmt.Errorf("reading the ledgers: %w", err)
	}
	f := &Fleet{Choice: choice, Sees: sees}
	held := holdings{}
	slices.SortFunc(ledgers, func(a, b *v1alpha1.SliceLedger) int { return cmp.Compare(a.Name, b.Name) })
	for _, l := range ledgers {
		n := s.nodeOf(l)
		f.Totals.add(&n)
		n.GPUs = slices.DeleteFunc(n.GPUs, func(g GPU) bool {
			taken, whose := choice.takes(&n, &g)
			if taken {
				held.add(&g, whose)
			}
			return !taken
		})
		if len(n.GPUs) > 0 || len(l.Status.Devices) == 0 && !choice.Narrow() {
			f.Map = append(f.Map, n)
		}
	}
	choice.sort(f.Map)
	f.Holders = held.sorted(choice.By)
	f.Pages = max((len(f.Map)+nodesPerPage-1)/nodesPerPage, 1)
	f.Page = min(f.Page, f.Pages)
	f.Nodes = f.Map[(f.Page-1)*nodesPerPage : min(f.Page*nodesPerPage, len(f.Map))]
	if sees {
		s.use(ctx, f.Nodes)
		s.advise(ctx, f.Nodes)
	}
	if f.Waiting, err = s.waiting(ctx, ledgers); err != nil {
		return nil, err
	}
	for _, n := range f.Nodes {
		for i := range n.GPUs {
			// One that is out of service is kept for nobody.
			if g := &n.GPUs[i]; g.Index != nil && g.Trouble == "" && n.Trouble == "" {
				g.Kept = f.Waiting.reserved[view.GPUOf{Node: n.Name, Index: *g.Index}]
			}
		}
	}
	return f, nil
}

// use puts beside the grants of nodes what their containers use.
func (s Sources) use(ctx context.Context, nodes []Node) {
	names := make([]string, len(nodes))
	for i := range nodes {
		names[i] = nodes[i].Name
	}
	type key struct{ namespace, pod, container, uuid string }
	readings := s.Uses(ctx, names)
	for i := range nodes {
		reading := readings[nodes[i].Name]
		if reading.Err != nil {
			nodes[i].Unread = reading.Err.Error()
		}
		uses := make(map[key]*view.Use, len(reading.Uses))
		for j := range reading.Uses {
			u := &reading.Uses[j]
			uses[key{u.Namespace, u.Pod, u.Container, u.UUID}] = u
		}
		for j := range nodes[i].GPUs {
			g := &nodes[i].GPUs[j]
			for k := range g.Parts {
				p := &g.Parts[k]
				p.Use = uses[key{p.Namespace, p.Pod, p.Container, p.UUID}]
			}
		}
	}
}

// advise puts beside the grants of nodes how much their workloads should request.
func (s Sources) advise(ctx context.Context, nodes []Node) {
	all, err := s.Advice(ctx)
	if err != nil || len(all) == 0 {
		return
	}
	of := make(map[types.NamespacedName]string, len(all))
	for i := range all {
		if a := &all[i]; a.Status.Confidence != "" {
			of[types.NamespacedName{Namespace: a.Namespace, Name: a.Name}] = fmt.Sprintf("%s (%s)",
				v1alpha1.AmountsText(a.Status.Advice.Core, a.Status.Advice.MemMiB), a.Status.Confidence)
		}
	}
	for _, n := range nodes {
		for _, g := range n.GPUs {
			for i := range g.Parts {
				p := &g.Parts[i]
				if pod, err := s.Pod(p.Namespace, p.Pod); err == nil && pod.UID == p.PodUID {
					p.Advice = of[types.NamespacedName{Namespace: p.Namespace, Name: advice.ObjectName(advice.Workload(&pod.ObjectMeta), p.Container)}]
				}
			}
		}
	}
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

func (s Sources) nodeOf(l *v1alpha1.SliceLedger) Node {
	n := Node{Name: l.Name, Tide: tideOf(l.Spec.Tide, time.Now())}
	if v := view.NodeOf(l); v.Ready != metav1.ConditionTrue {
		n.Trouble = v.Note
	}
	parts := map[string][]Part{}
	for _, slice := range view.SlicesOf(l) {
		parts[slice.UUID] = append(parts[slice.UUID], Part{Slice: slice, Owner: slice.Namespace + "/" + slice.Pod,
			Workload: s.workload(&slice), Hue: hue(slice.Namespace)})
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

// workload of a slice's pod; a pod that has gone is one by itself.
func (s Sources) workload(of *view.Slice) string {
	if p, err := s.Pod(of.Namespace, of.Pod); err == nil && p.UID == of.PodUID {
		return view.WorkloadOf(p)
	}
	return "pod/" + of.Pod
}
