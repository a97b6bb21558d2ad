// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/agents"
	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/bindwatch"
	"vernier.dev/vernier/allocator/cache"
	"vernier.dev/vernier/allocator/eventhandlers"
	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/group"
	"vernier.dev/vernier/allocator/notify"
	"vernier.dev/vernier/allocator/podgroup"
	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/repair"
	"vernier.dev/vernier/allocator/scheduling"
)

// Config is what an allocator works with.
type Config struct {
	// Client writes ledgers and pods and reads them live. It must not cache.
	Client  client.Client
	Filters *feasible.Filters
	Events  record.EventRecorder
	Clock   clock.WithTicker
	Log     logr.Logger
	// Groups says how many pods of a gang must start together.
	Groups *group.Sizes
	// Agents are the node agents' pods. Nil where agents do not run in pods: then only what
	// they say themselves is known of them.
	Agents *agents.Agents
	// Requests is how many may be under way at a time, 1 or more.
	Requests int
	// Preemption is for whom pods with slices may be evicted.
	Preemption Preemption
	// ReserveAfter is how long the first waiter waits before room is reserved for it; 0 reserves
	// none.
	ReserveAfter time.Duration
}

// Allocator is one replica. The Set and Delete methods of its handlers feed it and may be
// called concurrently; Lead decides.
type Allocator struct {
	*eventhandlers.Handlers

	clock      clock.WithTicker
	cache      *cache.Cache
	groups     *podgroup.Groups
	queue      *queue.Queue
	notify     *notify.Notifier
	binder     *binding.Binder
	scheduler  *scheduling.Scheduler
	preemption *preemption.Preemption
	bindwatch  *bindwatch.Watch
	repair     *repair.Reconciler

	// turns are the worker's alone.
	turns turns
}

// New is an allocator that knows nothing yet.
func New(c Config) *Allocator {
	a := &Allocator{clock: c.Clock, cache: cache.New(c.Filters, c.Log), groups: podgroup.New(c.Groups)}
	a.notify = &notify.Notifier{Events: c.Events, Client: c.Client, Clock: c.Clock, Log: c.Log}
	a.queue = queue.New(a.cache, a.groups, a.notify, c.Filters.Undecided, c.Clock, c.Log)
	a.Handlers = &eventhandlers.Handlers{Cache: a.cache, Groups: a.groups, Queue: a.queue, Filters: c.Filters, Agents: c.Agents, Log: c.Log}
	a.binder = &binding.Binder{Client: c.Client, Cache: a.cache, Queue: a.queue, Handlers: a.Handlers, Notify: a.notify, Clock: c.Clock, Log: c.Log, Requests: c.Requests}
	a.preemption = preemption.New(a.cache, a.queue, c.Filters, c.Clock, c.Log)
	a.scheduler = &scheduling.Scheduler{Cache: a.cache, Queue: a.queue, Filters: c.Filters, PostFilter: a.preemption, Clock: c.Clock, Log: c.Log}
	a.bindwatch = bindwatch.New(a.cache, a.queue, a.binder, a.notify, a.preemption, c.Clock)
	a.repair = &repair.Reconciler{Cache: a.cache, Queue: a.queue, Binder: a.binder, Notify: a.notify, Agents: c.Agents, Clock: c.Clock, Log: c.Log}
	a.OnGone(a.preemption.Forget)
	a.OnGone(a.bindwatch.Forget)
	return a
}

// Lead decides until ctx ends. What happened while another replica led is in the
// caches: everything is looked at once.
func (a *Allocator) Lead(ctx context.Context) error {
	work := queue.NewWork(a.clock)
	stop := context.AfterFunc(ctx, work.ShutDown)
	defer stop()
	a.begin(work)
	for a.step(ctx) {
	}
	a.end()
	return nil
}

func (a *Allocator) end() {
	a.scheduler.End()
	a.queue.Close()
}

func (a *Allocator) begin(work queue.Work) {
	a.scheduler.Lead()
	a.queue.Open(work)
}

// step looks at what is due, up to a round of it; false when the queue has ended.
func (a *Allocator) step(ctx context.Context) bool {
	// Where more is due than there is time for, it is taken by turns, and not from the head of a
	// queue that one tenant fills.
	most := queue.MaxRound
	if a.turns != nil {
		most = maxBacklog
	}
	items, ok := a.queue.Pop(most)
	for i, err := range a.look(ctx, items) {
		a.queue.Done(items[i], err)
	}
	return ok
}

// maxBacklog bounds from how many that are due those of a round are chosen.
const maxBacklog = 100 * queue.MaxRound

// look looks at items together; the errors are in their order.
func (a *Allocator) look(ctx context.Context, items []queue.Item) []error {
	errs := make([]error, len(items))
	var ledgers, pods, gangs []int
	for i, it := range items {
		switch {
		case it.IsMove():
			a.queue.ActivatePending(it)
		case it.Node != "":
			ledgers = append(ledgers, i)
		case it.Pod.Name != "":
			pods = append(pods, i)
		case it.Gang.Name != "":
			gangs = append(gangs, i)
		}
	}
	a.binder.Each(len(ledgers), func(k int) { errs[ledgers[k]] = a.repair.Reconcile(ctx, items[ledgers[k]].Node) })

	r := a.binder.NewRound()
	defer r.End()
	pending, late := make([]*binding.Pending, len(items)), false
	// in does things one after the other, as many as there is time for.
	in := func(at []int, do func(int)) {
		a.turns.sort(items, at)
		until, over := a.clock.Now().Add(scheduling.RoundTime), false
		for n, i := range at {
			if over = over || n == queue.MaxRound || n > 0 && !a.clock.Now().Before(until); over {
				errs[i], late = queue.Yield{}, true
				continue
			}
			if do(i); a.turns != nil {
				a.turns[items[i].Namespace()]++
			}
		}
	}
	in(pods, func(i int) { pending[i], errs[i] = a.reconcilePod(ctx, r, items[i].Pod) })
	r.Finish(ctx, pending)
	for i, p := range pending {
		if p != nil {
			errs[i] = p.Err
		}
	}
	in(gangs, func(i int) { errs[i] = a.reconcileGang(ctx, r, items[i].Gang) })
	if !late {
		a.turns = nil
	} else if a.turns == nil {
		a.turns = turns{}
	}
	return errs
}

// turns is how many of each namespace were looked at since more was due than there was time
// for; nil while there is time for all.
type turns map[string]int

// sort has those of namespaces go first of which the fewest were looked at: what one tenant has
// looked at again and again, and what takes long, is then not before all that others have.
func (t turns) sort(items []queue.Item, at []int) {
	if t == nil {
		return
	}
	nth, of := map[int]int{}, maps.Clone(t)
	for _, i := range at {
		nth[i] = of[items[i].Namespace()]
		of[items[i].Namespace()]++
	}
	slices.SortStableFunc(at, func(i, j int) int { return nth[i] - nth[j] })
}
