// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"cmp"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/priority"
	"vernier.dev/vernier/api/cause"
)

// unschedulablePod is why a pod waits and what its owner was sent about it.
type unschedulablePod struct {
	uid types.UID
	// refused is true when there are devices on nodes that the scheduler would
	// refuse: then changes of nodes and pods can help too.
	refused bool
	// labels is true when the nodes of its gang have to have the same values of some labels:
	// then changes of nodes can help as well.
	labels bool
	// elsewhere is true when the pod waits for something else than room: the other
	// pods of its gang, or their gates, or a pod that is to be bound before it.
	elsewhere bool
	// victims is true when pods of lower priority were looked for, in vain: then what the
	// scheduler's filters read can help as well. barred is why some may not be evicted.
	victims bool
	barred  string
	// key is why it waits, without figures, and since is from when on.
	key   string
	since time.Time
	// why is what is short, of one that waits for room; refills is true where a gang that runs is
	// below its minimum without the pod.
	why     notify.Why
	refills bool
	// explain is when that is to be found out again.
	explain time.Time
	sent    notify.Notices
}

// keyInvalid is the key of a pod that asks for what cannot be.
const keyInvalid = "invalid"

// MarkUnschedulable notes that the pods fit nowhere, and sends their owners why. The refused says
// that there are devices, on nodes that the scheduler would refuse. New figures are no news.
func (q *Queue) MarkUnschedulable(pods []*corev1.Pod, refused bool, why notify.Why) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, pod := range pods {
		w, known := q.waits(pod, why.Key)
		if !known {
			continue
		}
		w.refused, w.elsewhere = refused, false
		if of := q.itemOf(pod); of.Gang.Name != "" {
			w.labels = len(q.groups.Gang(of.Gang).Topology) > 0
		}
		w.why, w.refills = why, false
		if g := q.groups.Refills(pod); g != nil {
			w.refills = true
			w.why.Text = fmt.Sprintf("%s has %d of %d pods and its missing ones go before others of their priority: %s",
				g.Name, g.In, g.Least, strings.TrimPrefix(why.Text, g.Name.String()+": "))
		}
		again := notify.RepeatAfter
		// New figures can wait for the next look, another reason is not to be missed.
		if due, later := q.sendWaiting(pod, &w); later && !w.sent.LastIs(w.event().Key) {
			q.addAfter(q.itemOf(pod), due)
			again = min(again, due)
		}
		w.explain = q.clock.Now().Add(again)
		q.unschedulable[podstate.KeyOf(pod)] = w
	}
}

// MarkNoVictims notes that pods of lower priority were looked for, for pods that wait for room, and
// none are evicted. The barred is why some may not be, empty where none would help.
func (q *Queue) MarkNoVictims(pods []*corev1.Pod, barred string) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, pod := range pods {
		w := q.unschedulable[podstate.KeyOf(pod)]
		if w.uid != pod.UID || w.elsewhere {
			continue
		}
		news := barred != w.barred && barred != ""
		if w.victims, w.barred = true, barred; news {
			q.sendWaiting(pod, &w) // or with the next look
		}
		q.unschedulable[podstate.KeyOf(pod)] = w
	}
}

// NoVictims ends what MarkNoVictims has noted of a bar: there are no pods of lower priority now.
func (q *Queue) NoVictims(pods []*corev1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, pod := range pods {
		if w := q.unschedulable[podstate.KeyOf(pod)]; w.uid == pod.UID && w.barred != "" {
			w.barred = ""
			q.unschedulable[podstate.KeyOf(pod)] = w
		}
	}
}

// sendWaiting sends the pod's owner why it waits for room, as notify.Waiting does.
func (q *Queue) sendWaiting(pod *corev1.Pod, w *unschedulablePod) (due time.Duration, later bool) {
	return q.notify.Waiting(pod, &w.sent, notify.ReasonWaiting, w.event(), w.since)
}

// event is what an event says of a pod that waits for room.
func (w *unschedulablePod) event() notify.Why {
	why := w.why
	if w.barred != "" {
		why.Cause, why.Key, why.Text = cause.EvictionForbidden, why.Key+", barred", why.Text+"; "+w.barred
	}
	if w.refills {
		why.Key += ", refills"
	}
	return why
}

// ElsewherePatience is how long a pod may wait for something else than room before its owner
// gets an event. As a rule the pods of a gang, their gates and their PodGroup come within moments
// of each other. A pod is bound within moments of its placement.
const ElsewherePatience = 5 * time.Second

// MarkElsewhere notes that the pods wait for something else than room, and sends their owners
// the event once that has lasted.
func (q *Queue) MarkElsewhere(pods []*corev1.Pod, reason string, why notify.Why) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.markElsewhere(pods, reason, why)
}

func (q *Queue) markElsewhere(pods []*corev1.Pod, reason string, why notify.Why) {
	for _, pod := range pods {
		w, known := q.waits(pod, why.Key)
		if !known {
			continue
		}
		w.elsewhere, w.victims, w.barred = true, false, ""
		if due, later := q.notify.Waiting(pod, &w.sent, reason, why, w.since.Add(ElsewherePatience)); later {
			q.addAfter(q.itemOf(pod), due)
		}
		q.unschedulable[podstate.KeyOf(pod)] = w
	}
}

// WaitsElsewhere reports whether the pod waits for something else than room, or asks for what cannot be.
func (q *Queue) WaitsElsewhere(pod *corev1.Pod) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.unschedulable[podstate.KeyOf(pod)]
	return w.uid == pod.UID && (w.elsewhere || w.key == keyInvalid)
}

// MarkInvalid notes that a pod can never be placed as it is, and sends its owner why. It stays
// gated: what it says may be changed, and then it is looked at again.
func (q *Queue) MarkInvalid(pod *corev1.Pod, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	w, known := q.waits(pod, keyInvalid)
	if !known {
		return
	}
	w.refused, w.elsewhere = false, false
	q.notify.Invalid(pod, &w.sent, notify.Why{Cause: cause.Invalid, Key: keyInvalid, Text: err.Error()})
	q.unschedulable[podstate.KeyOf(pod)] = w
}

// waits is what is known of the pod, which waits for what the key says; false if it is gone. The cache
// forgets a pod before Delete does, so that nothing is noted of one that is gone.
func (q *Queue) waits(pod *corev1.Pod, key string) (w unschedulablePod, known bool) {
	if q.cache.Current(pod) == nil {
		return w, false
	}
	if w = q.unschedulable[podstate.KeyOf(pod)]; w.uid != pod.UID {
		w = unschedulablePod{uid: pod.UID}
	}
	if w.key != key {
		w.key, w.since = key, q.clock.Now()
	}
	return w, true
}

// StillUnschedulable reports whether all pods of the set wait, for devices or because they are
// refused, and it was found out why a moment ago. A crowd that waits is looked at often, and
// to find out what each lacks takes far longer than to see that it lacks something. A
// new cause is found out when that is due, though nothing happens then.
func (q *Queue) StillUnschedulable(set []*corev1.Pod, refused bool) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	due := notify.RepeatAfter
	for _, pod := range set {
		w, waits := q.unschedulable[podstate.KeyOf(pod)]
		due = min(due, w.explain.Sub(q.clock.Now()))
		if !waits || w.elsewhere || w.refused != refused || due <= 0 {
			return false
		}
	}
	q.addAfter(q.itemOf(set[0]), due)
	return true
}

// WasSent reports whether this leader sent the pod's owner that it waits.
func (q *Queue) WasSent(pod *corev1.Pod) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	w := q.unschedulable[podstate.KeyOf(pod)]
	return w.sent.Sent()
}

// Waiting counts the unschedulable pods by what is against them: devices, scheduler, invalid,
// or others: pods that they start with or come after.
func (q *Queue) Waiting() map[string]int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := map[string]int{"devices": 0, "scheduler": 0, "invalid": 0, "others": 0}
	for _, w := range q.unschedulable {
		switch {
		case w.key == keyInvalid:
			n["invalid"]++
		case w.elsewhere:
			n["others"]++
		case w.refused:
			n["scheduler"]++
		default:
			n["devices"]++
		}
	}
	return n
}

// MoveToActive has the unschedulable pods looked at again that a change may help, and those
// that may be found to be unschedulable this moment. Items in flight were decided on what was
// before.
func (q *Queue) MoveToActive(change cache.Scope) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.moves++
	if change == cache.OnAll {
		q.rooms++
		q.Classes.forget()
	}
	switch {
	case len(q.unschedulable) == 0 && q.inFlight == 0:
	case change == cache.OnAll:
		q.add(Item{move: onAll})
	default:
		q.addAfter(Item{move: onRefused}, RefusedDelay)
	}
}

// MoveElsewhere has the pods looked at again that wait for something else than room, and those
// that may be found to this moment.
func (q *Queue) MoveElsewhere() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.unschedulable) > 0 || q.inFlight > 0 {
		q.add(Item{move: onElsewhere})
	}
}

// Rooms is how often a device got more room.
func (q *Queue) Rooms() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.rooms
}

// Moves is how often MoveToActive was called.
func (q *Queue) Moves() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.moves
}

// HighestWaiting is the highest precedence of the pods that wait for room, the lowest number where
// none does. It has the highest priority of those of each namespace, too.
func (q *Queue) HighestWaiting() (highest int64, within map[string]int32) {
	q.mu.Lock()
	defer q.mu.Unlock()
	highest, within = math.MinInt64, map[string]int32{}
	done := map[Item]bool{}
	for key, w := range q.unschedulable {
		pod := q.cache.Pod(key)
		if pod == nil || w.elsewhere || w.key == keyInvalid {
			continue
		}
		of := q.itemOf(pod)
		if done[of] {
			continue // of a large gang one member is enough
		}
		done[of] = true
		r := q.rankOf(of, pod)
		highest = max(highest, r.Precedence)
		if known, is := within[pod.Namespace]; !is || r.Priority.Within > known {
			within[pod.Namespace] = r.Priority.Within
		}
	}
	return highest, within
}

// Precedence orders the waiting pods: by priority across namespaces, then those
// first without which a gang that runs is below its minimum. The pod is one of
// those of the priority.
func (q *Queue) Precedence(p priority.Priority, pod *corev1.Pod) int64 {
	if q.groups.Refills(pod) != nil {
		return 2*int64(p.Across) + 1
	}
	return 2 * int64(p.Across)
}

// rankOf is that of an item, of which pod is one.
func (q *Queue) rankOf(it Item, pod *corev1.Pod) Rank {
	p := q.cache.Priorities.Of(pod)
	if it.Gang.Name != "" {
		p = q.cache.Priorities.Least(q.groups.Gang(it.Gang).Due)
	}
	return Rank{Precedence: q.Precedence(p, pod), Priority: p}
}

// Rank is where an item stands in a list: what is First before all precedences.
type Rank struct {
	First      bool
	Precedence int64
	Priority   priority.Priority
}

// OwnFirst reorders what is sorted by rank and age. A pod before an equal of its own
// namespace, of a higher priority there, goes right after the last of these. So a priority that
// counts in one namespace only is heeded in it, and takes nobody else's place.
func OwnFirst[T any](sorted []T, rankOf func(T) Rank) {
	type entry struct {
		of     T
		within int32
		after  int
	}
	entries := make([]entry, len(sorted))
	// last are the last places of equals of a namespace, by their priority there.
	last := map[Rank]map[int32]int{}
	for i := len(sorted) - 1; i >= 0; i-- {
		r := rankOf(sorted[i])
		e := entry{sorted[i], r.Priority.Within, i}
		r.Priority.Within = 0
		for within, place := range last[r] {
			if within > e.within {
				e.after = max(e.after, place)
			}
		}
		if entries[i] = e; last[r] == nil {
			last[r] = map[int32]int{}
		}
		last[r][e.within] = max(last[r][e.within], i)
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return cmp.Or(cmp.Compare(a.after, b.after), cmp.Compare(b.within, a.within)) })
	for i := range entries {
		sorted[i] = entries[i].of
	}
}

// WaitingForRoom is what waits for room, pods and gangs, the first by precedence and then by age.
func (q *Queue) WaitingForRoom() (items []Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	first := map[Item]*corev1.Pod{}
	for key, w := range q.unschedulable {
		if pod := q.cache.Pod(key); pod != nil && !w.elsewhere && w.key != keyInvalid {
			of := q.itemOf(pod)
			if known := first[of]; known == nil || podstate.ByAge(pod, known) < 0 {
				first[of] = pod
			}
		}
	}
	ranks := map[Item]Rank{}
	for it, pod := range first {
		ranks[it] = q.rankOf(it, pod)
	}
	items = slices.SortedFunc(maps.Keys(first), func(i, j Item) int {
		return cmp.Or(cmp.Compare(ranks[j].Precedence, ranks[i].Precedence), podstate.ByAge(first[i], first[j]))
	})
	OwnFirst(items, func(it Item) Rank { return ranks[it] })
	return items
}

// MaxMoves are so few at a time that a new pod is looked at in the next round
// but one, however many wait.
const MaxMoves = MaxRound / 2

// ActivatePending appends the unschedulable pods that the item stands for to the pending
// moves, oldest first. It puts the next of all pending moves on the queue. MovePending is to
// follow once these have been popped.
func (q *Queue) ActivatePending(it Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it.move == onFlush {
		q.moves++
		q.Classes.forget()
		q.addAfter(it, FlushAfter)
	}
	if it.move != onPending {
		// Of a gang that starts together one is enough, the oldest.
		due := map[Item]*corev1.Pod{}
		for key, w := range q.unschedulable {
			moved := it.move == onAll || w.refused || w.labels || w.victims
			if w.elsewhere || it.move == onElsewhere {
				moved = w.elsewhere && it.move == onElsewhere
			}
			moved = moved || it.move == onFlush
			if pod := q.cache.Pod(key); pod != nil && moved {
				of := q.itemOf(pod)
				if first := due[of]; first == nil || podstate.ByAge(pod, first) < 0 {
					due[of] = pod
				}
			}
		}
		for _, pending := range q.pendingMoves {
			delete(due, pending.Item)
		}
		for _, pod := range podstate.OldestFirst(due) {
			it := q.itemOf(pod)
			q.pendingMoves = append(q.pendingMoves, queuedItem{it, q.rankOf(it, pod)})
		}
	}
	for _, next := range q.nextMoves() {
		q.add(next.Item)
	}
}

// MovePending has the rest of the pending moves put on the queue in the rounds that come.
func (q *Queue) MovePending() {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.pendingMoves) > 0 {
		q.add(Item{move: onPending})
	}
}

// queuedItem is an unschedulable pod or gang that is to be looked at again.
type queuedItem struct {
	Item
	Rank
}

// nextMoves takes the pods off the pending moves that are looked at now, by precedence. Half of
// them are the first in the list, so that each has its turn even where pods are moved again
// before all had theirs; the others are the ones of the highest, whose turn a pod of
// the same namespace takes that is of a higher priority there.
func (q *Queue) nextMoves() []queuedItem {
	n := min(len(q.pendingMoves), MaxMoves/2)
	next := slices.Clone(q.pendingMoves[:n])
	q.pendingMoves = q.pendingMoves[n:]
	for len(next) < MaxMoves && len(q.pendingMoves) > 0 {
		first := 0
		for i := range q.pendingMoves {
			if q.pendingMoves[i].Precedence > q.pendingMoves[first].Precedence {
				first = i
			}
		}
		next = append(next, q.pendingMoves[first])
		q.pendingMoves = slices.Delete(q.pendingMoves, first, first+1)
	}
	for i := n; i < len(next); i++ {
		for j := range q.pendingMoves {
			own, other := &next[i], &q.pendingMoves[j]
			if other.Priority.Namespace == own.Priority.Namespace && other.Precedence == own.Precedence && other.Priority.Within > own.Priority.Within {
				*own, *other = *other, *own
			}
		}
	}
	slices.SortStableFunc(next, func(p, r queuedItem) int { return cmp.Compare(r.Precedence, p.Precedence) })
	return next
}
