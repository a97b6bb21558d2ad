// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/podrequest"
)

// Outlook is whether pods that do not exist yet would all find room.
type Outlook int

const (
	// Waits: there is no room for all of them now.
	Waits Outlook = iota
	// Fits: there is.
	Fits
	// Leaving: there will be once the pods have gone that are ending.
	Leaving
	// Preempts: there is if the pods evict others of lower priority.
	Preempts
	// Never: the GPUs that there are would not do if nothing else were granted.
	Never
)

// Foresee chooses for pods that do not exist yet, under a name that is that of no gang. Without room it
// says why. It yields as ScheduleGang does, unless all is to be done at once.
func (s *Scheduler) Foresee(ctx context.Context, name podrequest.Group, asks []Request, atOnce bool) (choices []binding.Assignment, of Outlook, why string, err error) {
	if err := CheckMembers(asks, "the number of pods"); err != nil {
		return nil, Never, err.Error(), nil
	}
	var miss *GangDiagnosis
	if atOnce {
		choices, miss, err = s.fit(ctx, queue.Item{Gang: name}, asks, len(asks), Within{})
	} else {
		choices, miss, err = s.ScheduleGang(ctx, name, asks, len(asks), Within{})
	}
	if err != nil || miss == nil {
		return choices, Fits, "", err
	}
	why = fmt.Sprintf("room for %d of %d pods; pod %s: %s", miss.Fits, len(asks), miss.Pod.Name, miss.Why)
	return nil, s.outlook(asks), why, nil
}

// outlook is that of pods that do not fit now, by the devices and by what keeps pods off nodes
// whatever is free there.
func (s *Scheduler) outlook(asks []Request) Outlook {
	now, leaves := s.Clock.Now(), map[types.UID]bool{}
	for _, pod := range s.Cache.Leaving() {
		leaves[pod.UID] = backfill.Leaves(pod, now, backfill.Lookahead)
	}
	for _, uid := range s.Cache.Strangers() {
		leaves[uid] = true
	}
	without := func(gone func(types.UID) bool) (rooms []*placement.Node) {
		for _, name := range s.Cache.Index.Names() {
			if ledger := s.Cache.Index.Ledger(name); ledger != nil {
				if room := index.Room(grants.Without(ledger, gone)); room != nil {
					rooms = append(rooms, room)
				}
			}
		}
		return rooms
	}
	mayEnd := s.Cache.Priorities.MayEnd(asks[0].Pod)
	switch {
	case s.neverFit(asks):
		return Never
	case s.packs(s.Cache.Index.Room(), asks):
		return Waits // for something else than devices, or others have them reserved
	case len(leaves) > 0 && s.packs(without(func(uid types.UID) bool { return leaves[uid] }), asks):
		return Leaving
	case s.packs(without(func(uid types.UID) bool {
		pod := s.Cache.PodOf(uid)
		return leaves[uid] || pod != nil && (podrequest.OnIdle(pod) || mayEnd(pod))
	}), asks):
		return Preempts
	}
	return Waits
}

// neverFit reports whether the nodes that the pods may go to would not do if nothing were granted, all
// devices were healthy and all agents ready. Where there is no such node, one may come.
func (s *Scheduler) neverFit(asks []Request) bool {
	var all []*placement.Node
	for _, name := range s.Cache.Index.Names() {
		if ledger := s.Cache.Index.Ledger(name); ledger != nil {
			all = append(all, index.Bare(ledger))
		}
	}
	never := func(asks []Request) bool {
		admits := s.Filters.Admits(podsOf(asks))
		nodes := slices.DeleteFunc(slices.Clone(all), func(n *placement.Node) bool { return !admits(n.Name) })
		return len(nodes) > 0 && neverFit(nodes, asks, len(asks))
	}
	return never(asks) || slices.ContainsFunc(s.byKind(asks), never)
}

// packs reports whether the rooms take all of the pods, the larger ones first.
func (s *Scheduler) packs(rooms []*placement.Node, asks []Request) bool {
	kinds := s.byKind(asks)
	slices.SortStableFunc(kinds, func(p, q []Request) int { return cmp.Compare(q[0].Demand.Least(), p[0].Demand.Least()) })
	for _, kind := range kinds {
		admits, at := s.Filters.Admits([]*corev1.Pod{kind[0].Pod}), 0
		for range kind {
			for ; at < len(rooms); at++ {
				if plan, fits := placement.Fit(kind[0].Demand, rooms[at]); fits && admits(rooms[at].Name) {
					rooms[at] = rooms[at].Without(&plan)
					break
				}
			}
		}
		if at == len(rooms) {
			return false
		}
	}
	return true
}

// byKind are the pods that ask for the same of nodes and devices, together.
func (s *Scheduler) byKind(asks []Request) [][]Request {
	of, all := kindsOf(asks), [][]Request(nil)
	for i, kind := range of.of {
		if kind == len(all) {
			all = append(all, nil)
		}
		all[kind] = append(all[kind], asks[i])
	}
	return all
}
