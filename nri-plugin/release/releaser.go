// SPDX-License-Identifier: Apache-2.0

// Package release owns the node's side of giving slices back. The node decides:
// a pod's slices are released when the pod is over (terminal, or gone from the
// API server) and the runtime has none of its containers; the pod is then fenced
// and its UID published, and the allocator takes the slices out of the spec.
//
// It never changes the spec, never believes a deletion timestamp, and never
// releases while the runtime is out of sight.
package release

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
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
	Book       *attach.Book
	// Forget removes what was prepared for a pod on the node.
	Forget func(types.UID) error
	// Publish asks for the status to be written.
	Publish func()
	Log     logr.Logger

	queue workqueue.TypedRateLimitingInterface[types.UID]
}

// New makes a Releaser's queue; the fields are the caller's to fill.
func New(r Releaser) *Releaser {
	r.queue = workqueue.NewTypedRateLimitingQueue(
		workqueue.NewTypedItemExponentialFailureRateLimiter[types.UID](100*time.Millisecond, 30*time.Second))
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
	for _, pod := range r.Book.Fenced() {
		r.Look(pod)
	}
}

// Run decides until ctx ends.
func (r *Releaser) Run(ctx context.Context) error {
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	for {
		pod, shutdown := r.queue.Get()
		if shutdown {
			return nil
		}
		again, err := r.decide(ctx, pod)
		switch {
		case err != nil:
			r.Log.Error(err, "cannot decide whether the slices of a pod are free", "uid", pod)
			r.queue.AddRateLimited(pod)
		case again > 0:
			r.queue.Forget(pod)
			r.queue.AddAfter(pod, again)
		default:
			r.queue.Forget(pod)
		}
		r.queue.Done(pod)
	}
}

// decide releases a pod's slices if it is time. again, when not 0, is when to
// look once more without a reason from outside.
func (r *Releaser) decide(ctx context.Context, pod types.UID) (again time.Duration, err error) {
	owner, holds := r.Index().Owner(pod)
	if !holds {
		// The spec is clean: the handshake is over.
		if r.Book.Holds(pod) || !r.Book.Synced() {
			return 0, nil
		}
		if err := r.Forget(pod); err != nil {
			return 0, err
		}
		r.Book.Unfence(pod)
		r.Publish()
		return 0, nil
	}
	if r.Book.Barred(pod) {
		// Decided, and published until the spec is clean. Every change of the ledger asks
		// again, and many pods may end together.
		return 0, nil
	}
	over, seen, err := r.over(ctx, pod, owner)
	if err != nil {
		return 0, err
	}
	if !over {
		if seen {
			return 0, nil
		}
		return recheck, nil
	}
	if !r.Book.Fence(pod) {
		// Its containers' end, or the next synchronization, comes back here.
		return 0, nil
	}
	r.Log.Info("released", "pod", owner, "uid", pod)
	r.Publish()
	return 0, nil
}

// over tells whether the pod can have no container any more by Kubernetes' rules.
// seen: the watch shows the pod, so a change of it will be a reason to look.
func (r *Releaser) over(ctx context.Context, uid types.UID, owner string) (over, seen bool, err error) {
	namespace, name, found := strings.Cut(owner, "/")
	if !found {
		return false, false, fmt.Errorf("the ledger names the owner of pod %s %q; want namespace/name", uid, owner)
	}
	key := client.ObjectKey{Namespace: namespace, Name: name}
	pod := &corev1.Pod{}
	if err := r.Pods.Get(ctx, key, pod); err == nil && pod.UID == uid {
		return terminal(pod), true, nil
	}
	// Not on this node, or gone, or replaced by one of the same name: only the
	// API server knows.
	ctx, cancel := context.WithTimeout(ctx, getTimeout)
	defer cancel()
	err = r.Live.Get(ctx, key, pod)
	switch {
	case apierrors.IsNotFound(err):
		return true, false, nil
	case err != nil:
		return false, false, fmt.Errorf("reading pod %s: %w", owner, err)
	}
	return pod.UID != uid || terminal(pod), false, nil
}

func terminal(pod *corev1.Pod) bool {
	return pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed
}
