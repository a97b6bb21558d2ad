// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"cmp"
	"errors"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/allocator/scheduling/leaving"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/priority"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// evictions is the policy of a pod for which others of lower priority are evicted.
type evictions struct {
	*Preemption
	asker reservation.Asker
	// promised are pods that somebody else waits for.
	promised map[types.UID]bool

	candidates leaving.Candidates
	budgets    map[types.UID]int
	// bars are what keeps pods from being evicted. all asks for none of it.
	bars *bars
	all  bool
	// idleOnly: only pods with idle slices may leave.
	idleOnly bool
	// most, where it is not 0, is how many pods may be moved: only such may leave.
	most int
	// until is when the look ends.
	until time.Time
}

// weighed are the weights of a version of a ledger, by what priorities count across namespaces.
type weighed struct {
	ledger  *v1alpha1.SliceLedger
	allowed int // priority.Classes.Version
	weights *leaving.Weights
}

func (p *Preemption) newEvictions(asker reservation.Asker, bars *bars, all, idleOnly bool, until time.Time) *evictions {
	if asker.Priority.Limited() {
		bars.in[asker.Priority.Namespace], bars.known = true, true
	}
	e := &evictions{
		Preemption: p, asker: asker, bars: bars, all: all, idleOnly: idleOnly, until: until, promised: map[types.UID]bool{}, candidates: leaving.Candidates{Pods: map[types.UID]leaving.Pod{}},
		budgets: map[types.UID]int{},
	}
	if len(p.weights) > 2*len(p.cache.Index.Names()) {
		clear(p.weights) // most are of nodes that are gone
	}
	for _, r := range p.reservations.All() {
		if r.Owner != asker.Item && r.Kind != reservation.Head {
			for uid := range r.Leaving {
				e.promised[uid] = true
			}
		}
	}
	return e
}

func (e *evictions) bound(demand *placement.Demand, ledger *v1alpha1.SliceLedger, _ leaving.Room) (leaving.Cost, bool) {
	w, allowed := e.Preemption.weights[ledger.Name], e.cache.Priorities.Version()
	if w.ledger != ledger || w.allowed != allowed {
		w = weighed{ledger, allowed, leaving.Weigh(ledger, func(l *v1alpha1.SliceLedger) *placement.Node {
			less := *l
			less.Status.Slices = nil
			return index.Room(&less)
		}, e.priority)}
		if e.cache.Index.Ledger(ledger.Name) == ledger {
			e.Preemption.weights[ledger.Name] = w
		}
	}
	// In its own namespace more counts than across, and what counts across is never more.
	below := e.asker.Priority.Across
	if e.asker.Priority.Limited() && (e.all || e.hasOwn(ledger)) {
		below = e.asker.Priority.Within
	}
	if e.most > 0 {
		below = math.MaxInt32 // an equal may be moved
	}
	return w.weights.Bound(demand, below)
}

// hasOwn reports whether pods of the asker's namespace that it is above have slices on the node.
func (e *evictions) hasOwn(ledger *v1alpha1.SliceLedger) bool {
	for i := range ledger.Spec.Devices {
		for j := range ledger.Spec.Devices[i].Slices {
			s := &ledger.Spec.Devices[i].Slices[j]
			if namespace, _, _ := strings.Cut(s.Owner, "/"); namespace != e.asker.Priority.Namespace {
				continue
			}
			if pod := e.cache.PodOf(s.Pod); pod != nil && e.asker.Priority.Above(e.cache.Priorities.Of(pod)) {
				return true
			}
		}
	}
	return false
}

// priority is that of a pod across namespaces; of one that is not known the lowest, since it may
// be known soon.
func (e *evictions) priority(uid types.UID) (int32, bool) {
	if pod := e.cache.PodOf(uid); pod != nil {
		return e.cache.Priorities.Of(pod).Across, true
	}
	return leaving.None.Priority, true
}

func (e *evictions) choose(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room leaving.Room) (leaving.Choice, bool) {
	held := grants.Held(ledger)
	for uid := range grants.Pods(ledger) {
		if _, done := e.candidates.Pods[uid]; done || held[uid] != nil {
			continue
		}
		if !e.clock.Now().Before(e.until) {
			return leaving.Choice{}, false // budgets, gangs and pods are as many as tenants make them
		}
		if pod := e.cache.PodOf(uid); pod != nil {
			e.add(pod)
		}
	}
	c, ok := e.candidates.Search(demand, ledger, room)
	return c, ok && (e.most == 0 || len(c.Victims) <= e.most)
}

// add makes the pod a candidate, with its gang, if it may be evicted.
func (e *evictions) add(pod *corev1.Pod) {
	v, ok := e.candidate(pod)
	if !ok {
		return
	}
	name, in := podrequest.GroupOf(pod)
	if !in || e.groups.Ends(name) == podgroup.EndPods {
		e.candidates.Pods[pod.UID] = v
		return
	}
	e.bars.in[pod.Namespace] = true
	g := e.groups.Gang(name)
	if errors.Is(g.Err, podgroup.ErrUnknown) {
		return // it is known in a moment
	}
	if !slices.ContainsFunc(g.Members, func(m *corev1.Pod) bool { return m.UID == pod.UID }) {
		e.candidates.Pods[pod.UID] = v // of an earlier incarnation
		return
	}
	at := len(e.candidates.Gangs)
	spare := g.In - g.Least
	for _, m := range g.Members {
		if e.promised[m.UID] {
			spare-- // it is being evicted for somebody else
		}
	}
	gang := leaving.Gang{Spare: max(0, spare), Whole: true}
	// Where its owner says it wrong nobody knows what of it must run.
	if e.groups.Ends(name) == podgroup.EndGroup || g.Err != nil {
		gang.Spare = 0
	}
	for _, m := range g.Members {
		// Members without slices stay, and members that leave already do not count.
		if podstate.Gated(m) || podstate.Terminal(m) || e.promised[m.UID] || e.cache.PodOf(m.UID) == nil {
			continue
		}
		v, ok := e.candidate(m)
		if v.Gang = at; ok {
			gang.Pods = append(gang.Pods, v)
			e.candidates.Pods[m.UID] = v
		}
		gang.Whole = gang.Whole && (ok || e.all)
		e.bars.known = e.bars.known || !ok
	}
	e.candidates.Gangs = append(e.candidates.Gangs, gang)
}

// candidate is the pod as one that may be evicted; false where it may not be: it is not of lower
// priority, not placed, ends already, is of the owner's own gang, or no eviction would end
// it. One that is being deleted and does not leave within the lookahead may be: its grace is cut short.
func (e *evictions) candidate(pod *corev1.Pod) (v leaving.Pod, ok bool) {
	p := e.cache.Priorities.Of(pod)
	v = leaving.Pod{UID: pod.UID, Gang: -1, Budget: -1, Cost: leaving.Cost{
		Priority: p.Against(e.asker.Priority.Namespace), Pods: 1, Loss: e.loss(pod), Grace: min(graceOf(pod), e.lookahead).Seconds(),
	}}
	name, in := podrequest.GroupOf(pod)
	own, owns := podrequest.GroupOf(e.asker.Pods[0])
	late := e.isLate(pod)
	if !e.mayLeave(pod, p) || backfill.Leaves(pod, e.clock.Now(), e.lookahead) && !late || podstate.Gated(pod) ||
		e.cache.PodOf(pod.UID) == nil || e.promised[pod.UID] || in && owns && name == own {
		return v, false
	}
	if late {
		e.bars.in[pod.Namespace], e.bars.known = true, true
		return v, e.all
	}
	if podrequest.OnIdle(pod) {
		return v, true
	}
	budget, ok := e.filters.Budgets(pod.Namespace).Of(pod)
	ok = ok && !e.wasRefused(pod)
	if budget != nil || !ok {
		e.bars.in[pod.Namespace], e.bars.known = true, true
	}
	if e.all {
		return v, true
	}
	if budget != nil {
		at, known := e.budgets[budget.UID]
		if !known {
			at = len(e.candidates.Budgets)
			e.budgets[budget.UID] = at
			e.candidates.Budgets = append(e.candidates.Budgets, feasible.Allowed(budget))
		}
		v.Budget = at
	}
	return v, ok
}

// mayLeave reports whether the pod may have to leave for the asker: it is of a lower priority, or may
// be moved and is not of a higher one.
func (e *evictions) mayLeave(pod *corev1.Pod, p priority.Priority) bool {
	if e.idleOnly && p.Within != priority.Idle {
		return false
	}
	if e.most > 0 {
		return movable(pod) && !p.Above(e.asker.Priority)
	}
	return e.above(p)
}

// above reports whether the asker may take a pod's room; for all, whether it might if its class
// counted in all namespaces.
func (e *evictions) above(p priority.Priority) bool {
	return e.asker.Priority.Above(p) || e.all && e.asker.Priority.Within > p.Within
}

// loss is how much of the pod's work is lost: its part of devices, in percent, times the seconds
// that it has run.
func (e *evictions) loss(pod *corev1.Pod) (sum float64) {
	if pod.Status.StartTime == nil {
		return 0
	}
	ran := max(0, e.clock.Since(pod.Status.StartTime.Time).Seconds())
	for _, name := range e.cache.Index.Holders(pod.UID) {
		ledger := e.cache.Index.Ledger(name)
		if ledger == nil {
			continue
		}
		for i := range ledger.Spec.Devices {
			d := &ledger.Spec.Devices[i]
			for _, s := range d.Slices {
				if s.Pod == pod.UID {
					sum += max(float64(s.Core), 100*float64(s.Mem)/float64(max(1, d.Mem)))
				}
			}
		}
	}
	return sum * ran
}

// chosen counts what the budgets and the gangs have left. The members of a gang that ends as a
// whole leave together.
func (e *evictions) chosen(c leaving.Choice) (units [][]types.UID) {
	by := map[int][]types.UID{}
	for _, uid := range c.Victims {
		v := e.candidates.Pods[uid]
		if v.Budget >= 0 {
			e.candidates.Budgets[v.Budget]--
		}
		if v.Gang >= 0 {
			by[v.Gang] = append(by[v.Gang], uid)
		} else {
			units = append(units, []types.UID{uid})
		}
		delete(e.candidates.Pods, uid)
	}
	for at, members := range by {
		g := &e.candidates.Gangs[at]
		if len(members) > g.Spare {
			units = append(units, members)
		} else {
			units = append(units, each(members)...)
		}
		g.Spare = max(0, g.Spare-len(members))
		g.Pods = slices.DeleteFunc(g.Pods, func(p leaving.Pod) bool { return slices.Contains(members, p.UID) })
	}
	return units
}

// moreImportant orders pods: by priority, then by how long they have run.
func moreImportant(a, b *corev1.Pod) int {
	return cmp.Or(cmp.Compare(corev1helpers.PodPriority(b), corev1helpers.PodPriority(a)), podstate.ByAge(a, b))
}
