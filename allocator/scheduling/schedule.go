// SPDX-License-Identifier: Apache-2.0

// Package scheduling owns the decision: which node and which devices a pod gets, alone or with
// its gang, and why it gets none. It asks the ranking for plans, and the scheduler's filters
// about their nodes.
//
// One worker decides at a time; nothing here is locked. A decision reads the cache with the
// choices before it assumed, and writes nothing.
package scheduling

import (
	"context"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/clock"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/scheduling/ranking"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
)

// Scheduler decides.
type Scheduler struct {
	Cache   *cache.Cache
	Groups  *gang.Groups
	Queue   *queue.Queue
	Filters *feasible.Filters
	// Binder writes what is decided; nil where only Schedule and ScheduleGang are called.
	Binder *binding.Binder
	// Classes are the GPUClasses that there are; nil is none.
	Classes *classes.Set
	// PostFilter is asked for a pod that no node takes as it is; nil for none.
	PostFilter PostFilter
	// Reservations is the room that is promised to others; nil for none.
	Reservations *reservation.Reservations
	Clock        clock.PassiveClock
	Log          logr.Logger

	// ranking is nil until the first decision as the leader.
	ranking *ranking.Ranking
	seen    seen
	// searches are those for places for gangs that go on, or are to begin again; searching is
	// the one that is under way, nil outside of it.
	searches  map[podrequest.Group]*search
	searching *search
	turns     turns
}

// Request is a pod and what it asks for.
type Request struct {
	Pod    *corev1.Pod
	Demand *placement.Demand
}

// PostFilter looks for a node for a pod that finds devices on nodes that the filters
// refuse, as the scheduler's plugins of that name do.
type PostFilter interface {
	// PostFilter returns nil without such a node. The rooms are the nodes as the pod sees them. The
	// later reports that it is not to be asked now, and that the pod is looked at again.
	PostFilter(ctx context.Context, pod Request, rooms func() []*placement.Node, cycle func() (*feasible.Cycle, error)) (best *Candidate, later bool, err error)
	// Due reports whether a node may be asked to preempt for the pod now.
	Due(pod *corev1.Pod) bool
	// Nominate notes that a pod goes where the scheduler has to preempt for it, Denominate that it is
	// decided on once more.
	Nominate(pod *corev1.Pod)
	Denominate(pod *corev1.Pod)
}

// Waiter is who waits for room, with the pods that are to start together.
type Waiter struct {
	Item queue.Item
	Pods []Request
	Need int
	// Within is where they have to be.
	Within Within
}

// Candidate is a plan, and the node of the plan as it was made on.
type Candidate struct {
	Plan placement.Plan
	Room *placement.Node
}

// Lead forgets what was learnt before this replica became the leader.
func (s *Scheduler) Lead() {
	s.ranking, s.seen, s.searches = nil, seen{}, map[podrequest.Group]*search{}
}

// End ends the searches that have paused.
func (s *Scheduler) End() {
	s.endSearches(func(*search) bool { return true })
	s.ranking = nil
	s.Cache.StopArrivals()
}

// Schedule chooses node and devices for a pod that is placed alone: the best plan whose node
// the scheduler accepts. Without one it says why.
func (s *Scheduler) Schedule(ctx context.Context, pod Request) (*binding.Assignment, *Diagnosis, error) {
	start := s.Clock.Now()
	defer func() { decisionSeconds.Observe(s.Clock.Since(start).Seconds()) }()
	t := s.newCycle(queue.Item{Pod: podstate.KeyOf(pod.Pod)}, []Request{pod})
	defer t.end()
	why, err := t.next(ctx, pod)
	if why != nil || err != nil {
		return nil, why, err
	}
	choices, err := t.decided()
	if err != nil {
		return nil, nil, err
	}
	if reservation.Fills(s.seen.filled, &choices[0].Plan) {
		backfilled.Inc()
	}
	return &choices[0], nil, nil
}

func (s *Scheduler) newCycle(item queue.Item, set []Request) *cycle {
	return &cycle{Scheduler: s, asker: AskerOf(s.Cache, item, set), set: set, assumed: s.Cache.Assumption()}
}

// AskerOf is the owner of the pods of a set as one who asks for room.
func AskerOf(known *cache.Cache, item queue.Item, set []Request) reservation.Asker {
	pods := podsOf(set)
	return reservation.Asker{Item: item, Priority: known.Priorities.Least(pods), Pods: pods}
}

func podsOf(set []Request) []*corev1.Pod {
	pods := make([]*corev1.Pod, len(set))
	for i := range set {
		pods[i] = set[i].Pod
	}
	return pods
}
