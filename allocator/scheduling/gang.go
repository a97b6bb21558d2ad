// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"context"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/diagnosis"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// MaxOrders bounds how often a gang is tried again with the member first that found
// no place, or without it. Each try costs a decision for every member.
const MaxOrders = 8

// Diagnosis is why a pod cannot be placed.
type Diagnosis struct {
	diagnosis.Diagnosis
	// Known is true when the set waits already, for the same kind of thing, and it was
	// found out why a moment ago. Then nothing else is said.
	Known bool
	// Avoided is true where a node was left out for a moment, since the API server refused a write
	// of its ledger. No pod is to leave for this one.
	Avoided bool
}

// GangDiagnosis is why a gang cannot be placed.
type GangDiagnosis struct {
	// Pod is the first member without a place, Fits how many had one.
	Pod  *corev1.Pod
	Why  *Diagnosis
	Fits int
	// Domain is the value of the group's labels on the nodes that this is of, those with most
	// room. It is empty where the pods may be anywhere.
	Domain string
}

// cause of the gang is its member's where more room would not help.
func (m *GangDiagnosis) cause() cause.Cause { return diagnosis.OfGang(m.Why.Cause()) }

// fit chooses for at least need of a gang's members, and for as many more as fit
// too. The larger ones go first; where those that go by each other have no room where the
// first of them went, the other places that have it are tried.
func (s *Scheduler) fit(ctx context.Context, item queue.Item, asks []Request, need int, within Within) ([]binding.Assignment, *GangDiagnosis, error) {
	order := slices.Clone(asks)
	slices.SortStableFunc(order, func(p, q Request) int { return cmp.Compare(q.Demand.Devices(), p.Demand.Devices()) })
	if len(within.Keys) > 0 && len(order) > 0 {
		return s.fitWithin(ctx, item, order, need, within)
	}
	choices, miss, err := s.fitIn(ctx, item, order, need, nil, MaxOrders)
	if miss == nil || err != nil {
		return choices, nil, err
	}
	for _, in := range s.domains(order, need) {
		if choices, none, err := s.fitIn(ctx, item, order, need, in, DomainOrders); none == nil || err != nil {
			return choices, nil, err
		}
	}
	return nil, miss, nil
}

// fitIn is fit in one domain, or anywhere. Who is left over because others took the only
// place that it can have goes before them, and those by which it goes before it; where
// that does not help, and in a circle, it goes before those too. Who has none even so, if enough are left,
// is left out.
func (s *Scheduler) fitIn(ctx context.Context, item queue.Item, order []Request, need int, in *domain, orders int) ([]binding.Assignment, *GangDiagnosis, error) {
	order = slices.Clone(order)
	var first *GangDiagnosis
	tries := 0
	promoted, leads := map[types.UID]bool{}, map[types.UID]bool{}
	for {
		choices, miss, err := s.tryOrder(ctx, item, order, need, in, leads)
		if miss == nil || err != nil {
			return choices, nil, err
		}
		if first == nil {
			first = miss
		}
		at := slices.IndexFunc(order, func(p Request) bool { return p.Pod == miss.Pod })
		tries++
		turn, circle := s.inTurn(order)
		switch surplus := len(order) > need; {
		case tries > orders || miss.Why.Known && orderIsIrrelevant(order, at, s.Filters.ShunnedAlike):
			return nil, first, nil
		case !leads[miss.Pod.UID] && (circle || at == 0 && turn[0].Pod != miss.Pod):
			leads[miss.Pod.UID] = true
		case promoted[miss.Pod.UID] && at > 0 || at == 0 && !surplus:
			return nil, first, nil
		case at == 0:
			// Even first it has no place, and there are enough without it.
			order = order[1:]
		default:
			promoted[miss.Pod.UID] = true
			pod := order[at]
			order = slices.Insert(slices.Delete(order, at, at+1), 0, pod)
		}
	}
}

// orderIsIrrelevant reports whether another order would come to the same, since all before the
// pod that has no place are like it, or all at all where it is the first. Who waits is
// looked at often, and most gangs are of pods that are alike. To one that goes by others of
// them all are others, and they have to be alike to what it wishes for as well. To pods
// that are there already they have to be alike in any case.
func orderIsIrrelevant(order []Request, at int, shunnedAlike func(p, q *corev1.Pod) bool) bool {
	pod, others := order[at].Pod, order[:at]
	terms := feasible.PodTermsOf(pod)
	if at == 0 || terms != nil {
		others = order
	}
	return !slices.ContainsFunc(others, func(p Request) bool {
		return !alike(p.Pod, pod) || !terms.Alike(p.Pod, pod) || !shunnedAlike(p.Pod, pod)
	})
}

// alike reports whether each of two pods may go where the other may. The claims of each may be
// for what is on another node, and room that is kept for a nominated pod is kept from
// those of lower priority only.
func alike(p, q *corev1.Pod) bool {
	same := func(c, d corev1.Container) bool {
		return equality.Semantic.DeepEqual(c.Resources, d.Resources) && equality.Semantic.DeepEqual(c.Ports, d.Ports)
	}
	return podrequest.EquivalenceClass(p) == podrequest.EquivalenceClass(q) && maps.Equal(p.Spec.NodeSelector, q.Spec.NodeSelector) &&
		equality.Semantic.DeepEqual(p.Spec.Affinity, q.Spec.Affinity) &&
		equality.Semantic.DeepEqual(p.Spec.TopologySpreadConstraints, q.Spec.TopologySpreadConstraints) &&
		equality.Semantic.DeepEqual(p.Spec.Tolerations, q.Spec.Tolerations) &&
		equality.Semantic.DeepEqual(p.Spec.Resources, q.Spec.Resources) &&
		equality.Semantic.DeepEqual(p.Spec.Volumes, q.Spec.Volumes) &&
		equality.Semantic.DeepEqual(p.Spec.ResourceClaims, q.Spec.ResourceClaims) &&
		corev1helpers.PodPriority(p) == corev1helpers.PodPriority(q) &&
		slices.EqualFunc(p.Spec.InitContainers, q.Spec.InitContainers, same) &&
		slices.EqualFunc(p.Spec.Containers, q.Spec.Containers, same)
}

// tryOrder is one try of fitIn, with the leads before those by which they go.
func (s *Scheduler) tryOrder(ctx context.Context, item queue.Item, order []Request, need int, in *domain, leads map[types.UID]bool) ([]binding.Assignment, *GangDiagnosis, error) {
	t := s.newCycle(item, order)
	t.in, t.leads = in, leads
	defer t.end()
	turn, circle := s.inTurn(order)
	try := turn
	if len(leads) > 0 {
		lead := func(p Request) bool { return leads[p.Pod.UID] }
		try = slices.Concat(slices.DeleteFunc(slices.Clone(turn), func(p Request) bool { return !lead(p) }), slices.DeleteFunc(slices.Clone(turn), lead))
	}
	var miss *GangDiagnosis
	for i, pod := range try {
		why, err := t.next(ctx, pod)
		if err != nil {
			return nil, nil, err
		}
		if err := t.breathe(ctx); err != nil {
			return nil, nil, err
		}
		if why == nil {
			continue
		}
		if miss == nil {
			miss = &GangDiagnosis{Pod: pod.Pod, Why: why}
		}
		if len(t.choices)+len(try)-i-1 < need {
			miss.Fits = len(t.choices)
			return nil, miss, nil
		}
	}
	// Pods that came while the search had paused may be in the way of what was chosen before
	// that, by an affinity, a port or a spread.
	paused := t.searching != nil && t.searching.paused
	if len(leads) > 0 || paused || circle {
		miss, err := t.judgeAgain(ctx, turn, circle)
		if miss != nil && len(leads) == 0 && !circle {
			err = errStale
		}
		if miss != nil || err != nil {
			return nil, miss, err
		}
	}
	choices, err := t.decided()
	return choices, nil, err
}

// NeverFits reports whether so many of the pods would not have their devices even if
// nothing else were granted. It may say no where no node has the labels, and where
// that is hard to tell. Pods that are not alike can be arranged in many ways.
func (s *Scheduler) NeverFits(asks []Request, need int, within Within) bool {
	nodes := s.Cache.Index.Empty()
	if len(within.Keys) == 0 {
		return neverFit(nodes, asks, need)
	}
	all := within.Domains(s.Filters, nil, nodes)
	for i, d := range slices.Backward(all) { // the largest first
		if i < len(all)-MaxWithin || !neverFit(slices.Clone(d.rooms), asks, need) {
			return false
		}
	}
	return len(all) > 0
}

func neverFit(nodes []*placement.Node, asks []Request, need int) bool {
	room := int64(0)
	for _, n := range nodes {
		room += int64(len(n.Devices)) * int64(v1alpha1.WholeGPU)
	}
	order, alike := slices.Clone(asks), true
	slices.SortFunc(order, func(p, q Request) int { return cmp.Compare(p.Demand.Least(), q.Demand.Least()) })
	sum := int64(0)
	for _, p := range order[:min(need, len(order))] {
		sum += p.Demand.Least()
		alike = alike && p.Demand.Single() && podrequest.EquivalenceClass(p.Pod) == podrequest.EquivalenceClass(order[0].Pod)
	}
	if sum > room || !alike {
		return sum > room
	}
	for range need {
		if firstFit(nodes, order[0].Demand) == len(nodes) {
			return true
		}
	}
	return false
}
