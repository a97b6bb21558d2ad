// SPDX-License-Identifier: Apache-2.0

// Package binding owns the writes. It writes grants into ledgers, by compare-and-swap, and takes
// slices out of them. One patch gives a pod its placement and takes its gate off. It hands the
// answer of a write to the event handlers before it returns, so that the next decision knows.
//
// It keeps nothing, and decides neither which node a pod gets nor when.
package binding

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/eventhandlers"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/refusal"
	"vernier.dev/vernier/api/v1alpha1"
)

// FieldOwner is who wrote, in managedFields.
const FieldOwner = client.FieldOwner("vernier-allocator")

// ErrGone says that the pod was deleted. The watch will show it, and whether it ever ran, and
// so who takes back its slices.
var ErrGone = errors.New("the pod is gone")

// Binder writes. It may be used concurrently.
type Binder struct {
	// Client writes ledgers and pods and reads them live. It must not cache.
	Client   client.Client
	Cache    *cache.Cache
	Queue    *queue.Queue
	Handlers *eventhandlers.Handlers
	Notify   *notify.Notifier
	Clock    clock.PassiveClock
	Log      logr.Logger
	// Requests is how many may be under way at a time, 1 or more.
	Requests int

	refusals refusals
}

// Assignment is what was decided for a pod.
type Assignment struct {
	Pod  *corev1.Pod
	Plan placement.Plan
	// Ledger is that of the plan's node, in the version that the decision was made on.
	Ledger *v1alpha1.SliceLedger
}

// Each does n things, as many at a time as there may be requests.
func (b *Binder) Each(n int, do func(int)) {
	if b.Requests <= 1 {
		for i := range n {
			do(i)
		}
		return
	}
	var g errgroup.Group
	g.SetLimit(b.Requests)
	for i := range n {
		g.Go(func() error {
			do(i)
			return nil
		})
	}
	_ = g.Wait() // none of them fails
}

// All is Each, with the errors joined.
func (b *Binder) All(n int, do func(int) error) error {
	errs := make([]error, n)
	b.Each(n, func(i int) { errs[i] = do(i) })
	return errors.Join(errs...)
}

// Live is the pod as it is now, nil when it is gone.
func (b *Binder) Live(ctx context.Context, pod *corev1.Pod) (*corev1.Pod, error) {
	live := &corev1.Pod{}
	err := b.Client.Get(ctx, client.ObjectKeyFromObject(pod), live)
	switch {
	case apierrors.IsNotFound(err) || err == nil && live.UID != pod.UID:
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("reading pod %s: %w", podstate.KeyOf(pod), err)
	}
	b.Handlers.SetWritten(live)
	return live, nil
}

// DeleteAsSeen deletes only the pod as it was seen: one that was bound since, or started,
// stays. A refusal is no error.
func (b *Binder) DeleteAsSeen(ctx context.Context, pod *corev1.Pod) error {
	return b.attempt(writeDeletion, pod, func() error {
		err := b.Client.Delete(ctx, pod, client.Preconditions{UID: &pod.UID, ResourceVersion: &pod.ResourceVersion})
		if apierrors.IsNotFound(err) || apierrors.IsConflict(err) {
			return nil
		}
		return err
	})
}

// EvictTimeout bounds one eviction: the API server may have the client ask again for long.
const EvictTimeout = 2 * time.Second

// Evict asks the API server to end the very pod, by the eviction that its PodDisruptionBudget has
// a say in. The ok is false where it is not to be now. A budget or a webhook forbids it, several
// budgets cover the pod, or its namespace is not ours any more. A dry run changes nothing. One
// that is gone is no error.
func (b *Binder) Evict(ctx context.Context, pod *corev1.Pod, grace *int64, dryRun bool) (ok bool, err error) {
	// Not the resourceVersion: a pod's status changes at any time.
	options := &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &pod.UID}, GracePeriodSeconds: grace}
	if dryRun {
		options.DryRun = []string{metav1.DryRunAll}
	}
	eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}, DeleteOptions: options}
	bounded, stop := context.WithTimeout(ctx, EvictTimeout)
	defer stop()
	err = b.Client.SubResource("eviction").Create(bounded, &corev1.Pod{ObjectMeta: eviction.ObjectMeta}, eviction)
	switch {
	case err == nil, apierrors.IsNotFound(err), apierrors.IsConflict(err):
		b.refusals.forget(target{writeEviction, string(pod.UID)})
		return true, nil
	case ctx.Err() != nil:
		return false, ctx.Err()
	case refusal.Is(err):
		b.writeRefused(writeEviction, pod, err)
		return false, nil
	case apierrors.IsTooManyRequests(err), bounded.Err() != nil:
		b.Log.V(1).Info("Pod not evicted", "pod", podstate.KeyOf(pod), "err", err)
		return false, nil
	default:
		return false, fmt.Errorf("evicting pod %s: %w", podstate.KeyOf(pod), err)
	}
}

// Nominate notes on the pod the node that others leave for it, empty for none. The scheduler keeps
// CPU and memory there from pods of no higher priority.
func (b *Binder) Nominate(ctx context.Context, pod *corev1.Pod, node string) error {
	if pod.Status.NominatedNodeName == node {
		return nil
	}
	return b.patchStatus(ctx, writeNomination, pod, map[string]any{"nominatedNodeName": node})
}

// SetCondition changes one condition of the pod and leaves the others, which are the
// kubelet's and the scheduler's, alone. A pod that is gone needs none.
func (b *Binder) SetCondition(ctx context.Context, pod *corev1.Pod, c corev1.PodCondition) error {
	return b.patchStatus(ctx, writeCondition, pod, map[string]any{"conditions": []corev1.PodCondition{c}})
}

// SetPlacement changes the placement of a pod that has one: its slices were resized.
func (b *Binder) SetPlacement(ctx context.Context, pod *corev1.Pod, text string) error {
	return b.patch(ctx, writePlacement, pod, map[string]any{"annotations": map[string]any{v1alpha1.AnnotationPlacement: text}}, nil)
}

// patchStatus changes a pod's status. A refusal is no error.
func (b *Binder) patchStatus(ctx context.Context, write string, pod *corev1.Pod, status map[string]any) error {
	return b.patch(ctx, write, pod, map[string]any{}, status)
}

// patch changes a pod's status, or without one its metadata. A refusal is no error.
func (b *Binder) patch(ctx context.Context, write string, pod *corev1.Pod, metadata, status map[string]any) error {
	metadata["uid"] = pod.UID
	change := map[string]any{"metadata": metadata}
	if status != nil {
		change["status"] = status
	}
	text, err := json.Marshal(change)
	if err != nil {
		return err
	}
	patch := client.RawPatch(types.StrategicMergePatchType, text)
	return b.attempt(write, pod, func() (err error) {
		written := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: pod.Namespace, Name: pod.Name}}
		if status != nil {
			err = b.Client.Status().Patch(ctx, written, patch, FieldOwner)
		} else {
			err = b.Client.Patch(ctx, written, patch, FieldOwner)
		}
		switch {
		case apierrors.IsNotFound(err) || apierrors.IsConflict(err):
			return nil
		case err != nil:
			return fmt.Errorf("changing pod %s: %w", podstate.KeyOf(pod), err)
		}
		b.Handlers.SetWritten(written)
		return nil
	})
}
