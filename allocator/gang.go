// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/group"
	"vernier.dev/vernier/allocator/ledgerspec"
	"vernier.dev/vernier/allocator/podstate"
)

// A gang is a set of pods of which a number must start together. Its look ends in
// one of two ways: at least that many have their slices and are let go, or none of
// those that wait holds anything. Two gangs therefore never keep each other waiting
// with half of what they need: whoever is looked at next finds all of the room.
//
// Where the slices are in the ledgers of several nodes, they are held first: all of
// them, each with an expiry; then all are committed; then all pods are let go. A
// look that fails in between is repeated; after a crash whoever leads next goes on,
// or gives back what there is no use for. Members that run count, so one that died
// and was made again joins them, and so does one that comes late.

// reconcileGang looks at a gang.
func (a *Allocator) reconcileGang(ctx context.Context, r *round, name group.Name) error {
	if s := a.searches[name]; s != nil {
		s.visited = false
		// What does not come to it is about other things, as that a member is gone.
		defer a.endSearches(func(other *search) bool { return other == s && !s.visited })
	}
	g := a.gang(name)
	if len(g.due) == 0 || a.part(g) {
		return nil
	}
	// Whatever comes of it, what is noted of them ends with the round.
	for _, pod := range g.due {
		r.begin(pod)
	}
	need := g.missing()
	switch {
	case errors.Is(g.err, group.ErrUnknown):
		return a.holdNothing(ctx, g, reasonWaiting, "groups not read", fmt.Sprintf("%s: %v", name, g.err))
	case g.err != nil:
		return a.holdNothing(ctx, g, reasonInvalid, g.err.Error(), g.err.Error())
	case need > len(g.due) && g.in > 0 && a.begun(g):
		need = len(g.due)
	case need > len(g.due):
		return a.holdNothing(ctx, g, reasonWaiting, "incomplete", g.incomplete())
	}
	if a.queues(g.due...) {
		return nil
	}
	asks, unfit := a.asks(g.due)
	if need > len(asks) {
		return a.holdNothing(ctx, g, reasonWaiting, "invalid member", fmt.Sprintf("%s: pod %s cannot be placed as it is, its own events say why", name, podstate.KeyOf(unfit)))
	}
	if err := checkMembers(g, asks); err != nil {
		return a.holdNothing(ctx, g, reasonInvalid, "kinds", err.Error())
	}
	err := a.placeGang(ctx, g, asks, need)
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// begun tells whether all members that wait have their slices, held no longer. There
// were enough of them then, and one that was let go already would be alone if the others
// gave theirs back because another has ended: they follow it, as if it had ended later.
func (a *Allocator) begun(g *gang) bool {
	for _, pod := range g.due {
		nodes := a.index.Holders(pod.UID)
		if len(nodes) == 0 {
			return false
		}
		for _, node := range nodes {
			if ledger := a.index.Ledger(node); ledger == nil || ledgerspec.Held(ledger)[pod.UID] != nil {
				return false
			}
		}
	}
	return true
}

// alone tells whether the pod is placed by itself: it belongs to no gang, or there
// are enough of its gang with it. One of an earlier run is not the one that is missing: its
// controller was made again, and it goes in a moment.
func (a *Allocator) alone(pod *corev1.Pod) bool {
	name, is := group.Of(pod)
	if !is {
		return true
	}
	g := a.gang(name)
	return g.enough() && slices.ContainsFunc(g.due, func(p *corev1.Pod) bool { return p.UID == pod.UID })
}

// asks are what the pods ask for. unfit is one that asks for what cannot be.
func (a *Allocator) asks(pods []*corev1.Pod) (asks []ask, unfit *corev1.Pod) {
	for _, pod := range pods {
		demand, _, err := asksOf(pod)
		if err != nil {
			a.refuse(pod, err)
			unfit = pod
			continue
		}
		asks = append(asks, ask{pod, demand})
	}
	return asks, unfit
}

// holdNothing has the members of a gang wait for something else than room.
func (a *Allocator) holdNothing(ctx context.Context, g *gang, reason, cause, told string) error {
	a.mu.Lock()
	for _, pod := range g.due {
		a.waitElsewhere(pod, reason, cause, told)
	}
	a.mu.Unlock()
	err := a.giveBack(ctx, g.due)
	if errors.Is(err, errGone) {
		return nil
	}
	return err
}

// incomplete says how many of how many are there.
func (g *gang) incomplete() string {
	text := fmt.Sprintf("%s: %d of %d pods are there", g.name, len(g.members), g.least)
	if n := g.away(); n > 0 {
		text += fmt.Sprintf(", %d of them wait(s) for scheduling gates of others: %v", n, g.gates)
	}
	return text + fmt.Sprintf("; they start together (%s)", g.name.API.Field())
}
