// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
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
// too. The larger ones go first; where one is left over because others took the only
// place that it can have, it goes before them; where it has none even so, and enough are
// left, they are tried without it. Who goes by another always goes after it.
func (a *Allocator) fit(ctx context.Context, asks []ask, need int) ([]choice, *misfit, error) {
	start := a.Clock.Now()
	defer func() { decisionSeconds.Observe(a.Clock.Since(start).Seconds()) }()
	order := slices.Clone(asks)
	slices.SortStableFunc(order, func(p, q ask) int { return cmp.Compare(q.demand.Devices(), p.demand.Devices()) })
	var first *misfit
	tries := 0
	promoted := map[types.UID]bool{}
	for {
		choices, miss, err := a.tryOrder(ctx, order, need)
		if miss == nil || err != nil {
			return choices, nil, err
		}
		if first == nil {
			first = miss
		}
		at := slices.IndexFunc(order, func(p ask) bool { return p.pod == miss.pod })
		tries++
		switch surplus := len(order) > need; {
		case tries > maxOrders || miss.why.known || promoted[miss.pod.UID] && at > 0 || at == 0 && !surplus:
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

// tryOrder is one try of fit.
func (a *Allocator) tryOrder(ctx context.Context, order []ask, need int) ([]choice, *misfit, error) {
	t := trial{Allocator: a, set: order}
	defer t.end()
	order = a.inTurn(order)
	var miss *misfit
	for i, pod := range order {
		why, err := t.next(ctx, pod)
		if err != nil {
			return nil, nil, err
		}
		if why == nil {
			continue
		}
		if miss == nil {
			miss = &misfit{pod: pod.pod, why: why}
		}
		if len(t.choices)+len(order)-i-1 < need {
			miss.fits = len(t.choices)
			return nil, miss, nil
		}
	}
	choices, err := t.decided()
	return choices, nil, err
}

// tellMisfit has the members wait for room, with what is missing.
func (a *Allocator) tellMisfit(g *gang, asks []ask, miss *misfit, kept, need, least int) {
	if miss.why.known {
		return
	}
	told := fmt.Sprintf("%s: room for %d of the %d pods that must start together; pod %s: %s", g.name, miss.fits+kept, need, keyOf(miss.pod), miss.why)
	if a.neverFits(asks, need) {
		told += fmt.Sprintf("; all GPUs of the cluster would not be enough for %d: lower %s, ask for less, or add nodes", least, g.name.API.Field())
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range asks {
		a.wait(p.pod, miss.why.refused > 0, "gang "+miss.why.cause(), told)
	}
	waitingPods.Set(float64(len(a.waiting)))
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
		alike = alike && p.demand.Single() && kindOf(p.pod) == kindOf(order[0].pod)
	}
	if sum > room || !alike {
		return sum > room
	}
	for range need {
		if !takeAny(nodes, order[0].demand) {
			return true
		}
	}
	return false
}

// takeAny takes the demand out of the first node that has it.
func takeAny(nodes []*placement.Node, demand *placement.Demand) bool {
	for i, n := range nodes {
		if plan, fits := placement.Fit(demand, n); fits {
			nodes[i] = n.Without(&plan)
			return true
		}
	}
	return false
}
