// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/podstate"
)

// rank is where an item stands among those of a round: an owner of a reservation first. The pod is
// the oldest of a gang.
type rank struct {
	queue.Rank
	pod *corev1.Pod
}

func (a *Allocator) rankOf(it queue.Item) (r rank) {
	if it.Pod.Name != "" {
		if r.pod = a.cache.Pod(it.Pod); r.pod != nil {
			r.Priority = a.cache.Priorities.Of(r.pod)
		}
	} else if g := a.groups.Gang(it.Gang); len(g.Due) > 0 {
		r.pod, r.Priority = g.Due[0], a.cache.Priorities.Least(g.Due)
	}
	if r.pod != nil {
		r.Precedence = a.queue.Precedence(r.Priority, r.pod)
	}
	// For what is missing from a gang that runs room is reserved at once. That does not put it before
	// higher priorities: what was reserved for an equal, before which it goes, does.
	refills := r.Precedence%2 != 0
	r.First = slices.ContainsFunc(a.reservations.All(), func(held *reservation.Reservation) bool {
		own := held.Owner == it
		if !refills || held.Kind != reservation.Head {
			return own
		}
		return !own && 2*int64(held.Priority.Across)+1 == r.Precedence
	})
	return r
}

// compare has the owner of a reservation go first, then the higher precedence, then the older.
func (r rank) compare(s rank) int {
	switch {
	case r.First != s.First && r.First:
		return -1
	case r.First != s.First:
		return 1
	case r.Precedence != s.Precedence || r.pod == nil || s.pod == nil:
		return cmp.Compare(s.Precedence, r.Precedence)
	default:
		return podstate.ByAge(r.pod, s.pod)
	}
}

// inOrder sorts those of the items that are due, pods and gangs together. Where there is not
// time for all, every other one is the next by turn, so that each is looked at in the end.
func (a *Allocator) inOrder(items []queue.Item, due []int) []int {
	ranks := make(map[int]rank, len(due))
	for _, i := range due {
		ranks[i] = a.rankOf(items[i])
	}
	order := slices.Clone(due)
	slices.SortStableFunc(order, func(i, j int) int { return ranks[i].compare(ranks[j]) })
	queue.OwnFirst(order, func(i int) queue.Rank { return ranks[i].Rank })
	if a.turns == nil {
		return order
	}
	a.turns.sort(items, due)
	n, turn := len(due), due
	mixed, taken := make([]int, 0, n), map[int]bool{}
	for len(mixed) < n {
		for _, list := range []*[]int{&order, &turn} {
			for len(*list) > 0 && taken[(*list)[0]] {
				*list = (*list)[1:]
			}
			if len(*list) > 0 {
				taken[(*list)[0]] = true
				mixed = append(mixed, (*list)[0])
			}
		}
	}
	return mixed
}

// outranked returns a function that reports whether a device got room since now, and a pod of a
// higher precedence than the item's waits, or one of its namespace with a higher priority there,
// which has not been looked at since: it goes first.
func (a *Allocator) outranked() func(queue.Item) bool {
	rooms, known, highest, within := a.queue.Rooms(), false, int64(0), map[string]int32(nil)
	return func(it queue.Item) bool {
		if a.queue.Rooms() == rooms {
			return false
		}
		if !known {
			known = true
			highest, within = a.queue.HighestWaiting()
		}
		r := a.rankOf(it)
		own, waits := within[r.Priority.Namespace]
		return highest > r.Precedence || waits && own > r.Priority.Within
	}
}

// turns is how many of each namespace were looked at since more was due than there was time
// for; nil while there is time for all.
type turns map[string]int

// sort has those of namespaces go first of which the fewest were looked at: what one tenant has
// looked at again and again, and what takes long, is then not before all that others have.
func (t turns) sort(items []queue.Item, at []int) {
	nth, of := map[int]int{}, maps.Clone(t)
	for _, i := range at {
		nth[i] = of[items[i].Namespace()]
		of[items[i].Namespace()]++
	}
	slices.SortStableFunc(at, func(i, j int) int { return nth[i] - nth[j] })
}
