// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
)

// A gang is a set of pods of which a number must start together. Its look ends in
// one of two ways: at least that many have their slices and are ungated, or none of
// those that wait holds anything. Two gangs therefore never keep each other waiting
// with half of what they need: the next look finds all of the room.
//
// Where the slices are in the ledgers of several nodes, they are held first: all of
// them, each with an expiry; then all are committed; then all pods are ungated. A
// look that fails in between is repeated; after a crash the next leader goes on, or
// takes back what is of no use. Members that run count, so one that died and was
// made again joins them, and so does one that comes late.

// reconcileGang looks at a gang.
func (a *Allocator) reconcileGang(ctx context.Context, r *binding.Round, name podrequest.Group) error {
	defer a.scheduler.Look(name)()
	g := a.groups.Gang(name)
	if len(g.Due) == 0 {
		return nil
	}
	if split, single := a.groups.Split(g); split {
		for _, pod := range single {
			a.queue.Add(queue.Item{Pod: podstate.KeyOf(pod)})
		}
		return nil
	}
	// Whatever comes of it, what is noted of them ends with the round.
	for _, pod := range g.Due {
		a.startPlacing(r, pod)
	}
	need := g.Missing()
	switch {
	case errors.Is(g.Err, podgroup.ErrUnknown):
		return a.holdNothing(ctx, g.Due, notify.ReasonWaiting, "groups not read", fmt.Sprintf("%s: %v", name, g.Err))
	case g.Err != nil:
		return a.holdNothing(ctx, g.Due, notify.ReasonInvalid, g.Err.Error(), g.Err.Error())
	case need > len(g.Due) && g.In > 0 && a.begun(g):
		need = len(g.Due)
	case need > len(g.Due):
		return a.holdNothing(ctx, g.Due, notify.ReasonWaiting, "incomplete", g.Incomplete())
	}
	if a.queue.Blocked(g.Due...) {
		return nil
	}
	if refused := a.binder.Refused(g.Due...); refused != "" {
		return a.holdNothing(ctx, g.Due, notify.ReasonWriteRefused, "refused write", fmt.Sprintf("%s: %s. %s", name, refused, binding.RetryText))
	}
	asks, unfit := a.asks(g.Due)
	if need > len(asks) {
		why := "cannot be placed as it is, its own events say why"
		if errors.Is(unfit.err, placement.ErrNoClass) {
			why = "waits: " + unfit.err.Error()
		}
		return a.holdNothing(ctx, g.Due, notify.ReasonWaiting, "invalid member", fmt.Sprintf("%s: pod %s %s", name, podstate.KeyOf(unfit.pod), why))
	}
	if errors.Is(unfit.err, placement.ErrNoClass) {
		a.markInvalid(unfit.pod, unfit.err)
	}
	if err := scheduling.CheckMembers(asks, name.API.Field()); err != nil {
		return a.holdNothing(ctx, g.Due, notify.ReasonInvalid, "kinds", fmt.Sprintf("%s: %v", name, err))
	}
	err := a.placeGang(ctx, g, asks, need)
	if errors.Is(err, binding.ErrGone) {
		return nil
	}
	return err
}

// begun reports whether all members that wait have their slices, held no longer. There
// were enough of them then, and one that is ungated already would be alone if the others
// gave theirs back because another has ended: they follow it, as if it had ended later.
func (a *Allocator) begun(g *gang.Gang) bool {
	for _, pod := range g.Due {
		nodes := a.cache.Index.Holders(pod.UID)
		if len(nodes) == 0 {
			return false
		}
		for _, node := range nodes {
			if ledger := a.cache.Index.Ledger(node); ledger == nil || grants.Held(ledger)[pod.UID] != nil {
				return false
			}
		}
	}
	return true
}

// unfit is a pod that asks for what cannot be.
type unfit struct {
	pod *corev1.Pod
	err error
}

// asks are what the pods ask for, and one that asks for what cannot be.
func (a *Allocator) asks(pods []*corev1.Pod) (asks []scheduling.Request, last unfit) {
	for _, pod := range pods {
		demand, err := a.asksOf(pod)
		if err != nil {
			if !errors.Is(err, placement.ErrNoClass) {
				a.queue.MarkInvalid(pod, err)
			}
			last = unfit{pod, err}
			continue
		}
		asks = append(asks, scheduling.Request{Pod: pod, Demand: demand})
	}
	return asks, last
}

// holdNothing has a pod, or the members of a gang, wait for something else than room.
func (a *Allocator) holdNothing(ctx context.Context, pods []*corev1.Pod, reason, cause, message string) error {
	a.queue.MarkElsewhere(pods, reason, cause, message)
	err := a.giveBack(ctx, pods)
	if errors.Is(err, binding.ErrGone) {
		return nil
	}
	return err
}

// placeGang gives at least need members of a gang their slices and ungates them, or
// has none of them hold anything.
func (a *Allocator) placeGang(ctx context.Context, g *gang.Gang, asks []scheduling.Request, need int) error {
	members, rest, err := a.granted(ctx, asks)
	if err != nil {
		return err
	}
	if len(rest) > 0 && len(g.Due) < g.Missing() {
		// They are fewer than must start together. Each would have followed the ungated
		// members with the slices that it has; that places no other member.
		return a.holdNothing(ctx, g.Due, notify.ReasonWaiting, "incomplete", g.Incomplete())
	}
	within := scheduling.WithinOf(g)
	for _, m := range members {
		within.Nodes = append(within.Nodes, m.Node)
	}
	choices, miss, err := a.scheduler.ScheduleGang(ctx, g.Name, rest, need-len(members), within)
	if err != nil {
		return err
	}
	if miss != nil {
		a.markUnschedulable(g, asks, miss, len(members), need)
		if len(members) == 0 && !miss.Why.Avoided {
			a.short = &preemption.Waiter{Item: queue.Item{Gang: g.Name}, Pods: asks, Need: need, Within: scheduling.WithinOf(g)}
		}
		return a.giveBack(ctx, g.Due)
	}
	if err := a.binder.Reserve(ctx, g.Name.Owner(), members, choices); err != nil {
		return err
	}
	for _, c := range choices {
		a.Assume(c.Pod, c.Plan.Node)
		members = append(members, &binding.Pending{Pod: c.Pod, Node: c.Plan.Node})
	}
	if len(members) > 1 {
		if may, err := a.binder.MayUngate(ctx, members); !may {
			return err
		}
	}
	if err := a.binder.Commit(ctx, members); err != nil {
		return err
	}
	return a.binder.All(len(members), func(i int) error { return a.binder.Ungate(ctx, members[i].Pod, members[i].Node) })
}

// granted splits the members that have good slices from the others: an allocator began
// to place the gang and died, or a write of ours got no answer.
func (a *Allocator) granted(ctx context.Context, asks []scheduling.Request) (members []*binding.Pending, rest []scheduling.Request, err error) {
	for _, p := range asks {
		node, err := a.grantedNode(ctx, p.Pod, p.Demand.Shares)
		if err != nil {
			return nil, nil, err
		}
		if node == "" {
			rest = append(rest, p)
			continue
		}
		// The next one is judged beside it.
		a.Assume(p.Pod, node)
		members = append(members, &binding.Pending{Pod: p.Pod, Node: node})
	}
	return members, rest, nil
}

// giveBack takes back what gated pods have.
func (a *Allocator) giveBack(ctx context.Context, pods []*corev1.Pod) error {
	for _, pod := range pods {
		for _, node := range a.cache.Index.Holders(pod.UID) {
			a.Assume(pod, "")
			if err := a.binder.TakeBack(ctx, pod, node); err != nil {
				return err
			}
		}
	}
	return nil
}

// markUnschedulable notes that the members wait for room, with what is missing.
func (a *Allocator) markUnschedulable(g *gang.Gang, asks []scheduling.Request, miss *scheduling.GangDiagnosis, kept, need int) {
	if miss.Why.Known {
		return
	}
	within, where, of := scheduling.WithinOf(g), "", "the cluster"
	if miss.Domain != "" {
		where = fmt.Sprintf(" on nodes of one %s; most is in %s", within.Text(), miss.Domain)
		of = "one " + within.Text()
	}
	message := fmt.Sprintf("%s: room for %d of the %d pods that must start together%s; pod %s: %s", g.Name, miss.Fits+kept, need, where, podstate.KeyOf(miss.Pod), miss.Why)
	if a.scheduler.NeverFits(asks, need, within) {
		message += fmt.Sprintf("; all GPUs of %s would not be enough for %d: lower %s, ask for less, or add nodes", of, g.Least, g.Name.API.Field())
	}
	pods := make([]*corev1.Pod, len(asks))
	for i := range asks {
		pods[i] = asks[i].Pod
	}
	a.queue.MarkUnschedulable(pods, miss.Why.Refused(), "gang "+miss.Why.Cause(), message)
}
