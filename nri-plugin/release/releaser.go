// SPDX-License-Identifier: Apache-2.0

// Package release owns the node's side of giving slices back. The node decides.
// A pod's slices are released when the pod is over (terminal, or gone from the
// API server) and the runtime has none of its containers. The pod is then fenced
// and its UID published, and the allocator takes the slices out of the spec.
//
// It also ends containers that outlive their pod: whose pod is deleted, and not counted by
// ResourceQuota any more.
//
// It never changes the spec, never releases for a deletion timestamp, and never
// releases while the runtime is out of sight.
package release

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/worker"
)

const (
	// recheck is when a pod is looked at again that holds slices and is not
	// bound to this node, which the watch of this node's pods does not show.
	recheck = 5 * time.Second
	// getTimeout bounds one read from the API server.
	getTimeout = 5 * time.Second
)

// Releaser decides, pod by pod.
type Releaser struct {
	// Index is the latest ledger.
	Index func() *ledger.Index
	// Pods of this node, from the watch; Live is the API server itself.
	Pods, Live client.Reader
	Table      *attach.ContainerTable
	// IdleEnded, if set, reports whether the node ends the pod's idle slice, whatever the ledger says.
	IdleEnded func(types.UID) bool
	// Forget removes what was prepared for a pod on the node.
	Forget func(types.UID) error
	// Publish asks for the status to be written.
	Publish func()
	// Kill ends the first process of a container, and calls gone, where there is one, when it has ended.
	// Warn sends an event.
	Kill func(pid uint32, container string, gone func()) error
	Warn func(c mode.Container, reason, message string)
	Now  func() time.Time
	Log  logr.Logger

	queue worker.Queue[types.UID]
	// outlived are the pods that are deleted and have containers; Run's alone.
	outlived map[types.UID]*outlived
	killed   *atomic.Int64
	// reclaims are the idle slices with containers that are being taken back; Run's alone.
	reclaims map[types.UID]*reclaim
}

// New makes a Releaser's queue; the fields are the caller's to fill.
func New(r Releaser) *Releaser {
	r.outlived, r.killed, r.reclaims = map[types.UID]*outlived{}, &atomic.Int64{}, map[types.UID]*reclaim{}
	r.queue = worker.NewQueue[types.UID](100*time.Millisecond, 30*time.Second)
	return &r
}

// Look asks for a decision about a pod. Any change that may bear on it is a
// reason: the pod's, its containers', the ledger's.
func (r *Releaser) Look(pod types.UID) { r.queue.Add(pod) }

// LookAll asks about every pod that holds slices, or did.
func (r *Releaser) LookAll() {
	for _, pod := range r.Index().Pods() {
		r.Look(pod)
	}
	for _, pod := range r.Table.Fenced() {
		r.Look(pod)
	}
}

// Run decides until ctx ends.
func (r *Releaser) Run(ctx context.Context) error {
	return worker.Run(ctx, r.queue, func(pod types.UID) (time.Duration, error) {
		again, err := r.decide(ctx, pod)
		if err != nil {
			r.Log.Error(err, "Cannot decide whether the slices of a pod are free", "podUID", pod)
		}
		return again, err
	})
}

// decide releases a pod's slices if it is time. again, when not 0, is when to
// look once more without a reason from outside.
func (r *Releaser) decide(ctx context.Context, pod types.UID) (again time.Duration, err error) {
	owner, holds := r.Index().Owner(pod)
	running := r.Table.Of(pod)
	if len(running) == 0 {
		delete(r.outlived, pod)
		delete(r.reclaims, pod)
	}
	if !holds {
		// The spec is clean: the handshake is over.
		if len(running) == 0 {
			return 0, r.forget(pod)
		}
		// Or the ledger has lost the slices.
		if len(running[0].Grants) == 0 {
			return 0, nil
		}
		owner = running[0].Owner
	}
	if r.Table.Barred(pod) {
		// Decided, and published until the spec is clean. Every change of the ledger asks
		// again, and many pods may end together.
		return 0, nil
	}
	is := life{over: true}
	if r.Index().Leaving(pod) || holds && r.IdleEnded != nil && r.IdleEnded(pod) {
		// Whatever becomes of the pod: others wait for its memory.
		again, err = r.reclaim(pod, running)
	} else {
		if is, err = r.read(ctx, pod, owner); err != nil {
			return 0, err
		}
		if len(running) > 0 {
			again, err = r.end(pod, is, running)
		}
	}
	if !is.over {
		if !is.seen && again == 0 {
			again = recheck
		}
		return again, err
	}
	if !holds || !r.Table.Fence(pod) {
		// Its containers' end, or the next synchronization, comes back here.
		return again, err
	}
	r.Log.Info("Released pod", "pod", owner, "podUID", pod)
	r.Publish()
	return 0, nil
}

// forget removes what is left of a pod on the node, once it is known that no container is.
func (r *Releaser) forget(pod types.UID) error {
	if !r.Table.Synced() {
		return nil
	}
	if err := r.Forget(pod); err != nil {
		return err
	}
	r.Table.Unfence(pod)
	r.Publish()
	return nil
}

// life is what the API server says of a pod.
type life struct {
	// over: it can have no container any more by Kubernetes' rules.
	over bool
	// seen: the watch shows the pod, so a change of it will be a reason to look.
	seen bool
	// deleted: for good. ResourceQuota counts it for as long as counted at most from then on; not at
	// all where it is gone.
	deleted, gone bool
	counted       time.Duration
}

// read asks the watch, and the API server itself where that doesn't show the pod.
func (r *Releaser) read(ctx context.Context, uid types.UID, owner string) (life, error) {
	namespace, name, found := strings.Cut(owner, "/")
	if !found {
		return life{}, fmt.Errorf("the ledger names the owner of pod %s %q; want namespace/name", uid, owner)
	}
	key := client.ObjectKey{Namespace: namespace, Name: name}
	pod := &corev1.Pod{}
	if err := r.Pods.Get(ctx, key, pod); err == nil && pod.UID == uid {
		is := lifeOf(pod)
		is.seen = true
		return is, nil
	}
	// Not on this node, or gone, or replaced by one of the same name: only the
	// API server knows.
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	err := r.Live.Get(ctx, key, pod)
	switch {
	// A page of somebody's between that there is nothing is not the API server's word.
	case apierrors.IsNotFound(err) && !apierrors.IsUnexpectedServerError(err):
		return life{over: true, deleted: true, gone: true}, nil
	case err != nil:
		return life{}, fmt.Errorf("reading pod %s: %w", owner, err)
	case pod.UID != uid:
		return life{over: true, deleted: true, gone: true}, nil
	}
	return lifeOf(pod), nil
}

func lifeOf(pod *corev1.Pod) life {
	is := life{over: pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed}
	if grace := pod.DeletionGracePeriodSeconds; pod.DeletionTimestamp != nil && grace != nil {
		// The timestamp is the deletion's end, and the quota adds the grace to it once more.
		is.deleted, is.counted = true, 2*time.Duration(min(*grace, math.MaxInt32))*time.Second
	}
	return is
}

// late is how much longer a container may take than it has: the kubelet ends it first, with 2 s more
// than its grace, and the agent learns of a deletion at another time.
const late = 10 * time.Second

// ReasonOrphaned is the reason of the event: a container with slices has outlived its pod.
const ReasonOrphaned = "OrphanedContainer"

// outlived is a pod that is deleted and whose containers run.
type outlived struct {
	// due is when they are ended.
	due time.Time
	// ended are those that have been killed, and that the runtime still shows.
	ended map[string]bool
}

// end ends the containers of a pod that ResourceQuota counts no more: one that is gone, once its own
// grace period is over, and one that is being deleted, once the quota has forgotten it. The kubelet
// waits for the grace with which it began to end the pod, whatever a later deletion says, so a pod
// can be gone from the API server for years while it runs. again is when it is due.
//
// It ends nothing of a pod that it does not see: the API server itself has said that the pod is
// being deleted or is gone, just now where it is gone.
func (r *Releaser) end(pod types.UID, is life, running []attach.Entry) (again time.Duration, err error) {
	if !is.deleted || !r.Table.Synced() {
		return 0, nil
	}
	has := is.counted
	if is.gone {
		for _, e := range running {
			has = max(has, e.Grace)
		}
	}
	due := r.Now().Add(has + late)
	o := r.outlived[pod]
	if o == nil {
		o = &outlived{due: due, ended: map[string]bool{}}
		r.outlived[pod] = o
	}
	// Another deletion can only shorten it.
	if due.Before(o.due) {
		o.due = due
	}
	if left := o.due.Sub(r.Now()); left > 0 {
		return left, nil
	}
	for _, e := range running {
		if o.ended[e.ID] || e.PID == 0 {
			continue
		}
		switch failed := r.Kill(e.PID, e.ID, nil); {
		case failed == nil:
			o.ended[e.ID] = true
			r.killed.Add(1)
			r.Log.Info("Ended a container that has outlived its pod", "pod", e.Owner, "podUID", pod, "container", e.Name)
			r.Warn(e.Container, ReasonOrphaned, fmt.Sprintf(
				"it is ended: its pod was deleted, ResourceQuota no longer counts it, and the kubelet has not ended it in %s", has+late))
		case !errors.Is(failed, unix.ESRCH): // else it ends just now
			err = errors.Join(err, fmt.Errorf("ending container %s of pod %s, which has outlived its pod: %w", e.Name, e.Owner, failed))
			r.Warn(e.Container, ReasonOrphaned, fmt.Sprintf("it has outlived its pod, and cannot be ended (%v): end it on the node", failed))
		}
	}
	return recheck, err
}

// ReasonReclaimed is the reason of the event: the container of an idle slice was ended.
const ReasonReclaimed = "IdleSliceReclaimed"

// killAgain is when a container is killed once more that does not end, or that had no process yet.
const killAgain = 100 * time.Millisecond

// reclaim is since when an idle slice is being taken back, and whether its container was killed.
type reclaim struct {
	since  time.Time
	killed bool
}

// reclaim ends the containers of an idle slice that is being taken back. No other is started for it.
func (r *Releaser) reclaim(pod types.UID, running []attach.Entry) (again time.Duration, err error) {
	is := r.reclaims[pod]
	if is == nil && len(running) > 0 {
		is = &reclaim{since: r.Now()}
		r.reclaims[pod] = is
	}
	for _, e := range running {
		again = killAgain
		if e.PID == 0 {
			continue // it is being created
		}
		var gone func()
		if since := is.since; !is.killed {
			gone = func() { reclaimSeconds.Observe(r.Now().Sub(since).Seconds()) }
		}
		switch failed := r.Kill(e.PID, e.ID, gone); {
		case failed == nil:
			is.killed = true
			r.Log.Info("Ended a container of an idle slice", "pod", e.Owner, "podUID", e.Pod, "container", e.Name)
			r.Warn(e.Container, ReasonReclaimed, "it is ended: the memory of its idle slice was granted to others, or was lent and is needed, or its tide is over")
		case !errors.Is(failed, unix.ESRCH):
			err = errors.Join(err, fmt.Errorf("ending container %s of pod %s, whose idle slice is taken back: %w", e.Name, e.Owner, failed))
		}
	}
	return again, err
}

var reclaimSeconds = prometheus.NewHistogram(prometheus.HistogramOpts{
	Name:    "vernier_node_idle_slice_reclaim_seconds",
	Help:    "Time from when the agent saw that an idle slice is taken back until the last process of its container was gone.",
	Buckets: prometheus.ExponentialBuckets(0.0125, 2, 10),
})

func init() { metrics.Registry.MustRegister(reclaimSeconds) }

// Ended is how many containers were ended that had outlived their pods.
func (r *Releaser) Ended() int64 { return r.killed.Load() }
