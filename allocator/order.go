// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	corev1helpers "k8s.io/component-helpers/scheduling/corev1"

	"vernier.dev/vernier/allocator/podgroup"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/reservation"
)

// rank is where an item stands among those of a round. The pod is the oldest of a gang.
type rank struct {
	owner      bool
	precedence int64
	pod        *corev1.Pod
}

func (a *Allocator) rankOf(it queue.Item) (r rank) {
	if it.Pod.Name != "" {
		if r.pod = a.cache.Pod(it.Pod); r.pod != nil {
			r.precedence = a.queue.Precedence(corev1helpers.PodPriority(r.pod), r.pod)
		}
	} else if g := a.groups.Gang(it.Gang); len(g.Due) > 0 {
		r.pod, r.precedence = g.Due[0], a.queue.Precedence(podgroup.Priority(g.Due), g.Due[0])
	}
	// For what is missing from a gang that runs room is reserved at once. That does not put it before
	// higher priorities: what was reserved for an equal, before which it goes, does.
	refills := r.precedence%2 != 0
	r.owner = slices.ContainsFunc(a.reservations.All(), func(held *reservation.Reservation) bool {
		own := held.Owner == it
		if !refills || held.Kind != reservation.Head {
			return own
		}
		return !own && 2*int64(held.Priority)+1 == r.precedence
	})
	return r
}

// compare has the owner of a reservation go first, then the higher precedence, then the older.
func (r rank) compare(s rank) int {
	switch {
	case r.owner != s.owner && r.owner:
		return -1
	case r.owner != s.owner:
		return 1
	case r.precedence != s.precedence || r.pod == nil || s.pod == nil:
		return cmp.Compare(s.precedence, r.precedence)
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
// higher precedence than the item's waits, which has not been looked at since: it goes first.
func (a *Allocator) outranked() func(queue.Item) bool {
	rooms, known, highest := a.queue.Rooms(), false, int64(0)
	return func(it queue.Item) bool {
		if a.queue.Rooms() == rooms {
			return false
		}
		if !known {
			known, highest = true, a.queue.HighestWaiting()
		}
		return highest > a.rankOf(it).precedence
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
