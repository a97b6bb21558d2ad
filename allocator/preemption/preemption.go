// SPDX-License-Identifier: Apache-2.0

// Package preemption owns the choice of pods that others have to leave for. They are evicted where
// they hold slices and have a lower priority (Preempt). The scheduler evicts those that hold CPU
// or memory (PostFilter, of package scheduling). For the first that waits they end as they come
// (ReserveHead). It knows which pods were nominated, when it was tried last, and for which pods
// it is not tried for a while. Pods that allow it are moved for others (Defragment). It reserves the room that it finds (package reservation).
//
// A Preemption may be used concurrently, Preempt and ReserveHead by the worker alone.
package preemption

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/classes"
)

// A pod whose priority is higher than that of others gets their CPU, their memory and
// whatever else of a node the scheduler deals out, by preemption: the scheduler ends them.
// It does so for pods that it has before it, and a pod at our gate it has not. So a pod for
// which there are devices, on nodes that the scheduler would refuse, is nominated to one of
// these all the same where the scheduler says that it would preempt for it, once the devices are
// free. This is for pods alone: a gang gets slices of others, and waits for CPU and memory.

const (
	// RetryAfter is how long a pod waits for at least before it is looked again whether
	// the scheduler would preempt for it. That asks far more nodes than are asked otherwise.
	RetryAfter = 30 * time.Second
	// MaxNodes is how many nodes are asked at a time.
	MaxNodes = 100
	// minNodes is how many are asked though the time is over: one long pause of the process is no
	// reason to take the first.
	minNodes = 4
	// WorkerShare is the part of the worker's time that may go into looking for such
	// nodes, one in so many. In a large cluster each look takes tens of milliseconds, and a
	// thousand pods may wait for one. No other is placed in that time.
	WorkerShare = 4
	// failedBackoff is how long no pods like one go that was nominated in vain.
	failedBackoff = 10 * time.Minute
)

// Preemption is what is known of pods for which others are to be ended.
type Preemption struct {
	cache        *cache.Cache
	groups       *gang.Groups
	queue        *queue.Queue
	filters      *feasible.Filters
	binder       *binding.Binder
	notify       *notify.Notifier
	reservations *reservation.Reservations
	policy       Policy
	lookahead    time.Duration
	reserveAfter time.Duration
	defragment   Defragment
	classes      *classes.Set
	clock        clock.PassiveClock
	log          logr.Logger

	// weights are the nodes' as they were asked about last, and passedOver the waiters for which
	// no room could be reserved, until when they are. Both are the worker's alone.
	weights    map[string]weighed
	passedOver map[queue.Item]time.Time
	// leftAt is since when pods are known to leave. It is the worker's too.
	// evictAt is when evictions for an owner that were refused are asked for again.
	evictAt map[queue.Item]time.Time
	leftAt  map[types.UID]time.Time
	// movesAt is when pods to move are looked for again for an owner, moved when pods were in the last
	// hour. They are the worker's too.
	movesAt map[queue.Item]time.Time
	moved   []time.Time

	// headsAt is when room is reserved again for the first that wait, headsDue when an item is looked
	// at again for that. They are the worker's.
	headsAt, headsDue time.Time
	// rechecked is when the reservations of the first that wait were looked at last. It is the worker's.
	rechecked map[queue.Item]time.Time

	mu sync.Mutex
	// given are owners of reservations that have their slices and have not started, and unstarted the
	// controllers of which one did not in time.
	given     map[types.UID]given
	unstarted map[controller]unstarted
	// looked are the owners for which pods with slices were looked for, when and with what result.
	looked map[queue.Item]look
	// changes is how often VictimsChanged was called.
	changes int
	// refused are pods whose eviction was refused, until when they are not asked about.
	refused map[types.UID]refusal
	// lastAttempt are the gated pods for which no node would do when it was asked last.
	lastAttempt map[types.UID]attempt
	// nominated are the pods that went where others are in their way.
	nominated map[types.UID]bool
	// backoff is until when no others like one of these go that was refused although
	// nothing is known to be in its way but pods that the scheduler was to preempt.
	backoff map[backoffKey]time.Time
	// pause is until when no nodes are looked for, so that others are placed.
	pause time.Time
}

// Waiter is who waits for room.
type Waiter = scheduling.Waiter

// Policy is for whom pods with slices may be evicted.
type Policy string

const (
	// LowerPriority pods are evicted for pods of higher priority. So it is where nothing is said.
	LowerPriority Policy = "LowerPriority"
	// Never evicts no pod: each waits until others end.
	Never Policy = "Never"
)

// String and Set make it a flag.
func (p *Policy) String() string { return string(*p) }

// Set refuses what is neither.
func (p *Policy) Set(text string) error {
	switch is := Policy(text); is {
	case LowerPriority, Never:
		*p = is
		return nil
	}
	return fmt.Errorf("give %s or %s", LowerPriority, Never)
}

// Config is what a Preemption works with.
type Config struct {
	Cache        *cache.Cache
	Groups       *gang.Groups
	Queue        *queue.Queue
	Filters      *feasible.Filters
	Binder       *binding.Binder
	Notify       *notify.Notifier
	Reservations *reservation.Reservations
	Policy       Policy
	// Lookahead is how far ahead is planned: who leaves later stays, and who is evicted has so long.
	Lookahead time.Duration
	// ReserveAfter is how long the first waiter waits before room is reserved for it; 0 reserves
	// none.
	ReserveAfter time.Duration
	// Defragment says when pods are moved for others.
	Defragment Defragment
	// Classes are the GPUClasses that there are; nil is none.
	Classes *classes.Set
	Clock   clock.PassiveClock
	Log     logr.Logger
}

// New knows of no pod. Forget is to be called for each that is gone.
func New(c Config) *Preemption {
	return &Preemption{
		cache: c.Cache, groups: c.Groups, queue: c.Queue, filters: c.Filters, binder: c.Binder, notify: c.Notify,
		reservations: c.Reservations, policy: c.Policy, lookahead: c.Lookahead, reserveAfter: c.ReserveAfter, defragment: c.Defragment, classes: c.Classes, clock: c.Clock, log: c.Log,
		weights: map[string]weighed{}, passedOver: map[queue.Item]time.Time{}, looked: map[queue.Item]look{}, evictAt: map[queue.Item]time.Time{}, movesAt: map[queue.Item]time.Time{},
		refused: map[types.UID]refusal{}, leftAt: map[types.UID]time.Time{},
		lastAttempt: map[types.UID]attempt{}, nominated: map[types.UID]bool{}, backoff: map[backoffKey]time.Time{},
		rechecked: map[queue.Item]time.Time{}, given: map[types.UID]given{}, unstarted: map[controller]unstarted{},
	}
}

// backoffKey names the pods that are expected to fare like one that was refused: the pods of
// its controller; or, where its scheduler does not preempt at all, all pods of that scheduler,
// with an empty controller.
type backoffKey struct {
	scheduler  string
	controller types.UID
}

// attempt is when it was asked for a pod, and at which of the best nodes the next time begins
// since it was those before: the others would never be asked otherwise.
type attempt struct {
	at          time.Time
	resumeIndex int
}

// PostFilter chooses the node on which the scheduler would do the least harm for the pod. It is nil
// when there is none, or it is not to be asked now. The later says that others have to be placed
// first. The pod is looked at again then.
func (p *Preemption) PostFilter(ctx context.Context, pod scheduling.Request, seen func() []*placement.Node, cycle func() (*feasible.Cycle, error)) (best *scheduling.Candidate, later bool, err error) {
	if p.policy == Never || !p.filters.MayPreempt(pod.Pod) || !p.Due(pod.Pod) {
		return nil, false, nil
	}
	if p.paused(pod.Pod) {
		return nil, true, nil
	}
	start := p.clock.Now()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		now := p.clock.Now()
		p.pause = now.Add((WorkerShare - 1) * now.Sub(start))
	}()
	asks, err := cycle()
	if err != nil {
		return nil, false, err
	}
	rooms := seen()
	plan, resume, err := p.leastHarm(ctx, pod.Pod, placement.Rank(pod.Demand, rooms), asks)
	if err != nil {
		return nil, false, err
	}
	if plan == nil {
		p.attempted(pod.Pod, resume)
		return nil, false, nil
	}
	p.Nominate(pod.Pod)
	i := slices.IndexFunc(rooms, func(n *placement.Node) bool { return n.Name == plan.Node })
	return &scheduling.Candidate{Plan: *plan, Room: rooms[i]}, false, nil
}

// leastHarm is the best of the plans on the nodes that are asked, nil if none of them would
// do. Nodes without a pod that might have to go don't count among those. resume is the plan
// at which the next time begins, 0 if all were looked at that were not before.
func (p *Preemption) leastHarm(ctx context.Context, pod *corev1.Pod, plans []placement.Plan, cycle *feasible.Cycle) (best *placement.Plan, resume int, err error) {
	p.mu.Lock()
	first := p.lastAttempt[pod.UID].resumeIndex
	p.mu.Unlock()
	if first >= len(plans) {
		first = 0
	}
	var least feasible.Harm
	asked, until := 0, p.clock.Now().Add(searchTime)
	for i := first; i < len(plans); i++ {
		if asked == MaxNodes || !p.clock.Now().Before(until) && asked >= minNodes {
			resume = i
			break
		}
		if !p.cache.Settled(plans[i].Node) || !cycle.MayPreempt(plans[i].Node) {
			continue
		}
		asked++
		harm, would, err := cycle.Preempts(ctx, plans[i].Node, p.cache.Priorities.MayEnd(pod))
		if err != nil {
			return nil, 0, err
		}
		if would && (best == nil || harm.Compare(least) < 0) {
			best, least = &plans[i], harm
		}
	}
	if best != nil {
		p.log.Info("The scheduler is to preempt", "pod", podstate.KeyOf(pod), "node", best.Node, "pods", least.Pods, "priority", least.Highest)
	}
	return best, resume, nil
}

// attempted notes that no node would do for the pod.
func (p *Preemption) attempted(pod *corev1.Pod, resume int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cache.Current(pod) == nil {
		return // Forget has been called, or will be: the cache forgets first
	}
	p.lastAttempt[pod.UID] = attempt{p.clock.Now(), resume}
	if resume > 0 {
		p.queue.AddPodAfter(pod, RetryAfter)
	}
}

// Nominate notes that the pod goes where others are in its way.
func (p *Preemption) Nominate(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cache.Current(pod) != nil {
		p.nominated[pod.UID] = true
	}
}

// Denominate takes that back: the pod is decided on again.
func (p *Preemption) Denominate(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.nominated, pod.UID)
}

// Forget is for a pod that is gone.
func (p *Preemption) Forget(pod *corev1.Pod) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.lastAttempt, pod.UID)
	delete(p.nominated, pod.UID)
	p.checkStart(pod)
	delete(p.given, pod.UID)
	delete(p.looked, queue.Item{Pod: podstate.KeyOf(pod)}) // another of that name does not wait for it
}

// Due reports whether it is time to ask for the pod; if not, it is looked at again when it is.
func (p *Preemption) Due(pod *corev1.Pod) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	due := p.backoff[backoffKey{scheduler: pod.Spec.SchedulerName}]
	if key := keyOf(pod); key.controller != "" && p.backoff[key].After(due) {
		due = p.backoff[key]
	}
	if last, asked := p.lastAttempt[pod.UID]; asked && last.at.Add(RetryAfter).After(due) {
		due = last.at.Add(RetryAfter)
	}
	return !p.putOff(pod, due)
}

// paused reports whether enough time went into looking for nodes for now. The pod is looked at
// again when there is time.
func (p *Preemption) paused(pod *corev1.Pod) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.putOff(pod, p.pause)
}

// putOff has the pod looked at again when it is due, if that is later than now.
func (p *Preemption) putOff(pod *corev1.Pod, due time.Time) bool {
	wait := due.Sub(p.clock.Now())
	if wait > 0 {
		p.queue.AddPodAfter(pod, wait)
	}
	return wait > 0
}

// Failed is for a pod that the scheduler has refused for a while: it notes if that is one for
// which it was to preempt. Where it would not any more, as on a node that was cordoned
// since, the filters know why, and later decisions are made with it.
func (p *Preemption) Failed(ctx context.Context, pod *corev1.Pod) error {
	p.mu.Lock()
	was := p.nominated[pod.UID]
	p.mu.Unlock()
	if !was {
		return nil
	}
	would, err := p.stillPreempts(ctx, pod)
	if err != nil {
		return err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.nominated, pod.UID)
	if !would {
		return nil
	}
	key, log := backoffKey{scheduler: pod.Spec.SchedulerName}, p.log.WithValues("pod", podstate.KeyOf(pod), "scheduler", pod.Spec.SchedulerName)
	if looksForVictims(pod) {
		if key = keyOf(pod); key.controller == "" {
			return nil // no controller makes it again
		}
		log = log.WithValues("controller", key.controller)
	}
	now := p.clock.Now()
	maps.DeleteFunc(p.backoff, func(_ backoffKey, until time.Time) bool { return !until.After(now) })
	p.backoff[key] = now.Add(failedBackoff)
	log.Info("The scheduler does not preempt where it was to; no pod like this is nominated for a while", "while", failedBackoff.String())
	return nil
}

// stillPreempts reports whether the scheduler, as far as its filters are ours, would preempt
// for a pod on the node that it went to.
func (p *Preemption) stillPreempts(ctx context.Context, pod *corev1.Pod) (would bool, err error) {
	// Counted there it would be in its own way.
	err = p.cache.Without(pod, func() error {
		cycle, err := p.filters.Start(ctx, pod)
		if err == nil {
			_, would, err = cycle.Preempts(ctx, podstate.TargetNode(pod), p.cache.Priorities.MayEnd(pod))
		}
		return err
	})
	return would, err
}

// looksForVictims reports whether the scheduler says, in its reasons against a pod, that it
// has looked for pods to preempt. The default one does so for every pod, unless its preemption
// is switched off.
func looksForVictims(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodScheduled && strings.Contains(c.Message, "preemption: ")
	})
}

// keyOf are the pods that the pod's controller makes; without a controller there is none.
func keyOf(pod *corev1.Pod) backoffKey {
	key := backoffKey{scheduler: pod.Spec.SchedulerName}
	if controller := metav1.GetControllerOf(pod); controller != nil {
		key.controller = controller.UID
	}
	return key
}
