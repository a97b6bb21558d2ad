// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"cmp"
	"iter"
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

func (s *Scheduler) rankOf(it queue.Item) (r rank) {
	if it.Pod.Name != "" {
		if r.pod = s.Cache.Pod(it.Pod); r.pod != nil {
			r.Priority = s.Cache.Priorities.Of(r.pod)
		}
	} else if g := s.Groups.Gang(it.Gang); len(g.Due) > 0 {
		r.pod, r.Priority = g.Due[0], s.Cache.Priorities.Least(g.Due)
	}
	if r.pod != nil {
		r.Precedence = s.Queue.Precedence(r.Priority, r.pod)
	}
	// For what is missing from a gang that runs room is reserved at once. That does not put it before
	// higher priorities: what was reserved for an equal, before which it goes, does.
	refills := r.Precedence%2 != 0
	r.First = slices.ContainsFunc(s.Reservations.All(), func(held *reservation.Reservation) bool {
		own := held.Owner == it
		if !refills || held.Kind != reservation.Head {
			return own
		}
		return !own && 2*int64(held.Priority.Across)+1 == r.Precedence
	})
	return r
}

// compare has the owner of a reservation go first, then the higher precedence, then the older.
func (r rank) compare(o rank) int {
	switch {
	case r.First != o.First && r.First:
		return -1
	case r.First != o.First:
		return 1
	case r.Precedence != o.Precedence || r.pod == nil || o.pod == nil:
		return cmp.Compare(o.Precedence, r.Precedence)
	default:
		return podstate.ByAge(r.pod, o.pod)
	}
}

// InOrder yields the pods and gangs among the items of a round, and whether each is decided on in it.
// It is not once the round is full or out of time, nor while a pod of a higher precedence waits
// for new room. Two are at least: the first of the order, and the one whose turn it is.
func (s *Scheduler) InOrder(items []queue.Item, due []int) iter.Seq2[int, bool] {
	return func(yield func(int, bool) bool) {
		outranked, until, late := s.outranked(), s.Clock.Now().Add(2*RoundTime), false
		for n, i := range s.sorted(items, due) {
			if !late {
				full := n == queue.MaxRound
				outOfTime := n > 1 && !s.Clock.Now().Before(until)
				late = full || outOfTime
			}
			decided := !late && (n == 0 || !outranked(items[i]))
			if !yield(i, decided) {
				return
			}
			if decided && s.turns != nil {
				s.turns[items[i].Namespace()]++
			}
		}
		if !late {
			s.turns = nil
		} else if s.turns == nil {
			s.turns = turns{}
		}
	}
}

// Backlogged reports whether more was due in the last round than there was time for.
func (s *Scheduler) Backlogged() bool { return s.turns != nil }

// sorted are those of the items that are due, pods and gangs together, in order. With a backlog
// every other one is the next by turn, so that each is looked at in the end.
func (s *Scheduler) sorted(items []queue.Item, due []int) []int {
	ranks := make(map[int]rank, len(due))
	for _, i := range due {
		ranks[i] = s.rankOf(items[i])
	}
	order := slices.Clone(due)
	slices.SortStableFunc(order, func(i, j int) int { return ranks[i].compare(ranks[j]) })
	queue.OwnFirst(order, func(i int) queue.Rank { return ranks[i].Rank })
	if s.turns == nil {
		return order
	}
	s.turns.sort(items, due)
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
func (s *Scheduler) outranked() func(queue.Item) bool {
	rooms, known, highest, within := s.Queue.Rooms(), false, int64(0), map[string]int32(nil)
	return func(it queue.Item) bool {
		if s.Queue.Rooms() == rooms {
			return false
		}
		if !known {
			known = true
			highest, within = s.Queue.HighestWaiting()
		}
		r := s.rankOf(it)
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
