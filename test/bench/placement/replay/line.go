// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"cmp"
	"container/heap"
	"math/rand"
	"slices"
	"time"

	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/test/bench/placement/trace"
)

// Lifetime is what a mean lifetime counts as where times are given.
const Lifetime = time.Hour

// Searcher is a policy that is asked again for pods that wait.
type Searcher interface {
	Placer
	// Learn takes note of a pod that arrives.
	Learn(class int)
	// Best is what Place would book.
	Best(class int) (node int, devices uint64, ok bool)
	// Book books it.
	Book(class, node int, devices uint64)
	// Hide keeps this much of a node from Best: of its host and of each device. It takes the
	// place of what was hidden there before.
	Hide(node int, host trace.Node, devices []int)
}

// Line says what the pods do that do not fit: they wait, and are looked at by age whenever
// another one ends. Later ones may pass.
type Line struct {
	// ReserveAfter is when the first of them has a reservation; 0 is never.
	ReserveAfter time.Duration
	// EndsKnown: the pods say how long they stay.
	EndsKnown bool
}

// Waits is what is seen of a line.
type Waits struct {
	// Longest is how long a pod has waited, and Head how long one has as the first of the line.
	// Pods that still wait at the end count.
	Longest, Head time.Duration
	// Bound is how long the first of the line waits at most: ReserveAfter and the longest time that
	// one of the pods had to go that were on its devices when they were reserved.
	Bound time.Duration
	// HeadOver is by how much a first one has waited longer than its own bound, LineOver by how
	// much the k-th has waited longer than k of the greatest; 0 where none has. It is
	// more where at first no node had room to wait for: pods without a device, which no ledger
	// knows, had the CPU.
	HeadOver, LineOver time.Duration
	// Unserved is the part of the GPU time asked for while it was watched that did not run then.
	Unserved float64
	// Reserved counts reservations, Filled the pods that used reserved room until it was free.
	Reserved, Filled int
}

// Crumb is a class of 1 % of a device. Of such pods as many run beside the others as there are
// devices: one on each would be enough to keep all pods for whole devices waiting.
var Crumb = trace.Class{GPUs: 1, Milli: trace.Whole / 100}

// WithCrumbs is the workload with the class Crumb, as its last. None of its pods are.
func WithCrumbs(w *trace.Workload) *trace.Workload {
	with := *w
	with.Classes = append(slices.Clone(w.Classes), Crumb)
	return &with
}

// Wait plays the arrivals of a churn, and the crumbs, with a line. The workload is one
// WithCrumbs, and so is that of the policy.
func Wait(w *trace.Workload, p Searcher, seed int64, load float64, line Line) Waits {
	s := &waiting{Line: line, w: w, policy: p, waits: Waits{Bound: line.ReserveAfter}}
	for i := range w.Nodes {
		n := &w.Nodes[i]
		h := &host{Node: *n, free: make([]int, n.GPUs), pods: map[int]*pod{}}
		for d := range h.free {
			h.free[d] = trace.Whole
		}
		s.hosts = append(s.hosts, h)
	}
	for _, pod := range arrivals(w, seed, load) {
		s.until(pod.arrived)
		s.arrive(pod)
	}
	s.until(runs)
	return s.sum()
}

const (
	watched = settle * Lifetime
	runs    = (settle + watch) * Lifetime
)

type pod struct {
	id, class      int
	arrived, stays time.Duration
	// first is when it came to the head of the line, left when it left the line, place how many
	// were in the line with it.
	first, left time.Duration
	place       int
	// node, devices and end are of one that runs.
	node    int
	devices uint64
	end     time.Duration
}

// arrivals are the pods of a churn, and the crumbs.
func arrivals(w *trace.Workload, seed int64, load float64) (pods []*pod) {
	span := func(lifetimes float64) time.Duration { return time.Duration(lifetimes * float64(Lifetime)) }
	for now, c := range coming(w, seed, load) {
		pods = append(pods, &pod{class: c.class, arrived: span(now), stays: span(c.stays)})
	}
	r := rand.New(rand.NewSource(-1 - seed))
	rate := float64(w.Capacity()) / trace.Whole
	for now := r.ExpFloat64() / rate; now < settle+watch; now += r.ExpFloat64() / rate {
		pods = append(pods, &pod{class: len(w.Classes) - 1, arrived: span(now), stays: span(r.ExpFloat64())})
	}
	slices.SortStableFunc(pods, func(a, b *pod) int { return cmp.Compare(a.arrived, b.arrived) })
	for i := range pods {
		pods[i].id = i
	}
	return pods
}

// host is a node and what of it is free.
type host struct {
	trace.Node
	free []int
	pods map[int]*pod
}

// take books a class, or gives it back with sign -1.
func (h *host) take(c *trace.Class, devices uint64, sign int) {
	h.CPU -= int64(sign) * c.CPU
	h.Mem -= int64(sign) * c.Mem
	for d := range h.free {
		if devices>>d&1 == 1 {
			h.free[d] -= sign * c.Milli
		}
	}
}

// fits reports whether the devices have room for the class.
func (h *host) fits(c *trace.Class, devices uint64) bool {
	for d := range h.free {
		if devices>>d&1 == 1 && h.free[d] < c.Milli {
			return false
		}
	}
	return h.CPU >= c.CPU && h.Mem >= c.Mem
}

type waiting struct {
	Line
	w      *trace.Workload
	policy Searcher
	hosts  []*host
	ends   ending
	line   []*pod
	held   *reservation
	// refused: the first of the line has no room to wait for until something ends.
	refused bool
	now     time.Duration
	waited  []*pod
	// remains is how long one of the pods had to go that the first of the line waits for.
	remains        time.Duration
	waits          Waits
	wanted, served float64
}

// until plays what happens up to a moment.
func (s *waiting) until(now time.Duration) {
	for {
		due, isDue := s.due()
		ends := len(s.ends) > 0 && s.ends[0].end <= now
		switch {
		case ends && (!isDue || s.ends[0].end <= due):
			p := heap.Pop(&s.ends).(*pod)
			s.now = p.end
			delete(s.hosts[p.node].pods, p.id)
			s.hosts[p.node].take(&s.w.Classes[p.class], p.devices, -1)
			s.policy.Release(p.class, p.node, p.devices)
			s.refused = false
			s.hide(p.node)
			s.wake()
		case isDue && due <= now:
			s.now = due
			s.reserve()
		default:
			s.now = now
			return
		}
	}
}

// due is when the first of the line is to have a reservation.
func (s *waiting) due() (time.Duration, bool) {
	if s.ReserveAfter == 0 || s.held != nil || s.refused || len(s.line) == 0 {
		return 0, false
	}
	return max(s.line[0].arrived+s.ReserveAfter, s.now), true
}

func (s *waiting) arrive(p *pod) {
	c := &s.w.Classes[p.class]
	s.wanted += float64(c.Demand()) * seen(p.arrived, p.arrived+p.stays)
	s.policy.Learn(p.class)
	if s.start(p) || c.GPUs == 0 || !s.possible(c) {
		return
	}
	s.line = append(s.line, p)
	if p.place = len(s.line); p.place == 1 {
		p.first = s.now
	}
}

// seen is how much of a time is watched.
func seen(from, to time.Duration) float64 {
	return max(0, min(to, runs)-max(from, watched)).Hours()
}

// possible reports whether the class fits on an empty node.
func (s *waiting) possible(c *trace.Class) bool {
	return slices.ContainsFunc(s.w.Nodes, func(n trace.Node) bool {
		return trace.Allows(c.Spec, n.Model) && n.GPUs >= c.GPUs && n.CPU >= c.CPU && n.Mem >= c.Mem
	})
}

// start runs the pod if there is room for it: reserved for it, visible to all, or reserved for a
// time when it has ended.
func (s *waiting) start(p *pod) bool {
	c := &s.w.Classes[p.class]
	if h := s.held; h != nil && h.owner == p && s.hosts[h.node].fits(c, h.devices) {
		s.run(p, h.node, h.devices)
		return true
	}
	if node, devices, ok := s.policy.Best(p.class); ok {
		s.run(p, node, devices)
		return true
	}
	if !s.fills(p) {
		return false
	}
	s.show()
	node, devices, ok := s.policy.Best(p.class)
	if ok {
		s.waits.Filled++
		s.run(p, node, devices)
	}
	s.hide(s.held.node)
	return ok
}

func (s *waiting) fills(p *pod) bool {
	return s.held != nil && s.held.owner != p && backfill.MayFill(at(s.now+p.stays), s.EndsKnown, s.held.until)
}

// at is a moment as a time.
func at(d time.Duration) time.Time { return time.Unix(0, 0).Add(d) }

func (s *waiting) run(p *pod, node int, devices uint64) {
	if s.held != nil && s.held.owner == p {
		s.show()
		s.held = nil
	}
	p.node, p.devices, p.end = node, devices, s.now+p.stays
	s.hosts[node].pods[p.id] = p
	s.hosts[node].take(&s.w.Classes[p.class], devices, 1)
	s.policy.Book(p.class, node, devices)
	heap.Push(&s.ends, p)
	s.served += float64(s.w.Classes[p.class].Demand()) * seen(s.now, p.end)
	s.hide(node)
}

// wake looks at the line, the first one first. Of pods that ask for the same one is enough.
func (s *waiting) wake() {
	type kind struct {
		class int
		fills bool
	}
	failed := map[kind]bool{}
	for i := 0; i < len(s.line); {
		p, held := s.line[i], s.held
		k := kind{p.class, s.fills(p)}
		if failed[k] || !s.start(p) {
			failed[k] = true
			i++
			continue
		}
		s.leave(i)
		if held != s.held {
			i = 0
			clear(failed)
		}
	}
}

// leave takes the i-th out of the line.
func (s *waiting) leave(i int) {
	s.note(s.line[i], i == 0)
	s.line = slices.Delete(s.line, i, i+1)
	if i == 0 {
		s.remains = 0
		if len(s.line) > 0 {
			s.line[0].first = s.now
		}
	}
}

// note takes down how long a pod has waited that leaves the line, or is in it at the end.
func (s *waiting) note(p *pod, first bool) {
	s.waits.Longest = max(s.waits.Longest, s.now-p.arrived)
	if first {
		s.waits.Head = max(s.waits.Head, s.now-p.first)
		s.waits.HeadOver = max(s.waits.HeadOver, s.now-p.first-s.ReserveAfter-s.remains)
	}
	p.left = s.now
	s.waited = append(s.waited, p)
}

// sum adds the pods that still wait.
func (s *waiting) sum() Waits {
	for i, p := range s.line {
		s.note(p, i == 0)
	}
	w := &s.waits
	for _, p := range s.waited {
		w.LineOver = max(w.LineOver, p.left-p.arrived-time.Duration(p.place)*w.Bound)
	}
	if s.wanted > 0 {
		w.Unserved = 1 - s.served/s.wanted
	}
	return *w
}

// ending is a heap of pods, the next to end first.
type ending []*pod

func (e ending) Len() int { return len(e) }

func (e ending) Less(i, j int) bool { return e[i].end < e[j].end }

func (e ending) Swap(i, j int) { e[i], e[j] = e[j], e[i] }

func (e *ending) Push(x any) { *e = append(*e, x.(*pod)) }

func (e *ending) Pop() any {
	last := (*e)[len(*e)-1]
	*e = (*e)[:len(*e)-1]
	return last
}
