// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"

	"vernier.dev/vernier/allocator/group"
	"vernier.dev/vernier/allocator/podstate"
)

// item is something to look at: a pod, a gang, a node's ledger, or the waiting pods.
type item struct {
	pod  types.NamespacedName
	gang group.Name
	node string
	wake wakeScope
}

// namespace is the pod's or the gang's.
func (i item) namespace() string { return i.pod.Namespace + i.gang.Namespace }

// wakeScope says which waiting pods something may help.
type wakeScope int

const (
	// wakeRefused are pods for which there are devices, on nodes that the
	// scheduler would refuse.
	wakeRefused wakeScope = iota + 1
	// wakeAll are those and the pods for which there are no devices.
	wakeAll
	// wakeMore are those that were woken and not looked at yet.
	wakeMore
)

type queue = workqueue.TypedRateLimitingInterface[item]

const (
	// firstRetry and lastRetry bound the wait after an error.
	firstRetry = 20 * time.Millisecond
	lastRetry  = 5 * time.Second
	// refusedDelay collects the many changes of pods and nodes, each of which
	// might turn a refusal, into one look.
	refusedDelay = 100 * time.Millisecond
)

// maxAgain is how many times in a row something is looked at again at once, before
// it waits like after an error.
const maxAgain = 10

// errAgain asks for another look at once: the world moved, nothing is wrong.
var errAgain = errors.New("changed meanwhile")

// Lead decides until ctx ends. What happened while another replica led is in the
// caches: everything is looked at once.
func (a *Allocator) Lead(ctx context.Context) error {
	q := workqueue.NewTypedRateLimitingQueueWithConfig(
		workqueue.NewTypedItemExponentialFailureRateLimiter[item](firstRetry, lastRetry),
		workqueue.TypedRateLimitingQueueConfig[item]{Name: "allocator", Clock: a.Clock})
	a.begin(q)
	stop := context.AfterFunc(ctx, q.ShutDown)
	defer stop()
	for a.step(ctx, q) {
	}
	a.end()
	return nil
}

// begin puts everything that is known on the queue, and what happens from now on.
func (a *Allocator) begin(q queue) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue, a.ranking, a.again, a.searches = q, nil, map[item]int{}, map[group.Name]*search{}
	clear(a.gangs.apart) // none of their members was looked at by this leader
	for _, node := range a.index.Names() {
		a.enqueue(item{node: node})
	}
	pods := podstate.OldestFirst(a.pods)
	slices.SortStableFunc(pods, func(p, q *corev1.Pod) int { return cmp.Compare(podstate.Priority(q), podstate.Priority(p)) })
	for _, pod := range pods {
		a.enqueuePod(pod)
	}
}

func (a *Allocator) end() {
	a.endSearches(func(*search) bool { return true })
	a.mu.Lock()
	defer a.mu.Unlock()
	a.queue, a.ranking = nil, nil
}

// step looks at what is due, up to a round of it; false when the queue has ended.
func (a *Allocator) step(ctx context.Context, q queue) bool {
	it, ended := q.Get()
	if ended {
		return false
	}
	// Where more is due than there is time for, it is taken by turns, and not from the head of a
	// queue that one tenant fills.
	items, most := []item{it}, maxRound
	if a.turns != nil {
		most = maxBacklog
	}
	for len(items) < most && q.Len() > 0 {
		if it, ended = q.Get(); ended {
			break
		}
		items = append(items, it)
	}
	for i, err := range a.look(ctx, items) {
		it := items[i]
		var later yielded
		switch {
		case err == nil:
			delete(a.again, it)
			q.Forget(it)
		case errors.As(err, &later):
			delete(a.again, it)
			q.Forget(it)
			if later.pause == 0 {
				q.Add(it)
			} else {
				q.AddAfter(it, later.pause)
			}
		case errors.Is(err, errAgain) && a.again[it] < maxAgain:
			a.again[it]++
			q.Add(it)
		default:
			delete(a.again, it)
			a.Log.Error(err, "will be tried again", "pod", it.pod, "gang", it.gang, "node", it.node)
			q.AddRateLimited(it)
		}
		q.Done(it)
	}
	return true
}

// enqueue is a no-op on a standby. The caller holds mu.
func (a *Allocator) enqueue(it item) {
	if a.queue != nil {
		a.queue.Add(it)
	}
}

// enqueuePod is enqueue for a pod that was just learnt of, or for none: most of what
// happens to a pod that has its place needs no look, and would take the room of one that
// waits from the round. What follow looks at besides the pod, its slices elsewhere, comes
// with their ledger too. The caller holds mu.
func (a *Allocator) enqueuePod(pod *corev1.Pod) {
	if a.queue != nil && (podstate.Ready(pod) || !podstate.WaitsForOtherGates(pod) && a.toFollow(pod)) {
		a.enqueue(a.itemOf(pod))
	}
}

// enqueueAfter is enqueue, later. The caller holds mu.
func (a *Allocator) enqueueAfter(it item, delay time.Duration) {
	if a.queue != nil {
		a.queue.AddAfter(it, delay)
	}
}
