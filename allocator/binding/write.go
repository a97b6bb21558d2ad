// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/refusal"
	"vernier.dev/vernier/api/v1alpha1"
)

// Release takes the slices of the pods that drop names out of the ledger, in one
// write; none when there are none.
func (b *Binder) Release(ctx context.Context, known *v1alpha1.SliceLedger, drop func(types.UID) bool) error {
	ledger := known.DeepCopy()
	if !grants.Release(ledger, drop) {
		return nil
	}
	if err := b.Replace(ctx, known, ledger); err != nil {
		return err
	}
	released := len(grants.Pods(known)) - len(grants.Pods(ledger))
	releases.Add(float64(released))
	b.Log.V(1).Info("Released pods", "node", ledger.Name, "pods", released)
	return nil
}

// IdleGrace is the grace period, in seconds, of pods whose idle slices are taken back. The node agent
// has ended their containers by then.
const IdleGrace int64 = 1

// Reclaim marks the idle slices of the pods as leaving. Their node agents end the containers and
// release the slices, whatever becomes of the pods.
func (b *Binder) Reclaim(ctx context.Context, pods []*corev1.Pod) error {
	on := map[string]map[types.UID]bool{}
	for _, pod := range pods {
		for _, node := range b.Cache.Index.Holders(pod.UID) {
			if on[node] == nil {
				on[node] = map[types.UID]bool{}
			}
			on[node][pod.UID] = true
		}
	}
	for _, node := range slices.Sorted(maps.Keys(on)) {
		known := b.Cache.Index.Ledger(node)
		if known == nil {
			continue
		}
		ledger := known.DeepCopy()
		if !grants.Leave(ledger, on[node]) {
			continue
		}
		if err := b.Write(ctx, ledger); err != nil {
			return err
		}
	}
	return nil
}

// Replace is Write of a ledger in place of the one that is known. It sends the pods what slices of
// it they had that they no longer have. One at its gate, or of a gang whose slices were held, had
// none to use.
func (b *Binder) Replace(ctx context.Context, known, ledger *v1alpha1.SliceLedger) error {
	if err := b.Write(ctx, ledger); err != nil {
		return err
	}
	held := grants.Held(known)
	b.Notify.Released(grants.Without(grants.Left(known, ledger), func(uid types.UID) bool {
		pod := b.Cache.PodOf(uid)
		return held[uid] != nil || pod != nil && podstate.Gated(pod)
	}))
	return nil
}

// Write is the compare-and-swap. Whatever the answer, the index knows the ledger
// as it is now when Write returns, so that the next decision does not repeat a
// mistake.
//
// No program reads a ledger's managedFields, and for the API server they are a tenth of a write. An empty entry ends it, and no write begins another.
func (b *Binder) Write(ctx context.Context, ledger *v1alpha1.SliceLedger) error {
	ledger.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	grants.Lend(ledger)
	err := b.Client.Update(ctx, ledger, FieldOwner)
	switch {
	case err == nil:
		b.refusals.forget(target{writeLedger, string(ledger.UID)})
		b.Handlers.SetLedger(ledger)
		return nil
	case apierrors.IsConflict(err):
		conflicts.WithLabelValues("ledger").Inc()
		if err := b.Refresh(ctx, ledger.Name); err != nil {
			return err
		}
		return queue.ErrAgain
	default:
		if refusal.Is(err) {
			b.ledgerRefused(writeLedger, ledger, err)
		}
		// The write may have arrived all the same.
		if refreshErr := b.Refresh(ctx, ledger.Name); refreshErr != nil {
			return fmt.Errorf("writing ledger %s: %w; reading it: %w", ledger.Name, err, refreshErr)
		}
		return fmt.Errorf("writing ledger %s: %w", ledger.Name, err)
	}
}

// WriteStatus changes the one condition of a ledger's status that is ours. Without a ledger, or
// with a refusal, nothing is written, and that is no error.
func (b *Binder) WriteStatus(ctx context.Context, ledger *v1alpha1.SliceLedger) (written bool, err error) {
	of := target{writeLedgerStatus, string(ledger.UID)}
	if is, due := b.refusals.get(of, ""); is.tries > 0 && due.After(b.Clock.Now()) {
		b.Queue.AddAfter(queue.Item{Node: ledger.Name}, due.Sub(b.Clock.Now()))
		return false, nil
	}
	err = b.Client.Status().Update(ctx, ledger, FieldOwner)
	switch {
	case err == nil:
		b.refusals.forget(of)
		b.Handlers.SetLedger(ledger)
		return true, nil
	case apierrors.IsConflict(err):
		// The agent has written, or another leader.
		if err := b.Refresh(ctx, ledger.Name); err != nil {
			return false, err
		}
		return false, queue.ErrAgain
	case apierrors.IsNotFound(err):
		return false, b.Refresh(ctx, ledger.Name)
	case refusal.Is(err):
		b.Queue.AddAfter(queue.Item{Node: ledger.Name}, b.ledgerRefused(writeLedgerStatus, ledger, err))
		return false, nil
	default:
		return false, fmt.Errorf("writing the status of ledger %s: %w", ledger.Name, err)
	}
}

// Refresh reads a ledger live into the index.
func (b *Binder) Refresh(ctx context.Context, node string) error {
	live := &v1alpha1.SliceLedger{}
	err := b.Client.Get(ctx, client.ObjectKey{Name: node}, live)
	if apierrors.IsNotFound(err) {
		if known := b.Cache.Index.Ledger(node); known != nil {
			b.Handlers.DeleteLedger(known)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading ledger %s: %w", node, err)
	}
	b.Handlers.SetLedger(live)
	return nil
}
