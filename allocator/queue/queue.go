// SPDX-License-Identifier: Apache-2.0

// Package queue owns what is to be looked at and when. It has the work queue, the items in
// flight, and the unschedulable pods with the events that their owners were sent. It knows which of
// those are to be looked at again, and which wait for another pod to be bound.
//
// Updates of pods come from package eventhandlers, the rest from the one worker that pops
// items. It reads the cache, decides on no node and writes no object but events. A Queue may
// be used concurrently.
package queue

import (
	"cmp"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"k8s.io/utils/clock"

	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/podrequest"
)

// Item is something to look at: a pod, a gang, a node's ledger, or the unschedulable pods.
type Item struct {
	Pod  types.NamespacedName
	Gang podrequest.Group
	Node string
	move scope
}

// Namespace is the pod's or the gang's.
func (i Item) Namespace() string { return i.Pod.Namespace + i.Gang.Namespace }

// String is for logs and sorting.
func (i Item) String() string {
	switch {
	case i.Node != "":
		return "node " + i.Node
	case i.Gang.Name != "":
		return i.Gang.String()
	case i.IsMove():
		return "unschedulable pods"
	default:
		return "pod " + i.Pod.String()
	}
}

// IsMoveAll reports whether it stands for all of them: a device has more room.
func (i Item) IsMoveAll() bool { return i.move == onAll }

// IsMove reports whether it stands for the unschedulable pods: see ActivatePending.
func (i Item) IsMove() bool { return i.move != 0 }

// scope says which unschedulable pods are to be moved.
type scope int

const (
	onRefused = scope(cache.OnRefused)
	onAll     = scope(cache.OnAll)
	// onPending are the pending moves.
	onPending = scope(cache.OnAll + 1)
	// onElsewhere are those that wait for something else than room.
	onElsewhere = scope(cache.OnAll + 2)
	// onFlush are all of them, every FlushAfter.
	onFlush = scope(cache.OnAll + 3)
)

const (
	// FirstRetry and LastRetry bound the wait after an error.
	FirstRetry = 20 * time.Millisecond
	LastRetry  = 5 * time.Second
	// RefusedDelay collects the many changes of pods and nodes, each of which
	// might turn a refusal, into one look.
	RefusedDelay = 100 * time.Millisecond
	// FlushAfter is how often all that waits is looked at, whatever has changed.
	FlushAfter = time.Minute
)

// MaxRound is how many pods, and how many gangs, the worker decides on in one round at most.
const MaxRound = 64

// MaxAttempts is how many times in a row something is looked at again at once, before it
// waits like after an error.
const MaxAttempts = 10

// ErrAgain asks for another look at once: something has changed, nothing is wrong.
var ErrAgain = errors.New("changed since it was read")

// Yield is why something was not looked at to the end: others come first. It is looked at
// again after the pause.
type Yield struct{ Pause time.Duration }

func (Yield) Error() string { return "others are served first" }

// Undecided is what a pod may take that others may take too, of which the scheduler's filters
// do not know yet: (*feasible.Filters).Undecided.
type Undecided func(pod *corev1.Pod) []string

// Queue is what one replica has to look at.
type Queue struct {
	cache     *cache.Cache
	groups    *gang.Groups
	notify    *notify.Notifier
	undecided Undecided
	clock     clock.PassiveClock
	log       logr.Logger

	// Classes are the demands for which there are no devices at the moment.
	Classes UnschedulableClasses

	mu sync.Mutex
	// work is nil while this replica does not lead.
	work Work
	// inFlight is how many pods and gangs were popped and are not done.
	inFlight int
	// attempts is how often in a row an item was looked at again at once.
	attempts map[Item]int
	// unschedulable are the Ready pods that wait, and why.
	unschedulable map[types.NamespacedName]unschedulablePod
	// moves is how often MoveToActive was called, rooms how often for devices.
	moves, rooms int
	// pendingMoves are unschedulable pods that are to be looked at again, in the order of
	// their turns.
	pendingMoves []queuedItem
	order        bindOrder
}

// New is an empty queue that is not open.
func New(cache *cache.Cache, groups *gang.Groups, notify *notify.Notifier, undecided Undecided, clock clock.PassiveClock, log logr.Logger) *Queue {
	return &Queue{
		cache: cache, groups: groups, notify: notify, undecided: undecided, clock: clock, log: log,
		attempts: map[Item]int{}, unschedulable: map[types.NamespacedName]unschedulablePod{}, order: newBindOrder(),
	}
}

// Work is the work queue below a Queue.
type Work = workqueue.TypedRateLimitingInterface[Item]

// NewWork is an empty work queue.
func NewWork(clock clock.WithTicker) Work {
	return workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[Item](FirstRetry, LastRetry),
		workqueue.TypedRateLimitingQueueConfig[Item]{Name: "allocator", Clock: clock})
}

// Open puts everything that is known on the work queue, pods by priority and age, and from now
// on what is added. Before, and after Close, additions are dropped.
func (q *Queue) Open(work Work) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work = work
	q.inFlight = 0
	clear(q.attempts)
	q.groups.MergeAll() // none of their members was looked at by this leader
	for _, node := range q.cache.Index.Names() {
		q.add(Item{Node: node})
	}
	pods := q.cache.Pods()
	slices.SortStableFunc(pods, func(p, r *corev1.Pod) int {
		return cmp.Compare(q.rankOf(Item{}, r).Precedence, q.rankOf(Item{}, p).Precedence)
	})
	OwnFirst(pods, func(p *corev1.Pod) Rank { return q.rankOf(Item{}, p) })
	for _, pod := range pods {
		if podstate.Ready(pod) || q.isWatched(pod) || podstate.Unbound(pod) {
			q.add(q.itemOf(pod))
		}
	}
	q.addAfter(Item{move: onFlush}, FlushAfter)
}

// Close ends what Open began.
func (q *Queue) Close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.work = nil
}

// Pop waits for an item, and returns it with what else is due, at most so many; false when
// the queue was shut down.
func (q *Queue) Pop(most int) (items []Item, ok bool) {
	q.mu.Lock()
	work := q.work
	q.mu.Unlock()
	if work == nil {
		return nil, false
	}
	for len(items) == 0 || len(items) < most && work.Len() > 0 {
		it, ended := work.Get()
		if ended {
			break
		}
		items = append(items, it)
		if it.Pod.Name != "" || it.Gang.Name != "" {
			q.mu.Lock()
			q.inFlight++
			q.mu.Unlock()
		}
	}
	return items, len(items) > 0
}

// PopDue returns the pods, gangs and nodes that are due now, at most so many, and does not wait.
func (q *Queue) PopDue(most int) []Item {
	q.mu.Lock()
	work := q.work
	q.mu.Unlock()
	if work == nil || work.Len() == 0 {
		return nil
	}
	items, _ := q.Pop(min(most, work.Len()))
	return slices.DeleteFunc(items, func(it Item) bool {
		if it.IsMove() { // for the next round
			work.Add(it)
			work.Done(it)
		}
		return it.IsMove()
	})
}

// Done ends the look at an item that was popped. Its error says whether, and when, it is
// looked at again.
func (q *Queue) Done(it Item, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if it.Pod.Name != "" || it.Gang.Name != "" {
		q.inFlight--
	}
	var later Yield
	switch {
	case err == nil:
		delete(q.attempts, it)
		q.work.Forget(it)
	case errors.As(err, &later):
		delete(q.attempts, it)
		q.work.Forget(it)
		if later.Pause == 0 {
			q.work.Add(it)
		} else {
			q.work.AddAfter(it, later.Pause)
		}
	case errors.Is(err, ErrAgain) && q.attempts[it] < MaxAttempts:
		q.attempts[it]++
		q.work.Add(it)
	default:
		delete(q.attempts, it)
		q.logFailure(it, err)
		q.work.AddRateLimited(it)
	}
	q.work.Done(it)
}

// lasts is how many failures in a row are an error: fewer are others' writes in between, or an API
// server that is just away.
const lasts = 5

// logFailure logs an error at the first failure of an item, and once more when it lasts.
func (q *Queue) logFailure(it Item, err error) {
	log := q.log
	switch {
	case it.Node != "":
		log = log.WithValues("node", it.Node)
	case it.Gang.Name != "":
		log = log.WithValues("gang", it.Gang)
	case it.Pod.Name != "":
		log = log.WithValues("pod", it.Pod)
	}
	switch failures := q.work.NumRequeues(it) + 1; failures {
	case 1:
		log.Info("Trying again", "err", err)
	case lasts:
		log.Error(err, "Failed repeatedly, trying again", "failures", failures)
	default:
		log.V(1).Info("Trying again", "err", err, "failures", failures)
	}
}

// Add has the item looked at. It is a no-op on a standby.
func (q *Queue) Add(it Item) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(it)
}

func (q *Queue) add(it Item) {
	if q.work != nil {
		q.work.Add(it)
	}
}

// AddAfter is Add, later.
func (q *Queue) AddAfter(it Item, delay time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addAfter(it, delay)
}

func (q *Queue) addAfter(it Item, delay time.Duration) {
	if q.work != nil {
		q.work.AddAfter(it, delay)
	}
}

// AddPod has the pod looked at, or the gang that it is placed with.
func (q *Queue) AddPod(pod *corev1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.add(q.itemOf(pod))
}

// AddPodAfter is AddPod, later.
func (q *Queue) AddPodAfter(pod *corev1.Pod, delay time.Duration) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.addAfter(q.itemOf(pod), delay)
}

// ItemOf is what is to be looked at for a pod now: it, or its gang.
func (q *Queue) ItemOf(pod *corev1.Pod) Item {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.itemOf(pod)
}

// itemOf is what is to be looked at for a pod: its gang, while it waits for us and may have to
// start with others.
func (q *Queue) itemOf(pod *corev1.Pod) Item {
	if name, is := q.groups.PlacedWith(pod); is {
		return Item{Gang: name}
	}
	return Item{Pod: podstate.KeyOf(pod)}
}

// Update has a pod looked at that has changed. old is its version before, nil for a new one.
func (q *Queue) Update(old, pod *corev1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	ready := podstate.Ready(pod)
	if !ready {
		delete(q.unschedulable, podstate.KeyOf(pod))
		q.forgetWait(pod)
	}
	// Most of what happens to a pod that has its place needs no look, and would take the room of one
	// that waits from the round. What ends has to be noted too.
	if q.work != nil && podstate.Ours(pod) && (ready || q.isWatched(pod) || old != nil && q.isWatched(old)) {
		q.add(q.itemOf(pod))
	}
}

// isWatched reports whether package bindwatch has something to do for a pod that is past our
// gate. The pod's slices elsewhere come with their ledger too, and nearly all that the default
// scheduler has said nothing of yet are bound in a moment: these are looked at later.
func (q *Queue) isWatched(pod *corev1.Pod) bool {
	return podstate.Stuck(pod) || q.cache.HeldElsewhere(pod)
}

// Delete forgets a pod.
func (q *Queue) Delete(pod *corev1.Pod) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.settled(pod.UID)
	q.forgetWait(pod)
	if key := podstate.KeyOf(pod); q.unschedulable[key].uid == pod.UID {
		delete(q.unschedulable, key)
	}
}
