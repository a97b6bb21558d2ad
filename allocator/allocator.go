// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"cmp"
	"context"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/binding/bindwatch"
	"vernier.dev/vernier/allocator/binding/repair"
	"vernier.dev/vernier/allocator/kueue"
	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/eventhandlers"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/agents"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/tides"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// Config is what an allocator works with.
type Config struct {
	// Client writes ledgers and pods and reads them live. It must not cache.
	Client  client.Client
	Filters *feasible.Filters
	Events  record.EventRecorder
	Clock   clock.WithTicker
	Log     logr.Logger
	// PodTemplates reads those of Kueue's Workloads; nil where the check is of no use. Enabled is as in
	// kueue.Config.
	PodTemplates kueue.Read
	Enabled      func(namespace string) (enabled, known bool)
	// Classes are the GPUClasses that there are; nil is none.
	Classes *classes.Set
	// Tides are those that there are; nil is none.
	Tides *tides.Set
	// Overcommit is how much of a node's compute is promised to burstable containers, 0 for all of it. It is
	// false where the node is not known. Nil over-commits nothing.
	Overcommit func(node string) (v1alpha1.Percent, bool)
	// Groups says how many pods of a gang must start together.
	Groups *podgroup.Sizes
	// Agents are the node agents' pods. Nil where agents do not run in pods: then only what
	// they say themselves is known of them.
	Agents *agents.Agents
	// Requests is how many may be under way at a time, 1 or more.
	Requests int
	// Preemption is for whom pods with slices may be evicted.
	Preemption preemption.Policy
	// PriorityClasses are those that count against pods of other namespaces: priority.Classes.
	PriorityClasses []string
	// ReserveAfter is how long the first waiter waits before room is reserved for it; 0 reserves
	// none.
	ReserveAfter time.Duration
	// NodeLabels are a node's; false where it is not known. Nil labels no nodes.
	NodeLabels func(node string) (map[string]string, bool)
	// IdleAfter is how long a pod does no work on its GPUs before its condition says so; 0 never says it.
	IdleAfter time.Duration
	// Defragment says when pods are moved for others.
	Defragment preemption.Defragment
	// Lookahead is how far ahead room is planned, 0 for backfill.Lookahead: who leaves later stays, and
	// who is evicted has so long.
	Lookahead time.Duration
}

// Allocator is one replica. The Set and Delete methods of its handlers feed it and may be
// called concurrently; Lead decides.
type Allocator struct {
	*eventhandlers.Handlers

	clock        clock.WithTicker
	cache        *cache.Cache
	groups       *gang.Groups
	queue        *queue.Queue
	notify       *notify.Notifier
	binder       *binding.Binder
	reservations *reservation.Reservations
	scheduler    *scheduling.Scheduler
	preemption   *preemption.Preemption
	workloads    *kueue.Workloads
	bindwatch    *bindwatch.Watch
	repair       *repair.Reconciler

	// rooms is the queue's at the last step.
	rooms int
}

// New is an allocator that knows nothing yet.
func New(c Config) *Allocator {
	a := &Allocator{clock: c.Clock, cache: cache.New(c.Filters, c.Classes, c.Log), groups: gang.New(c.Groups)}
	a.cache.Priorities.Everywhere = c.PriorityClasses
	a.notify = &notify.Notifier{Events: c.Events, Client: c.Client, Clock: c.Clock, Log: c.Log}
	a.queue = queue.New(a.cache, a.groups, a.notify, c.Filters.Undecided, c.Clock, c.Log)
	a.Handlers = &eventhandlers.Handlers{Cache: a.cache, Groups: a.groups, Queue: a.queue, Filters: c.Filters, Agents: c.Agents, Log: c.Log}
	a.binder = &binding.Binder{Client: c.Client, Cache: a.cache, Queue: a.queue, Handlers: a.Handlers, Notify: a.notify, Clock: c.Clock, Log: c.Log, Requests: c.Requests}
	lookahead := cmp.Or(c.Lookahead, backfill.Lookahead)
	a.reservations = reservation.New(a.cache, a.queue, c.Clock, lookahead)
	a.preemption = preemption.New(preemption.Config{
		Cache: a.cache, Groups: a.groups, Queue: a.queue, Filters: c.Filters, Binder: a.binder, Notify: a.notify,
		Reservations: a.reservations, Policy: c.Preemption, Lookahead: lookahead, ReserveAfter: c.ReserveAfter, Defragment: c.Defragment, Classes: c.Classes, Clock: c.Clock, Log: c.Log,
	})
	a.scheduler = &scheduling.Scheduler{
		Cache: a.cache, Groups: a.groups, Classes: c.Classes, Queue: a.queue, Filters: c.Filters, Binder: a.binder,
		PostFilter: a.preemption, Reservations: a.reservations, Clock: c.Clock, Log: c.Log,
	}
	a.workloads = kueue.New(kueue.Config{
		Client: c.Client, Cache: a.cache, Queue: a.queue, Scheduler: a.scheduler, Reservations: a.reservations,
		Read: c.PodTemplates, Enabled: c.Enabled, Classes: c.Classes, Clock: c.Clock, Log: c.Log,
	})
	a.bindwatch = bindwatch.New(a.cache, a.queue, a.binder, a.notify, a.preemption.Failed, c.Filters.UnboundClaims, c.Clock)
	a.repair = &repair.Reconciler{Cache: a.cache, Classes: c.Classes, Queue: a.queue, Binder: a.binder, Notify: a.notify, Agents: c.Agents, Tides: c.Tides, Overcommit: c.Overcommit, NodeLabels: c.NodeLabels, IdleAfter: c.IdleAfter, Clock: c.Clock, Log: c.Log}
	a.reservations.OnEnd(a.preemption.Ended)
	a.OnGone(a.reservations.Forget)
	a.OnGone(a.preemption.Forget)
	a.OnGone(a.bindwatch.Forget)
	a.OnGone(a.binder.Forget)
	a.OnVictims(a.preemption.VictimsChanged)
	return a
}

// Lead decides until ctx ends. The events of another leader's time are in the
// caches: everything is looked at once.
func (a *Allocator) Lead(ctx context.Context) error {
	work := queue.NewWork(a.clock)
	stop := context.AfterFunc(ctx, work.ShutDown)
	defer stop()
	a.begin(ctx, work)
	var writing sync.WaitGroup
	writing.Go(func() { a.workloads.Write(ctx) })
	for a.step(ctx) {
	}
	a.end()
	writing.Wait()
	return nil
}

func (a *Allocator) end() {
	a.workloads.Close()
	a.scheduler.End()
	a.reservations.Clear()
	a.queue.Close()
}

func (a *Allocator) begin(ctx context.Context, work queue.Work) {
	a.scheduler.Lead()
	a.workloads.Open()
	a.workloads.Rebuild(ctx)
	a.queue.Open(work)
	a.workloads.AddDue()
}

// step looks at what is due, up to a round of it; false when the queue has ended.
func (a *Allocator) step(ctx context.Context) bool {
	// Where more is due than there is time for, it is taken by turns, and not from the head of a
	// queue that one tenant fills.
	most := queue.MaxRound
	if a.scheduler.Backlogged() {
		most = maxBacklog
	}
	items, ok := a.queue.Pop(most)
	a.reservations.Review()
	if rooms := a.queue.Rooms(); rooms != a.rooms {
		a.rooms = rooms
		a.workloads.AddDue()
	}
	// Of the room that has come pods that wait are to have their part in the same round as pods
	// that have just arrived.
	moved, roomier := false, false
	for _, it := range items {
		if it.IsMove() {
			a.queue.ActivatePending(it)
			moved, roomier = true, roomier || it.IsMoveAll()
		}
	}
	if moved {
		for _, r := range a.reservations.All() {
			if roomier {
				a.queue.Add(r.Owner)
			}
		}
		items = append(items, a.queue.PopDue(queue.MaxMoves+reservation.Most)...)
		a.queue.MovePending()
	}
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
	var ledgers, due []int
	for i, it := range items {
		switch {
		case it.Node != "":
			ledgers = append(ledgers, i)
		case it.Pod.Name != "", it.Gang.Name != "":
			due = append(due, i)
		}
	}
	a.binder.Each(len(ledgers), func(k int) { errs[ledgers[k]] = a.repair.Reconcile(ctx, items[ledgers[k]].Node) })

	r := a.binder.NewRound()
	defer r.End()
	pending := make([]*binding.Pending, len(items))
	// finish writes what was decided on so far: a gang writes the ledgers itself.
	finish := func() {
		r.Finish(ctx, pending)
		for i, p := range pending {
			if p != nil {
				errs[i], pending[i] = p.Err, nil
			}
		}
	}
	for i, decided := range a.scheduler.InOrder(items, due) {
		if !decided {
			errs[i] = queue.Yield{}
			continue
		}
		var waiter *scheduling.Waiter
		if items[i].Gang.API == podrequest.Workload {
			errs[i] = a.workloads.Decide(ctx, items[i].Gang)
		} else if items[i].Pod.Name != "" {
			pending[i], waiter, errs[i] = a.reconcilePod(ctx, r, items[i].Pod)
		} else {
			finish()
			waiter, errs[i] = a.scheduler.PlaceGang(ctx, r, items[i].Gang)
		}
		// Before those of a lower priority are decided on, which would take the room.
		if waiter != nil && errs[i] == nil {
			errs[i] = a.preemption.MakeRoom(ctx, *waiter, finish)
		}
	}
	finish()
	return errs
}

// reconcilePod looks at one pod of ours. What it returns is on its way in the round, or waits for room.
func (a *Allocator) reconcilePod(ctx context.Context, r *binding.Round, key types.NamespacedName) (*binding.Pending, *scheduling.Waiter, error) {
	pod := a.cache.Pod(key)
	switch {
	case pod == nil:
		return nil, nil, nil
	case podstate.Ready(pod) && !a.groups.Alone(pod):
		a.groups.Merge(pod)
		a.queue.AddPod(pod)
		return nil, nil, nil
	case podstate.Ready(pod) && a.queue.Blocked(pod):
		return nil, nil, nil
	case podstate.Ready(pod):
		return a.scheduler.PlacePod(ctx, r, pod)
	case podstate.WaitsForOtherGates(pod):
		return nil, nil, nil
	default:
		return nil, nil, a.bindwatch.Check(ctx, pod)
	}
}
