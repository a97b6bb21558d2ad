// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/podrequest"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// maxOrders bounds how often a gang is tried again with the member first that found
// no place, or without it. Each try costs a decision for every member.
const maxOrders = 8

// misfit is why a gang cannot be placed.
type misfit struct {
	// pod is the first member without a place, fits how many had one.
	pod  *corev1.Pod
	why  *shortage
	fits int
}

// fit chooses for at least need of a gang's members, and for as many more as fit
// too. The larger ones go first; where those that go by each other have no room where the
// first of them went, the other places that have it are tried.
func (a *Allocator) fit(ctx context.Context, asks []ask, need int) ([]choice, *misfit, error) {
	order := slices.Clone(asks)
	slices.SortStableFunc(order, func(p, q ask) int { return cmp.Compare(q.demand.Devices(), p.demand.Devices()) })
	choices, miss, err := a.fitIn(ctx, order, need, nil, maxOrders)
	if miss == nil || err != nil {
		return choices, nil, err
	}
	for _, in := range a.domains(order, need) {
		if choices, none, err := a.fitIn(ctx, order, need, in, domainOrders); none == nil || err != nil {
			return choices, nil, err
		}
	}
	return nil, miss, nil
}

// fitIn is fit in one domain, or anywhere. Who is left over because others took the only
// place that it can have goes before them, and those by which it goes before it; where
// that does not help, it goes before those too. Who has none even so, if enough are left,
// is left out.
func (a *Allocator) fitIn(ctx context.Context, order []ask, need int, in *domain, orders int) ([]choice, *misfit, error) {
	order = slices.Clone(order)
	var first *misfit
	tries := 0
	promoted, leads := map[types.UID]bool{}, map[types.UID]bool{}
	for {
		choices, miss, err := a.tryOrder(ctx, order, need, in, leads)
		if miss == nil || err != nil {
			return choices, nil, err
		}
		if first == nil {
			first = miss
		}
		at := slices.IndexFunc(order, func(p ask) bool { return p.pod == miss.pod })
		tries++
		switch surplus := len(order) > need; {
		case tries > orders || miss.why.known && orderIsNoMatter(order, at, a.Filters.ShunnedAlike):
			return nil, first, nil
		case at == 0 && !leads[miss.pod.UID] && a.inTurn(order)[0].pod != miss.pod:
			leads[miss.pod.UID] = true
		case promoted[miss.pod.UID] && at > 0 || at == 0 && !surplus:
			return nil, first, nil
		case at == 0:
			// Even first it has no place, and there are enough without it.
			order = order[1:]
		default:
			promoted[miss.pod.UID] = true
			pod := order[at]
			order = slices.Insert(slices.Delete(order, at, at+1), 0, pod)
		}
	}
}

// orderIsNoMatter tells whether another order would come to the same, since all before the
// pod that has no place are like it, or all at all where it is the first. Who waits is
// looked at often, and most gangs are of pods that are alike. To one that goes by others of
// them all are others, and they have to be alike to what it wishes for as well. To pods
// that are there already they have to be alike in any case.
func orderIsNoMatter(order []ask, at int, shunnedAlike func(p, q *corev1.Pod) bool) bool {
	pod, others := order[at].pod, order[:at]
	company := feasible.CompanyOf(pod)
	if at == 0 || company != nil {
		others = order
	}
	return !slices.ContainsFunc(others, func(p ask) bool {
		return !alike(p.pod, pod) || !company.Alike(p.pod, pod) || !shunnedAlike(p.pod, pod)
	})
}

// alike tells whether each of two pods may go where the other may. The claims of each may be
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
		podstate.Priority(p) == podstate.Priority(q) &&
		slices.EqualFunc(p.Spec.InitContainers, q.Spec.InitContainers, same) &&
		slices.EqualFunc(p.Spec.Containers, q.Spec.Containers, same)
}

// tryOrder is one try of fitIn, with the leads before those by which they go.
func (a *Allocator) tryOrder(ctx context.Context, order []ask, need int, in *domain, leads map[types.UID]bool) ([]choice, *misfit, error) {
	t := trial{Allocator: a, set: order, in: in, leads: leads}
	defer t.end()
	turn := a.inTurn(order)
	if len(leads) > 0 {
		turn = slices.Clone(turn)
		lead := func(p ask) bool { return leads[p.pod.UID] }
		turn = slices.Concat(slices.DeleteFunc(slices.Clone(turn), func(p ask) bool { return !lead(p) }), slices.DeleteFunc(turn, lead))
	}
	var miss *misfit
	for i, pod := range turn {
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
			miss = &misfit{pod: pod.pod, why: why}
		}
		if len(t.choices)+len(turn)-i-1 < need {
			miss.fits = len(t.choices)
			return nil, miss, nil
		}
	}
	// Pods that came while the search had paused may be in the way of what was chosen before
	// that, by an affinity, a port or a spread.
	paused := t.searching != nil && t.searching.paused
	if len(leads) > 0 || paused {
		miss, err := t.judgeAgain(ctx, a.inTurn(order))
		if miss != nil && len(leads) == 0 {
			err = errStale
		}
		if miss != nil || err != nil {
			return nil, miss, err
		}
	}
	choices, err := t.decided()
	return choices, nil, err
}

// tellMisfit has the members wait for room, with what is missing.
func (a *Allocator) tellMisfit(g *gang, asks []ask, miss *misfit, kept, need int) {
	if miss.why.known {
		return
	}
	told := fmt.Sprintf("%s: room for %d of the %d pods that must start together; pod %s: %s", g.name, miss.fits+kept, need, podstate.KeyOf(miss.pod), miss.why)
	if a.neverFits(asks, need) {
		told += fmt.Sprintf("; all GPUs of the cluster would not be enough for %d: lower %s, ask for less, or add nodes", g.least, g.name.API.Field())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range asks {
		a.wait(p.pod, miss.why.refused > 0, "gang "+miss.why.cause(), told)
	}
}

// neverFits tells whether so many of the pods would not have their devices even if
// nothing else were granted. It may say no where that is hard to tell: pods that are
// not alike can be arranged in many ways.
func (a *Allocator) neverFits(asks []ask, need int) bool {
	nodes, room := a.index.Empty(), int64(0)
	for _, n := range nodes {
		room += int64(len(n.Devices)) * int64(v1alpha1.WholeGPU)
	}
	order, alike := slices.Clone(asks), true
	slices.SortFunc(order, func(p, q ask) int { return cmp.Compare(p.demand.Least(), q.demand.Least()) })
	sum := int64(0)
	for _, p := range order[:min(need, len(order))] {
		sum += p.demand.Least()
		alike = alike && p.demand.Single() && podrequest.EquivalenceClass(p.pod) == podrequest.EquivalenceClass(order[0].pod)
	}
	if sum > room || !alike {
		return sum > room
	}
	for range need {
		if firstFit(nodes, order[0].demand) == len(nodes) {
			return true
		}
	}
	return false
}
