// SPDX-License-Identifier: Apache-2.0

// Package scaleup owns the CapacityBuffers by which a node autoscaler makes nodes for pods that wait for
// devices, and the startup taint of these nodes. Autoscalers ignore pods with a scheduling gate.
//
// Pods that have waited for a while are packed onto empty nodes like the existing ones. The buffers ask
// for the devices that this takes, whole. They shrink before pods are placed on a new node: its startup
// taint goes after that. Otherwise an autoscaler might count the pods twice, and make one node more.
package scaleup

import (
	"context"
	"errors"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/api/classes"
)

const (
	// waited is for how long pods wait before nodes are made for them.
	waited = 30 * time.Second
	// settled is for how long a node takes slices before it counts as one without room for the waiting pods. Until
	// then they are about to be placed there.
	settled = 30 * time.Second
	// ordered is for how long a node could take pods before its startup taint goes: the buffers are smaller then.
	ordered = time.Second
	// turn is how often the pods that wait are looked at, tick the same where a node begins to take slices, and
	// refresh how often buffers are written that are not to change: somebody may have deleted them.
	turn    = time.Second
	tick    = 200 * time.Millisecond
	refresh = time.Minute
)

// Keeper writes the buffers while the replica leads.
type Keeper struct {
	// Client writes. It must not cache.
	Client client.Client
	// Namespace is that of the buffers.
	Namespace string
	// MaxGPUs bounds the devices that all buffers ask for; 0 asks for none.
	MaxGPUs int

	Cache        *cache.Cache
	Queue        *queue.Queue
	Groups       *gang.Groups
	Reservations *reservation.Reservations
	Filters      *feasible.Filters
	Classes      *classes.Set
	// Node is a node, nil where it is not known.
	Node  func(name string) *corev1.Node
	Clock clock.WithTicker
	Log   logr.Logger

	// waits is since when what waits for room does. takes is since when the nodes take slices, or could but for
	// their startup taint.
	waits map[queue.Item]time.Time
	takes map[string]time.Time
	// looked is when that was last, with so many new nodes.
	looked time.Time
	fresh  int
	// written are the buffers as they were written last, at a time. Left: there are others, or some were not.
	written []buffer
	at      time.Time
	left    bool
}

// Lead keeps the buffers until ctx ends. Those of an earlier leader that nobody needs are deleted first.
func (k *Keeper) Lead(ctx context.Context) error {
	k.waits, k.takes, k.written, k.at, k.looked = nil, nil, nil, time.Time{}, time.Time{}
	ticker := k.Clock.NewTicker(tick)
	defer ticker.Stop()
	for {
		if err := k.Look(ctx); err != nil && ctx.Err() == nil {
			k.Log.Error(err, "Cannot write CapacityBuffers; it is tried again")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C():
		}
	}
}

// Look writes what has changed, and what is to be written again, and then removes startup taints.
func (k *Keeper) Look(ctx context.Context) error {
	now := k.Clock.Now()
	fresh, full, start := k.rooms(now)
	return errors.Join(k.look(ctx, now, fresh, full), k.start(ctx, now, start))
}

func (k *Keeper) look(ctx context.Context, now time.Time, fresh, full []*placement.Node) error {
	if len(fresh) == k.fresh && now.Sub(k.looked) < turn {
		return nil
	}
	k.fresh, k.looked = len(fresh), now
	wanted := k.pack(k.waiting(now), fresh, full)
	if equality.Semantic.DeepEqual(wanted, k.written) && (!k.at.IsZero() && len(wanted) == 0 && !k.left || now.Sub(k.at) < refresh) {
		return nil
	}
	// After a failure it waits: an API server that is down is not asked every second.
	written, was := k.written, k.at
	k.written, k.at = wanted, now
	if k.left || now.Sub(was) >= refresh {
		written = nil
	}
	var err error
	k.left, err = k.write(ctx, wanted, written)
	if meta.IsNoMatchError(err) {
		if len(wanted) > 0 {
			k.Log.Info("No node autoscaler is asked for GPUs: CapacityBuffers are not served here. Install their CRD with your autoscaler, or set scaleUp.maxGPUs to 0")
		}
		return nil
	}
	if err != nil {
		k.left, k.at = true, now.Add(queue.FirstRetry-refresh)
	}
	return err
}

// waiting are the pods that have waited for room long enough, those together that start together, the first
// in the list first.
func (k *Keeper) waiting(now time.Time) (sets [][]scheduling.Request) {
	if k.MaxGPUs == 0 {
		return nil
	}
	waits := map[queue.Item]time.Time{}
	for _, item := range k.Queue.WaitingForRoom() {
		since, known := k.waits[item]
		if !known {
			since = now
		}
		waits[item] = since
		// Pods that are being evicted or moved leave room soon.
		r := k.Reservations.Of(item)
		if now.Sub(since) < waited || r != nil && r.Kind != reservation.Head {
			continue
		}
		if set := k.requests(item); len(set) > 0 {
			sets = append(sets, set)
		}
	}
	k.waits = waits
	return sets
}

// requests are what the pods of an item ask for; none where no new node has it: idle slices, and GPUs by UUID.
func (k *Keeper) requests(item queue.Item) (set []scheduling.Request) {
	pods := []*corev1.Pod{k.Cache.Pod(item.Pod)}
	if item.Gang.Name != "" {
		pods = k.Groups.Gang(item.Gang).Due
	}
	for _, pod := range pods {
		if pod == nil {
			return nil
		}
		r, err := scheduling.RequestOf(pod, k.Classes)
		if err != nil || r.Demand.Idle() || r.Demand.UUIDs.Any() {
			return nil
		}
		set = append(set, r)
	}
	return set
}
