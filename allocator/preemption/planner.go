// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"cmp"
	"context"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/leaving"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// planner looks for the room that the pods of one owner get when others have left: which pods
// those are, a policy says. It chooses for one pod after the other, each beside those before
// it. It lasts for one look.
type planner struct {
	*Preemption
	asker   reservation.Asker
	against []*reservation.Reservation
	policy  policy
	// nodes are the ones that differ from what the index has: pods are expected to leave them, or
	// to come.
	nodes map[string]*node
	// lost are, by node, what is used without a grant: it does not end with slices.
	lost map[string][]v1alpha1.SliceStatus
	// lists are the nodes by what the pods ask for, the most promising first.
	lists map[string][]entry
	// leaving are the pods that are expected to leave, without pods that do so anyhow; units the ones
	// of them that leave together.
	leaving map[types.UID]*corev1.Pod
	units   [][]types.UID
	plans   []placement.Plan
	assumed *cache.Assumption
	// in, if set, are the nodes that the pods have to be on.
	in map[string]bool
}

// policy says who has to leave a node for a pod.
type policy interface {
	// bound is a cost that no choice on the node falls below; false where there is no room for the
	// pod even without all others.
	bound(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room leaving.Room) (leaving.Cost, bool)
	// choose is the choice of least cost.
	choose(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room leaving.Room) (leaving.Choice, bool)
	// chosen is told of the choice that was taken, and returns those of it that leave together or
	// not at all.
	chosen(leaving.Choice) [][]types.UID
}

// node is a node as it is expected to be.
type node struct {
	ledger *v1alpha1.SliceLedger
	plans  []placement.Plan
	// leaves are pods that leave it anyhow.
	leaves []*corev1.Pod
}

// entry is a node in a list.
type entry struct {
	name  string
	bound leaving.Cost
}

func (e entry) compare(f entry) int {
	return cmp.Or(e.bound.Compare(f.bound), strings.Compare(e.name, f.name))
}

// newPlanner begins with the cluster as it is when those have left that are ending already.
func (p *Preemption) newPlanner(asker reservation.Asker, policy policy) *planner {
	against, _ := p.reservations.Against(asker)
	pl := &planner{
		Preemption: p, asker: asker, against: against, policy: policy, assumed: p.cache.Assumption(),
		nodes: map[string]*node{}, lost: map[string][]v1alpha1.SliceStatus{}, lists: map[string][]entry{}, leaving: map[types.UID]*corev1.Pod{},
	}
	leaving := p.cache.Leaving()
	for _, uid := range p.cache.Strangers() {
		leaving = append(leaving, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}})
	}
	// What others leave is for the first in the list, which a class that counts at home only makes nobody.
	if _, evicts := policy.(*evictions); evicts && asker.Priority.Limited() {
		leaving = slices.DeleteFunc(leaving, func(pod *corev1.Pod) bool { return pod.Namespace != asker.Priority.Namespace })
	}
	for _, pod := range p.inTime(leaving) {
		// The scheduler counts a pod for longer than it has slices.
		on := p.cache.Index.Holders(pod.UID)
		if name := podstate.TargetNode(pod); name != "" && !slices.Contains(on, name) {
			on = append(on, name)
		}
		for _, name := range on {
			if n := pl.node(name); n != nil {
				n.leaves = append(n.leaves, pod)
				n.ledger = grants.Without(n.ledger, func(uid types.UID) bool { return uid == pod.UID })
			}
		}
	}
	return pl
}

// node is the node to be changed, nil where there is no ledger.
func (pl *planner) node(name string) *node {
	if pl.nodes[name] == nil {
		ledger := pl.cache.Index.Ledger(name)
		if ledger == nil {
			return nil
		}
		pl.nodes[name] = &node{ledger: ledger}
	}
	return pl.nodes[name]
}

// as is the ledger of a node as it is expected to be, nil where there is none.
func (pl *planner) as(name string) *v1alpha1.SliceLedger {
	if n := pl.nodes[name]; n != nil {
		return n.ledger
	}
	return pl.cache.Index.Ledger(name)
}

// room is what a ledger leaves for the asker: less what is promised to others, and what those
// before get.
func (pl *planner) room(ledger *v1alpha1.SliceLedger) *placement.Node {
	room := pl.offered(ledger)
	if n := pl.nodes[ledger.Name]; n != nil && room != nil {
		for i := range n.plans {
			room = room.Without(&n.plans[i])
		}
	}
	return room
}

// offered is what a ledger of which some slices are gone leaves for the asker.
func (pl *planner) offered(ledger *v1alpha1.SliceLedger) *placement.Node {
	lost, known := pl.lost[ledger.Name]
	if !known {
		if whole := pl.cache.Index.Ledger(ledger.Name); whole != nil {
			for pod, uuid := range index.Ungranted(whole) {
				lost = append(lost, v1alpha1.SliceStatus{Pod: pod, UUID: uuid})
			}
		}
		pl.lost[ledger.Name] = lost
	}
	less := *ledger
	less.Status.Slices = lost
	room := index.Room(&less)
	if room == nil || len(pl.against) == 0 {
		return room
	}
	return reservation.Hide(pl.against, room, ledger)
}

// list are the nodes for a demand, the least bound first.
func (pl *planner) list(pod scheduling.Request, until time.Time) []entry {
	class := podrequest.EquivalenceClass(pod.Pod)
	if _, made := pl.lists[class]; !made {
		var list []entry
		for i, name := range pl.cache.Index.Names() {
			if i%100 == 99 && !pl.clock.Now().Before(until) {
				break
			}
			if e, ok := pl.weigh(pod, name); ok {
				list = append(list, e)
			}
		}
		slices.SortFunc(list, entry.compare)
		pl.lists[class] = list
	}
	return pl.lists[class]
}

func (pl *planner) weigh(pod scheduling.Request, name string) (entry, bool) {
	ledger := pl.as(name)
	if ledger == nil || !pl.cache.Settled(name) || pl.in != nil && !pl.in[name] {
		return entry{}, false
	}
	bound, ok := pl.policy.bound(pod.Demand, ledger, pl.room)
	return entry{name: name, bound: bound}, ok
}

// next chooses for one more pod; false where there is nothing for it. On nodes that it could go
// to as they are the filters refuse it, if it is alone.
func (pl *planner) next(ctx context.Context, pod scheduling.Request, alone bool, until time.Time) (bool, error) {
	var best *leaving.Choice
	looked := 0
	for _, e := range pl.list(pod, until) {
		if best != nil && e.bound.Compare(best.Cost) >= 0 || looked == MaxNodes || !pl.clock.Now().Before(until) {
			break
		}
		ledger := pl.as(e.name)
		if ledger == nil {
			continue
		}
		c, ok := pl.policy.choose(pod.Demand, ledger, pl.room)
		if !ok {
			continue
		}
		if best != nil && c.Cost.Compare(best.Cost) >= 0 {
			// A bound knows no loss and no grace, so that in a large cluster most nodes are below the best.
			looked++
			continue
		}
		n := pl.nodes[e.name]
		if alone && len(c.Victims) == 0 && (n == nil || len(n.leaves) == 0) {
			continue
		}
		looked++
		accepted, err := pl.accepts(ctx, pod, e.name, c.Victims, alone)
		if err != nil {
			return false, err
		}
		if accepted {
			best = &c
		}
	}
	if best == nil {
		return false, nil
	}
	return true, pl.take(pod, best)
}

// accepts reports whether the scheduler would take the pod on the node once the others have
// left. For a pod alone it may be that it has to preempt yet others, without slices.
func (pl *planner) accepts(ctx context.Context, pod scheduling.Request, name string, leaving []types.UID, alone bool) (accepts bool, err error) {
	err = pl.judge(ctx, pod, name, leaving, func(cycle *feasible.Cycle, against []string) (err error) {
		if accepts = len(against) == 0; !accepts && alone && pl.filters.MayPreempt(pod.Pod) {
			_, accepts, err = cycle.Preempts(ctx, name, pl.cache.Priorities.MayEnd(pod.Pod))
		}
		return err
	})
	return accepts && err == nil, err
}

// judge has what the scheduler has against the pod on the node, once the others have left.
func (pl *planner) judge(ctx context.Context, pod scheduling.Request, name string, leaving []types.UID, verdict func(*feasible.Cycle, []string) error) error {
	trial := pl.cache.Assumption()
	defer trial.End()
	for _, uid := range leaving {
		if other := pl.cache.PodOf(uid); other != nil {
			if err := trial.Count(other, ""); err != nil {
				return err
			}
		}
	}
	if n := pl.nodes[name]; n != nil {
		for _, other := range n.leaves {
			if other.Name == "" {
				continue // not known, and not counted
			}
			if err := trial.Count(other, ""); err != nil {
				return err
			}
		}
	}
	cycle, err := pl.filters.Start(ctx, pod.Pod)
	if err != nil {
		return err
	}
	against, err := cycle.Refusals(ctx, name)
	if err != nil {
		return err
	}
	return verdict(cycle, against)
}

// take makes the choice the pod's.
func (pl *planner) take(pod scheduling.Request, c *leaving.Choice) error {
	pl.units = append(pl.units, pl.policy.chosen(*c)...)
	changed := map[string]bool{c.Plan.Node: true}
	for _, uid := range c.Victims {
		other := pl.cache.PodOf(uid)
		if other == nil {
			continue
		}
		pl.leaving[uid] = other
		for _, name := range pl.cache.Index.Holders(uid) {
			if n := pl.node(name); n != nil {
				n.ledger = grants.Without(n.ledger, func(other types.UID) bool { return other == uid })
				changed[name] = true
			}
		}
		if err := pl.assumed.Count(other, ""); err != nil {
			return err
		}
	}
	n := pl.node(c.Plan.Node)
	if n == nil {
		return queue.ErrAgain
	}
	n.plans = append(n.plans, c.Plan)
	pl.plans = append(pl.plans, c.Plan)
	if err := pl.assumed.Count(pod.Pod, c.Plan.Node); err != nil {
		return err
	}
	for class, list := range pl.lists {
		if class != podrequest.EquivalenceClass(pod.Pod) {
			delete(pl.lists, class) // made again when it is asked for
			continue
		}
		list = slices.DeleteFunc(list, func(e entry) bool { return changed[e.name] })
		for name := range changed {
			if e, ok := pl.weigh(pod, name); ok {
				list = append(list, e)
			}
		}
		slices.SortFunc(list, entry.compare)
		pl.lists[class] = list
	}
	return nil
}

// leaves are all pods that have to leave before the plans can be granted: the chosen ones, and pods
// that leave anyhow and whose room is waited for: on the devices, or on the node alone.
func (pl *planner) leaves() map[types.UID]types.NamespacedName {
	all := map[types.UID]types.NamespacedName{}
	for uid, pod := range pl.leaving {
		all[uid] = types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
	}
	for _, plan := range pl.plans {
		ledger := pl.cache.Index.Ledger(plan.Node)
		if ledger == nil {
			continue
		}
		for _, pod := range pl.nodes[plan.Node].leaves {
			if onDevices(ledger, pod.UID, &plan) || !slices.Contains(pl.cache.Index.Holders(pod.UID), plan.Node) {
				all[pod.UID] = types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}
			}
		}
	}
	return all
}

// onDevices reports whether the pod has slices on a device of the plan.
func onDevices(ledger *v1alpha1.SliceLedger, pod types.UID, plan *placement.Plan) bool {
	return slices.ContainsFunc(ledger.Spec.Devices, func(d v1alpha1.DeviceLedger) bool {
		return slices.ContainsFunc(plan.Grants, func(g placement.Grant) bool { return g.UUID == d.UUID }) &&
			slices.ContainsFunc(d.Slices, func(s v1alpha1.Slice) bool { return s.Pod == pod })
	})
}

// all chooses for at least need of the pods; false where there is no room for so many.
func (pl *planner) all(ctx context.Context, pods []scheduling.Request, need int, until time.Time) (bool, error) {
	defer pl.assumed.End()
	var chosen []scheduling.Request
	for i, pod := range pods {
		if len(chosen) == need {
			break
		}
		found, err := pl.next(ctx, pod, need == 1 && len(pods) == 1, until)
		if err != nil {
			return false, err
		}
		if found {
			chosen = append(chosen, pod)
		} else if len(chosen)+len(pods)-i-1 < need {
			return false, nil
		}
	}
	return true, pl.spare(ctx, chosen)
}

// plan is a planner with room for the waiter's pods, nil where there is none. Pods that have to be
// on nodes with the same labels are tried where most is free first.
func (p *Preemption) plan(ctx context.Context, w Waiter, by func(until time.Time) policy) (*planner, error) {
	until := p.clock.Now().Add(searchTime)
	where := []scheduling.Domain{{}}
	if len(w.Within.Keys) > 0 {
		where = w.Within.Domains(p.filters, w.Pods, p.cache.Index.Room())
	}
	for i, in := range slices.Backward(where) {
		if i < len(where)-scheduling.MaxDomains || !p.clock.Now().Before(until) {
			break
		}
		pl := p.newPlanner(scheduling.AskerOf(p.cache, w.Item, w.Pods), by(until))
		pl.in = in.Nodes
		if found, err := pl.all(ctx, w.Pods, w.Need, until); found || err != nil {
			return pl, err
		}
	}
	return nil, nil
}
