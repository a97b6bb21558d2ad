// SPDX-License-Identifier: Apache-2.0

// Package reservation owns the room that is promised and not granted. It has the owner, the amounts on
// each device, the pods that have to leave before, and the end. Everybody of an equal or a
// lower priority sees it as taken.
//
// It decides who goes next, never whether sums hold: ledgers know nothing of it, and no
// invariant rests on it. A new leader begins with none. Reservations may be used concurrently.
package reservation

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/priority"
	"vernier.dev/vernier/api/v1alpha1"
)

const (
	// Most is how many reservations there are at most.
	Most = 64
	// MostOf is how many pods of one namespace may have.
	MostOf = Most / 2
	// MaxAway is for how long a node of a reservation may take no slices. For so long the
	// room may be free and its owner, which the scheduler refuses there, not start. For so long the
	// owner may wait for something else than room, as for other pods of its gang.
	MaxAway = time.Minute
	// MaxRefused is for how long pods may stay whose eviction is refused.
	MaxRefused = 2 * time.Minute
)

// Kind is why room is promised.
type Kind string

const (
	// Preemption is for a pod for which others are ended.
	Preemption Kind = "preemption"
	// Head is for the first of the pods that wait, which has waited for long.
	Head Kind = "head"
	// Defragment is for a pod for which others are moved.
	Defragment Kind = "defragment"
	// Move is for the pod that a controller makes instead of a moved one.
	Move Kind = "move"
	// Workload is for the pods that a Workload of Kueue's will have once it is admitted.
	Workload Kind = "workload"
)

// Reservation never changes. Devices are promised by their node, at most once each.
type Reservation struct {
	Kind     Kind
	Owner    queue.Item
	Pods     []*corev1.Pod // of the owner, oldest first, as they were
	Priority priority.Priority
	// Plans are what the pods are to get.
	Plans []placement.Plan
	// Leaving are the pods that have to end first.
	Leaving map[types.UID]types.NamespacedName
	// Of kind Move: For is for whom the pod Moved is moved, Controller the UID of what makes it again. It has no
	// Pods; its owner is the moved pod.
	For               queue.Item
	Moved, Controller types.UID
	// Of kind Workload: UID is the Workload's. Classes are the equivalence classes of the pods of the
	// plans, in their order; taken are the pods that have theirs. It has no Pods.
	UID     types.UID
	Classes []string
	taken   map[types.UID]bool
	// Made is since when, End when the last of them has ended, zero where nobody knows.
	Made, End time.Time
	// Expires is when it ends, zero for never.
	Expires time.Time
}

// Nodes are those of the plans, sorted.
func (r *Reservation) Nodes() []string {
	var names []string
	for i := range r.Plans {
		names = append(names, r.Plans[i].Node)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Asker is who asks for room: the owner of a reservation or somebody else.
type Asker struct {
	Item     queue.Item
	Priority priority.Priority
	// Pods are what is asked for.
	Pods []*corev1.Pod
}

// Reservations are those there are.
type Reservations struct {
	cache     *cache.Cache
	queue     *queue.Queue
	clock     clock.PassiveClock
	lookahead time.Duration

	mu sync.Mutex
	// all, the oldest first. What was returned of it never changes.
	all []*Reservation
	// notes are what Review has found of each.
	notes map[*Reservation]*note
	// ended is called with each that Review or Drop has ended, and why.
	ended func(r *Reservation, why string)
}

// note is since when a node of a reservation takes no slices, since when all of its room is
// free, and since when its owner waits for something else; zero while that is not so. ledgers are
// those for which its room was looked at last.
type note struct {
	away, free, elsewhere time.Time
	ledgers               []*v1alpha1.SliceLedger
	pods                  int // cache.ReservedForVersion
	allowed               int // priority.Classes.Version
}

// New knows of none. Forget is to be called for each pod that is gone. A pod that ends later than the
// lookahead does so at an unknown time.
func New(cache *cache.Cache, queue *queue.Queue, clock clock.PassiveClock, lookahead time.Duration) *Reservations {
	return &Reservations{cache: cache, queue: queue, clock: clock, lookahead: lookahead, notes: map[*Reservation]*note{}, ended: func(*Reservation, string) {}}
}

// OnEnd has ended called with each reservation that is of no use any more, and
// why. That is empty where its owner has the room or does not wait for it.
func (rs *Reservations) OnEnd(ended func(r *Reservation, why string)) { rs.ended = ended }

// Put makes a reservation in place of the one that its owner has, if any. Where there are too many
// it takes the place of another; false where there is none. The owner is looked at again when it expires.
func (rs *Reservations) Put(r *Reservation) bool {
	out, ok := rs.put(r)
	if out != nil {
		rs.ended(out, "there are as many reservations as may be, and others go before it")
	}
	return ok
}

// put returns the one of which r takes the place, nil for none.
func (rs *Reservations) put(r *Reservation) (out *Reservation, ok bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	others := slices.DeleteFunc(slices.Clone(rs.all), func(s *Reservation) bool { return s.Owner == r.Owner })
	of := map[string]int{}
	for _, s := range others {
		of[s.Owner.Namespace()]++
	}
	if len(others) >= Most || of[r.Owner.Namespace()] >= MostOf {
		if out = replaced(r, others, of); out == nil {
			return nil, false
		}
		others = slices.DeleteFunc(others, func(s *Reservation) bool { return s == out })
		rs.queue.Add(out.Owner)
	}
	if r.Kind == Workload {
		r.taken = map[types.UID]bool{}
		for _, pod := range rs.placed(r) {
			r.taken[pod.UID] = true
		}
	}
	rs.all = append(others, r)
	maps.DeleteFunc(rs.notes, func(s *Reservation, _ *note) bool { return !slices.Contains(others, s) })
	rs.notes[r] = &note{allowed: rs.cache.Priorities.Version()}
	if !r.Expires.IsZero() {
		rs.queue.AddAfter(r.Owner, r.Expires.Sub(rs.clock.Now()))
	}
	return out, true
}

// replaced is the one of the others, the oldest first, of which r takes the place, nil for none: of a
// lower priority, in r's namespace where that has its most; or of the same priority, of a namespace
// that has two more at least. So a tenant's namespaces come to have as many as others'. The lowest
// priority goes first, then of the namespace with the most the youngest, for which nobody was ended.
func replaced(r *Reservation, others []*Reservation, of map[string]int) (out *Reservation) {
	own := of[r.Owner.Namespace()]
	ended := map[Kind]int{Preemption: 1, Defragment: 1, Move: 1}
	seen := func(s *Reservation) int32 { return s.Priority.Against(r.Priority.Namespace) }
	for _, s := range others {
		namespace := s.Owner.Namespace()
		if own >= MostOf && namespace != r.Owner.Namespace() || s.Priority.Above(r.Priority) || !r.Priority.Above(s.Priority) && of[namespace] < own+2 {
			continue
		}
		if out == nil || cmp.Or(cmp.Compare(seen(s), seen(out)), cmp.Compare(of[out.Owner.Namespace()], of[namespace]), cmp.Compare(ended[s.Kind], ended[out.Kind])) <= 0 {
			out = s
		}
	}
	return out
}

// Of is the owner's, nil when it has none.
func (rs *Reservations) Of(owner queue.Item) *Reservation {
	for _, r := range rs.All() {
		if r.Owner == owner {
			return r
		}
	}
	return nil
}

// All are those there are, the oldest first.
func (rs *Reservations) All() []*Reservation {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	return rs.all
}

// Clear forgets all: another replica leads.
func (rs *Reservations) Clear() {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	rs.all = nil
	clear(rs.notes)
}

// Forget ends the reservation of a pod that is gone.
func (rs *Reservations) Forget(pod *corev1.Pod) {
	rs.keep(func(r *Reservation) bool {
		return !slices.ContainsFunc(r.Pods, func(p *corev1.Pod) bool { return p.UID == pod.UID })
	})
}

// Drop ends the reservation.
func (rs *Reservations) Drop(r *Reservation, why string) {
	rs.keep(func(s *Reservation) bool { return s != r })
	rs.ended(r, why)
}

// Review ends the reservations that are of no use any more. Their owners have their slices or
// do not wait for them. They have expired or are on devices that take no slices now,
// a higher priority has taken the room, or the victims are not evicted.
func (rs *Reservations) Review() {
	now := rs.clock.Now()
	rs.take()
	var over []func()
	rs.keep(func(r *Reservation) bool {
		why, is := rs.over(r, now)
		if is {
			over = append(over, func() { rs.ended(r, why) })
		}
		return !is
	})
	for _, end := range over {
		end()
	}
}

// over reports whether a reservation is of no use any more, and why; empty where its owner has the
// room or does not wait for it.
func (rs *Reservations) over(r *Reservation, now time.Time) (why string, is bool) {
	switch {
	case r.Kind == Move:
		return "", rs.moveOver(r, now)
	case r.Kind == Workload:
		return "", !r.Expires.After(now) || len(r.Plans) == 0 || !rs.usable(r, now)
	case !rs.waits(r):
		return "", true
	case rs.withdrawn(r):
		return "its PriorityClass counts for pods of its own namespace only now", true
	case !r.Expires.IsZero() && !r.Expires.After(now):
		return "a pod that was to leave is still there", true
	case !rs.usable(r, now):
		return "a GPU of it takes no slices", true
	case !rs.leave(r, now):
		return "the eviction of a pod is refused", true
	case !rs.lasts(&rs.noteOf(r).elsewhere, slices.ContainsFunc(r.Pods, rs.queue.WaitsElsewhere), r, now):
		return fmt.Sprintf("the pod has waited for something else than room for %v", MaxAway), true
	case !rs.whole(r, now):
		return "others have the room, or the pod did not start in it", true
	}
	return "", false
}

// moveOver reports whether the new place of a moved pod is of no use any more: it is taken, or its
// device takes no slices, nobody came in time, or the pod is not moved after all.
func (rs *Reservations) moveOver(r *Reservation, now time.Time) bool {
	ledger := rs.cache.Index.Ledger(r.Plans[0].Node)
	if !r.Expires.After(now) || !rs.usable(r, now) || ledger == nil || !r.holds(ledger) {
		return true
	}
	pod := rs.cache.PodOf(r.Moved)
	return pod != nil && !backfill.Leaves(pod, now, rs.lookahead) && !slices.ContainsFunc(rs.all, func(s *Reservation) bool { return s.Owner == r.For && s.Kind == Defragment })
}

// keep ends the others. The owners, and all that wait, are looked at again.
func (rs *Reservations) keep(ok func(*Reservation) bool) {
	rs.mu.Lock()
	defer rs.mu.Unlock()
	// Each is asked about once: what Review notes of it would answer for it the second time.
	kept := make([]*Reservation, 0, len(rs.all))
	for _, r := range rs.all {
		if ok(r) {
			kept = append(kept, r)
		} else {
			rs.queue.Add(r.Owner)
			delete(rs.notes, r)
		}
	}
	if len(kept) < len(rs.all) {
		rs.all = kept
		rs.queue.MoveToActive(cache.OnAll)
	}
}

// withdrawn reports whether its namespace is not allowed its PriorityClass any more.
func (rs *Reservations) withdrawn(r *Reservation) bool {
	n, allowed := rs.noteOf(r), rs.cache.Priorities.Version()
	if n.allowed == allowed {
		return false
	}
	n.allowed = allowed
	return rs.cache.Priorities.Least(r.Pods).Across < r.Priority.Across
}

func (rs *Reservations) waits(r *Reservation) bool {
	return !slices.ContainsFunc(r.Pods, func(p *corev1.Pod) bool {
		known := rs.cache.Current(p)
		return known == nil || !podstate.Ready(known) || rs.queue.ItemOf(known) != r.Owner
	})
}

// usable reports whether the devices may take slices, or may again soon: an agent that is updated
// is away for a moment.
func (rs *Reservations) usable(r *Reservation, now time.Time) bool {
	ready := true
	for i := range r.Plans {
		ledger := rs.cache.Index.Ledger(r.Plans[i].Node)
		if ledger == nil {
			return false
		}
		ready = ready && ledger.DeletionTimestamp == nil && ledger.Status.TakesSlices()
		for _, g := range r.Plans[i].Grants {
			at := slices.IndexFunc(ledger.Status.Devices, func(d v1alpha1.DeviceStatus) bool { return d.UUID == g.UUID })
			if at < 0 || !ledger.Status.Devices[at].Healthy || ledger.Spec.Cordon(g.UUID) != nil {
				return false
			}
		}
	}
	return rs.lasts(&rs.noteOf(r).away, !ready, r, now)
}

func (rs *Reservations) noteOf(r *Reservation) *note {
	if rs.notes[r] == nil {
		rs.notes[r] = &note{}
	}
	return rs.notes[r]
}

// lasts notes since when something is so, and reports whether that is for less than MaxAway.
func (rs *Reservations) lasts(since *time.Time, is bool, r *Reservation, now time.Time) bool {
	switch {
	case !is:
		*since = time.Time{}
	case since.IsZero():
		*since = now
		rs.queue.AddAfter(r.Owner, MaxAway)
	default:
		return now.Sub(*since) < MaxAway
	}
	return true
}

// leave reports whether the pods that are evicted leave, or may still.
func (rs *Reservations) leave(r *Reservation, now time.Time) bool {
	if r.Kind != Preemption || now.Sub(r.Made) < MaxRefused {
		return true
	}
	for uid := range r.Leaving {
		if pod := rs.cache.PodOf(uid); pod != nil && !backfill.Leaves(pod, now, rs.lookahead) {
			return false
		}
	}
	return true
}

// whole reports whether the room is there once all have left that are to, and those that fill it.
// Where it is there already its owner is to start.
func (rs *Reservations) whole(r *Reservation, now time.Time) bool {
	n := rs.noteOf(r)
	var ledgers []*v1alpha1.SliceLedger
	for _, name := range r.Nodes() {
		ledgers = append(ledgers, rs.cache.Index.Ledger(name))
	}
	if slices.Equal(ledgers, n.ledgers) {
		return rs.lasts(&n.free, !n.free.IsZero(), r, now)
	}
	n.ledgers = ledgers
	free := true
	for _, ledger := range ledgers {
		if ledger == nil {
			return false
		}
		if !r.holds(grants.Without(ledger, func(uid types.UID) bool {
			if _, leaves := r.Leaving[uid]; leaves || slices.ContainsFunc(r.Pods, func(p *corev1.Pod) bool { return p.UID == uid }) {
				return true
			}
			pod := rs.cache.PodOf(uid)
			if pod == nil {
				return true
			}
			end, known := backfill.EndOf(pod, now, rs.lookahead)
			return backfill.MayFill(end, known, r.End.Add(backfill.Slack))
		})) {
			return false
		}
		free = free && r.holds(ledger)
	}
	return rs.lasts(&n.free, free, r, now)
}

// holds reports whether what is promised can be granted on the node as the ledger has it; also
// where the node takes nothing now, whatever is used.
func (r *Reservation) holds(ledger *v1alpha1.SliceLedger) bool {
	less := *ledger
	less.Status.Slices = nil
	room := index.Room(&less)
	for i := range r.Plans {
		if r.Plans[i].Node != ledger.Name || room == nil {
			continue
		}
		if !room.Holds(&r.Plans[i]) {
			return false
		}
		room = room.Without(&r.Plans[i])
	}
	return true
}
