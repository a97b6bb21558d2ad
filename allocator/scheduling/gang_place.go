// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/cause"
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

// PlaceGang decides on the members of a gang that wait, and writes what it decides. Without room
// it returns the gang as one that waits for it.
func (s *Scheduler) PlaceGang(ctx context.Context, r *binding.Round, name podrequest.Group) (*Waiter, error) {
	defer s.endUnvisited(name)()
	g := s.Groups.Gang(name)
	if len(g.Due) == 0 {
		return nil, nil
	}
	if split, single := s.Groups.Split(g); split {
		for _, pod := range single {
			s.Queue.Add(queue.Item{Pod: podstate.KeyOf(pod)})
		}
		return nil, nil
	}
	// Whatever comes of it, what is noted of them ends with the round.
	for _, pod := range g.Due {
		s.begin(r, pod)
	}
	need := g.Missing()
	switch {
	case errors.Is(g.Err, podgroup.ErrUnknown):
		return nil, s.holdNothing(ctx, g.Due, notify.ReasonWaiting, cause.GangUnread, fmt.Sprintf("%s: %v", name, g.Err))
	case g.Err != nil:
		return nil, s.holdNothing(ctx, g.Due, notify.ReasonInvalid, cause.GangInvalid, g.Err.Error())
	case need > len(g.Due) && g.In > 0 && s.begun(g):
		need = len(g.Due)
	case need > len(g.Due):
		return nil, s.holdNothing(ctx, g.Due, notify.ReasonWaiting, cause.GangIncomplete, g.Incomplete())
	}
	if s.Queue.Blocked(g.Due...) {
		return nil, nil
	}
	if refused := s.Binder.Refused(g.Due...); refused != "" {
		return nil, s.holdNothing(ctx, g.Due, notify.ReasonWriteRefused, cause.WriteRefused, fmt.Sprintf("%s: %s. %s", name, refused, binding.RetryText))
	}
	asks, unfit := s.requests(g.Due)
	if need > len(asks) {
		why, of := "cannot be placed as it is, its own events say why", cause.GangInvalid
		if errors.Is(unfit.err, placement.ErrNoClass) {
			why, of = "waits: "+unfit.err.Error(), cause.NoClass
		}
		return nil, s.holdNothing(ctx, g.Due, notify.ReasonWaiting, of, fmt.Sprintf("%s: pod %s %s", name, podstate.KeyOf(unfit.pod), why))
	}
	if errors.Is(unfit.err, placement.ErrNoClass) {
		s.markInvalid(unfit.pod, unfit.err)
	}
	if err := CheckMembers(asks, name.API.Field()); err != nil {
		return nil, s.holdNothing(ctx, g.Due, notify.ReasonInvalid, cause.GangInvalid, fmt.Sprintf("%s: %v", name, err))
	}
	waiter, err := s.placeMembers(ctx, g, asks, need)
	if errors.Is(err, binding.ErrGone) {
		err = nil
	}
	return waiter, err
}

// begun reports whether all members that wait have their slices, held no longer. There
// were enough of them then, and one that is ungated already would be alone if the others
// gave theirs back because another has ended: they follow it, as if it had ended later.
func (s *Scheduler) begun(g *gang.Gang) bool {
	for _, pod := range g.Due {
		nodes := s.Cache.Index.Holders(pod.UID)
		if len(nodes) == 0 {
			return false
		}
		for _, node := range nodes {
			if ledger := s.Cache.Index.Ledger(node); ledger == nil || grants.Held(ledger)[pod.UID] != nil {
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

// requests are what the pods ask for, and one that asks for what cannot be.
func (s *Scheduler) requests(pods []*corev1.Pod) (asks []Request, last unfit) {
	for _, pod := range pods {
		ask, err := RequestOf(pod, s.Classes)
		if err == nil {
			asks = append(asks, ask)
			continue
		}
		if last = (unfit{pod, err}); !errors.Is(err, placement.ErrNoClass) {
			s.Queue.MarkInvalid(pod, err)
		}
	}
	return asks, last
}

// holdNothing has a pod, or the members of a gang, wait for something else than room.
func (s *Scheduler) holdNothing(ctx context.Context, pods []*corev1.Pod, reason string, of cause.Cause, text string) error {
	key := string(of)
	if reason == notify.ReasonInvalid {
		key = text // another text is another mistake
	}
	s.Queue.MarkElsewhere(pods, reason, notify.Why{Cause: of, Key: key, Text: text})
	err := s.giveBack(ctx, pods)
	if errors.Is(err, binding.ErrGone) {
		return nil
	}
	return err
}

// placeMembers gives at least need members of a gang their slices and ungates them, or
// has none of them hold anything.
func (s *Scheduler) placeMembers(ctx context.Context, g *gang.Gang, asks []Request, need int) (*Waiter, error) {
	members, rest, err := s.granted(ctx, asks)
	if err != nil {
		return nil, err
	}
	if len(rest) > 0 && len(g.Due) < g.Missing() {
		// They are fewer than must start together. Each would have followed the ungated
		// members with the slices that it has; that places no other member.
		return nil, s.holdNothing(ctx, g.Due, notify.ReasonWaiting, cause.GangIncomplete, g.Incomplete())
	}
	within := WithinOf(g)
	for _, m := range members {
		within.Nodes = append(within.Nodes, m.Node)
	}
	choices, miss, err := s.ScheduleGang(ctx, g.Name, rest, need-len(members), within)
	if err != nil {
		return nil, err
	}
	if miss != nil {
		s.markUnschedulable(g, asks, miss, len(members), need)
		var waiter *Waiter
		if len(members) == 0 && !miss.Why.Avoided {
			waiter = &Waiter{Item: queue.Item{Gang: g.Name}, Pods: asks, Need: need, Within: WithinOf(g)}
		}
		return waiter, s.giveBack(ctx, g.Due)
	}
	if err := s.Binder.Reserve(ctx, g.Name.Owner(), members, choices); err != nil {
		return nil, err
	}
	for _, c := range choices {
		s.Binder.Handlers.Assume(c.Pod, c.Plan.Node)
		members = append(members, &binding.Pending{Pod: c.Pod, Node: c.Plan.Node})
	}
	if len(members) > 1 {
		if may, err := s.Binder.MayUngate(ctx, members); !may {
			return nil, err
		}
	}
	if err := s.Binder.Commit(ctx, members); err != nil {
		return nil, err
	}
	return nil, s.Binder.All(len(members), func(i int) error { return s.Binder.Ungate(ctx, members[i].Pod, members[i].Node) })
}

// granted splits the members that have good slices from the others: an allocator began
// to place the gang and died, or a write of ours got no answer.
func (s *Scheduler) granted(ctx context.Context, asks []Request) (members []*binding.Pending, rest []Request, err error) {
	for _, p := range asks {
		node, err := s.grantedNode(ctx, p.Pod, p.Demand.Shares)
		if err != nil {
			return nil, nil, err
		}
		if node == "" {
			rest = append(rest, p)
			continue
		}
		// The next one is judged beside it.
		s.Binder.Handlers.Assume(p.Pod, node)
		members = append(members, &binding.Pending{Pod: p.Pod, Node: node})
	}
	return members, rest, nil
}

// giveBack takes back what gated pods have.
func (s *Scheduler) giveBack(ctx context.Context, pods []*corev1.Pod) error {
	for _, pod := range pods {
		for _, node := range s.Cache.Index.Holders(pod.UID) {
			s.Binder.Handlers.Assume(pod, "")
			if err := s.Binder.TakeBack(ctx, pod, node); err != nil {
				return err
			}
		}
	}
	return nil
}

// markUnschedulable notes that the members wait for room, with what is missing.
func (s *Scheduler) markUnschedulable(g *gang.Gang, asks []Request, miss *GangDiagnosis, kept, need int) {
	if miss.Why.Known {
		return
	}
	within, where, of := WithinOf(g), "", "the cluster"
	if miss.Domain != "" {
		where = fmt.Sprintf(" on nodes of one %s; most is in %s", within.Text(), miss.Domain)
		of = "one " + within.Text()
	}
	message := fmt.Sprintf("%s: room for %d of the %d pods that must start together%s; pod %s: %s", g.Name, miss.Fits+kept, need, where, podstate.KeyOf(miss.Pod), miss.Why)
	if s.NeverFits(asks, need, within) {
		message += fmt.Sprintf("; all GPUs of %s would not be enough for %d: lower %s, ask for less, or add nodes", of, g.Least, g.Name.API.Field())
	}
	pods := make([]*corev1.Pod, len(asks))
	for i := range asks {
		pods[i] = asks[i].Pod
	}
	s.Queue.MarkUnschedulable(pods, miss.Why.Refused > 0, notify.Why{Cause: miss.cause(), Key: "gang " + miss.Why.Key(), Text: message})
}
