// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/priority"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

const (
	// LeaveLate is how long after its grace period a pod may still be leaving. One that takes
	// longer is not waited for: its node may be lost.
	LeaveLate = 30 * time.Second
	// EvictAgain is how long it takes until an eviction is asked for again that a budget forbade.
	EvictAgain = 5 * time.Second
	// RefusedAgain is how long a pod is not asked about whose eviction was refused.
	RefusedAgain = time.Minute
	// StaysAgain is that where room was reserved in vain, since it was refused after a dry run.
	StaysAgain = 10 * time.Minute
	// evictTogether is how many pods are evicted at a time.
	evictTogether = 8
	// searchTime bounds a look, of which no one else is placed: a gang may have many members.
	searchTime = 500 * time.Millisecond
)

// Preempt finds pods of lower priority whose end makes room for one who found none, and evicts
// them. The room is reserved. Where pods that end already make room enough, nobody else is
// evicted. before is called before nodes are looked at.
func (p *Preemption) Preempt(ctx context.Context, w Waiter, before func()) error {
	owner, pods := w.Item, w.Pods
	asker := scheduling.AskerOf(p.cache, owner, pods)
	if r := p.reservations.Of(owner); r != nil && r.Kind == reservation.Preemption {
		return p.evictAgain(ctx, r)
	}
	if len(pods) == 1 {
		if err := p.binder.Nominate(ctx, pods[0].Pod, ""); err != nil {
			return err
		}
	}
	if text := p.notStarting(asker.Pods); text != "" {
		p.queue.MarkNoVictims(asker.Pods, text)
		return nil
	}
	idleOnly := p.policy == Never || slices.ContainsFunc(asker.Pods, neverPreempts)
	if idleOnly && !p.filters.Counts(func(c priority.Class) bool { return c.Value == priority.Idle }) {
		p.queue.NoVictims(asker.Pods)
		return nil
	}
	if !p.slicesDue(owner, pods[0].Pod, asker) {
		return nil
	}
	before()
	start := p.clock.Now()
	found, barred, changes := &bars{in: map[string]bool{}}, "", p.victimChanges()
	search := func(all bool) (*planner, error) {
		return p.plan(ctx, w, func(until time.Time) policy { return p.newEvictions(asker, found, all, idleOnly, until) })
	}
	pl, err := search(false)
	if pl == nil && err == nil && found.known {
		var would *planner
		if would, err = search(true); would != nil {
			barred = p.barring(slices.Collect(maps.Values(would.leaving)), asker)
		}
	}
	p.mu.Lock()
	now := p.clock.Now()
	p.pause = now.Add((WorkerShare - 1) * now.Sub(start))
	p.mu.Unlock()
	switch {
	case err != nil:
		return err
	case pl != nil:
		return p.act(ctx, pl, pods, changes)
	case barred != "":
		attempts.WithLabelValues("forbidden").Inc()
	default:
		attempts.WithLabelValues("nowhere").Inc()
	}
	p.wait(asker, found.in, barred, changes)
	return nil
}

func neverPreempts(pod *corev1.Pod) bool {
	return pod.Spec.PreemptionPolicy != nil && *pod.Spec.PreemptionPolicy == corev1.PreemptNever
}

// slicesDue reports whether it is time to look for the owner, and whether there may be any use in it.
func (p *Preemption) slicesDue(owner queue.Item, first *corev1.Pod, asker reservation.Asker) bool {
	if !p.filters.Counts(func(c priority.Class) bool {
		return c.Value < asker.Priority.Within || asker.Priority.Above(p.cache.Priorities.OfClass(c))
	}) {
		p.queue.NoVictims(asker.Pods)
		return false
	}
	// What the members of a gang take of volumes and other drivers' devices cannot be known here.
	if len(asker.Pods) > 1 && slices.ContainsFunc(asker.Pods, func(pod *corev1.Pod) bool { return p.filters.Undecided(pod) != nil }) {
		return false
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	now := p.clock.Now()
	last := p.looked[owner]
	due := last.until
	if p.pause.After(due) {
		due = p.pause
	}
	if p.putOff(first, due) {
		return false
	}
	maps.DeleteFunc(p.looked, func(owner queue.Item, _ look) bool { return !p.waits(owner) })
	// Where others were evicted in vain, as where somebody else takes the CPU, less and less are.
	p.looked[owner] = look{at: now, until: now.Add(RetryAfter << min(last.rounds, maxRounds)), rounds: last.rounds}
	return true
}

// maxRounds is how often the pause doubles: to 16 minutes.
const maxRounds = 5

// waits reports whether there are pods of the item that wait.
func (p *Preemption) waits(item queue.Item) bool {
	if item.Gang.Name != "" {
		return len(p.groups.Gang(item.Gang).Due) > 0
	}
	pod := p.cache.Pod(item.Pod)
	return pod != nil && podstate.Ready(pod)
}

// act reserves the room that a planner has found, and has the pods leave.
func (p *Preemption) act(ctx context.Context, pl *planner, pods []scheduling.Request, changes int) error {
	r := pl.reservation(reservation.Preemption)
	if len(r.Leaving) == 0 {
		attempts.WithLabelValues("nowhere").Inc()
		return nil
	}
	evicted := slices.SortedFunc(maps.Values(pl.leaving), moreImportant)
	for _, pod := range evicted {
		if podrequest.OnIdle(pod) {
			continue // it leaves whatever a budget says
		}
		ok, err := p.binder.Evict(ctx, pod, p.graceIn(pod), true)
		if err != nil {
			return err
		}
		if !ok {
			// Nobody has left for it yet, and nobody does: the budgets known here are behind.
			p.refuse(pod, false)
			attempts.WithLabelValues("forbidden").Inc()
			p.wait(pl.asker, map[string]bool{pod.Namespace: true}, p.barring([]*corev1.Pod{pod}, pl.asker), changes)
			p.queue.AddAfter(r.Owner, RetryAfter)
			return nil
		}
	}
	p.queue.MarkNoVictims(pl.asker.Pods, "")
	r.Expires = r.Made.Add(LeaveLate)
	for _, uid := range slices.Sorted(maps.Keys(r.Leaving)) {
		if pod := p.cache.PodOf(uid); pod != nil && p.lateAt(pod).After(r.Expires) {
			r.Expires = p.lateAt(pod)
		}
	}
	if !p.reservations.Put(r) {
		return nil
	}
	if len(evicted) == 0 {
		attempts.WithLabelValues("waits").Inc()
		p.tell(r, notify.ReasonReserved, Describe(r, p.cache, p.clock.Now()))
		return nil
	}
	attempts.WithLabelValues("evicts").Inc()
	victimsCount.Observe(float64(len(evicted)))
	p.mu.Lock()
	l := p.looked[r.Owner]
	l.rounds++
	p.looked[r.Owner] = l
	p.mu.Unlock()
	if len(pods) == 1 {
		if err := p.binder.Nominate(ctx, pods[0].Pod, r.Plans[0].Node); err != nil {
			p.log.Error(err, "Cannot nominate a pod", "pod", podstate.KeyOf(pods[0].Pod)) // CPU and memory are not kept for it
		}
	}
	p.tell(r, notify.ReasonPreempting, "ends pods of lower priority: "+Describe(r, p.cache, p.clock.Now()))
	return p.evict(ctx, r, evicted)
}

// tell sends an event to the owners of the pods of a reservation.
func (p *Preemption) tell(r *reservation.Reservation, reason, text string) {
	for _, pod := range r.Pods {
		p.notify.Emit(pod, corev1.EventTypeNormal, reason, text)
	}
}

// reservation is of what the planner has found.
func (pl *planner) reservation(kind reservation.Kind) *reservation.Reservation {
	return &reservation.Reservation{
		Kind: kind, Owner: pl.asker.Item, Pods: pl.asker.Pods, Priority: pl.asker.Priority,
		Plans: pl.plans, Leaving: pl.leaves(), Made: pl.clock.Now(),
	}
}

// evictAgain evicts the pods that are still there, as far as their budgets let them go now.
func (p *Preemption) evictAgain(ctx context.Context, r *reservation.Reservation) error {
	var there []*corev1.Pod
	for uid, key := range r.Leaving {
		// One without a name was not known then: it is nobody's choice.
		if pod := p.cache.PodOf(uid); key.Name != "" && pod != nil && !backfill.Leaves(pod, p.clock.Now(), p.lookahead) {
			there = append(there, pod)
		}
	}
	if len(there) == 0 {
		return nil
	}
	if wait := p.evictAt[r.Owner].Sub(p.clock.Now()); wait > 0 {
		p.queue.AddAfter(r.Owner, wait)
		return nil
	}
	return p.evict(ctx, r, there)
}

// evict ends the pods, the ones that a budget covers first: where it has become used up since, the
// others stay.
func (p *Preemption) evict(ctx context.Context, r *reservation.Reservation, pods []*corev1.Pod) error {
	// The watch may be behind: pods that are evicted now may look as if they were not.
	now := p.clock.Now()
	maps.DeleteFunc(p.evictAt, func(_ queue.Item, at time.Time) bool { return !at.After(now) })
	p.evictAt[r.Owner] = now.Add(EvictAgain)
	idle := slices.DeleteFunc(slices.Clone(pods), func(pod *corev1.Pod) bool { return !podrequest.OnIdle(pod) })
	if err := p.binder.Reclaim(ctx, idle); err != nil {
		return err
	}
	covered := map[types.UID]int{}
	for _, pod := range pods {
		if budget, _ := p.filters.Budgets(pod.Namespace).Of(pod); budget != nil {
			covered[pod.UID] = 1
		}
	}
	slices.SortStableFunc(pods, func(a, b *corev1.Pod) int { return cmp.Compare(covered[b.UID], covered[a.UID]) })
	for len(pods) > 0 {
		// A leader whose lease may be over ends nobody, nor is anybody ended for an owner that
		// has gone since those before.
		if err := ctx.Err(); err != nil {
			return err
		}
		if p.reservations.Review(); p.reservations.Of(r.Owner) != r {
			return nil
		}
		// Those without a budget at the same time: each takes the API server a tenth of a second.
		next := pods[:1]
		if covered[pods[0].UID] == 0 {
			next = pods[:min(len(pods), evictTogether)]
		}
		pods = pods[len(next):]
		ok := make([]bool, len(next))
		err := p.binder.All(len(next), func(i int) (err error) {
			if ok[i], err = p.binder.Evict(ctx, next[i], p.graceIn(next[i]), false); podrequest.OnIdle(next[i]) && ctx.Err() == nil {
				return nil // its slice is taken back all the same; of a pod without one repair tries again
			}
			return err
		})
		for i, pod := range next {
			switch {
			case podrequest.OnIdle(pod):
				// Its slice is being taken back. Where a budget forbids the eviction, that comes later.
				ok[i] = true
				binding.IdleEvictions.WithLabelValues(binding.IdleMemory).Inc()
				p.notify.Emit(pod, corev1.EventTypeNormal, notify.ReasonPreempted, fmt.Sprintf(
					"its idle slice on node %s is taken back: the memory goes to %s", podstate.TargetNode(pod), nameTo(pod.Namespace, r)))
			case ok[i]:
				p.notify.Emit(pod, corev1.EventTypeNormal, notify.ReasonPreempted, fmt.Sprintf(
					"evicted from node %s: its slices go to %s, which has a higher priority (%d)", podstate.TargetNode(pod), nameTo(pod.Namespace, r), r.Priority.Against(pod.Namespace)))
			case err == nil:
				p.refuse(pod, true)
			}
		}
		if err != nil {
			return err
		}
		if slices.Contains(ok, false) {
			p.queue.AddAfter(r.Owner, EvictAgain)
			return nil
		}
	}
	return nil
}

// nameTo is the owner of a reservation as the pods of a namespace may know it.
func nameTo(namespace string, r *reservation.Reservation) string {
	if r.Owner.Namespace() == namespace {
		return r.Owner.String()
	}
	return "a pod of another namespace"
}

// lateAt is when the pod is not waited for any more, if it is evicted now or ends already.
func (p *Preemption) lateAt(pod *corev1.Pod) time.Time {
	now := p.clock.Now()
	switch {
	case podstate.Terminal(pod):
		return now.Add(LeaveLate)
	case backfill.Leaves(pod, now, p.lookahead):
		return pod.DeletionTimestamp.Add(LeaveLate)
	default:
		return now.Add(min(graceOf(pod), p.lookahead) + LeaveLate)
	}
}

// graceIn is the grace period with which the pod is evicted, nil for its own: one that takes longer
// than the lookahead, or is being deleted with such a grace, keeps nobody waiting for that.
func (p *Preemption) graceIn(pod *corev1.Pod) *int64 {
	if podrequest.OnIdle(pod) {
		return ptr.To(binding.IdleGrace)
	}
	if pod.DeletionTimestamp == nil && graceOf(pod) <= p.lookahead {
		return nil
	}
	return ptr.To(int64(min(graceOf(pod), p.lookahead).Seconds()))
}

// graceOf is how long the pod may take to end, at most some years.
func graceOf(pod *corev1.Pod) time.Duration {
	seconds := int64(corev1.DefaultTerminationGracePeriodSeconds)
	if pod.Spec.TerminationGracePeriodSeconds != nil {
		seconds = min(*pod.Spec.TerminationGracePeriodSeconds, math.MaxInt32)
	}
	return time.Duration(seconds) * time.Second
}

// inTime are the leaving pods that leave within the lookahead and are not late. For pods that are
// not being deleted it counts when they were seen to leave first.
func (p *Preemption) inTime(leaving []*corev1.Pod) (in []*corev1.Pod) {
	now, seen := p.clock.Now(), map[types.UID]time.Time{}
	for _, pod := range leaving {
		since, known := p.leftAt[pod.UID]
		if !known {
			since = now
		}
		seen[pod.UID] = since
		if pod.DeletionTimestamp != nil {
			since = pod.DeletionTimestamp.Time
		}
		if now.Before(since.Add(LeaveLate)) && (pod.Name == "" || backfill.Leaves(pod, now, p.lookahead)) {
			in = append(in, pod)
		}
	}
	p.leftAt = seen
	return in
}

// Describe says where the room of a reservation is, who has to leave, and when that will be.
// Only pods of the owner's namespace are named: others are no affair of its.
func Describe(r *reservation.Reservation, pods interface{ PodOf(types.UID) *corev1.Pod }, now time.Time) string {
	var on []string
	for i := range r.Plans {
		on = append(on, "node "+r.Plans[i].Node+" "+gpus(&r.Plans[i]))
	}
	slices.Sort(on)
	text := "reserved on " + v1alpha1.NamesText(slices.Compact(on), 4)
	var names []string
	others := 0
	for uid, key := range r.Leaving {
		switch {
		case pods.PodOf(uid) == nil:
		case key.Namespace == r.Owner.Namespace():
			names = append(names, key.Name)
		default:
			others++
		}
	}
	slices.Sort(names)
	switch what := v1alpha1.NamesText(names, 4); {
	case len(names)+others == 0:
		return text + ", which is being freed"
	case others == 0:
		text += ", waits for pods " + what + " to end"
	case len(names) == 0:
		text += fmt.Sprintf(", waits for %d pods of other namespaces to end", others)
	default:
		text += fmt.Sprintf(", waits for pods %s and %d of other namespaces to end", what, others)
	}
	end := r.End
	if r.Kind == reservation.Preemption {
		end = r.Expires.Add(-LeaveLate) // the end of their grace
	}
	if !end.IsZero() {
		text += ", about " + max(0, end.Sub(now)).Round(time.Second).String()
	}
	return text
}

func gpus(plan *placement.Plan) string {
	var on []string
	for _, g := range plan.Grants {
		on = append(on, fmt.Sprintf("GPU %d", g.Index))
	}
	slices.Sort(on)
	return strings.Join(slices.Compact(on), ", ")
}
