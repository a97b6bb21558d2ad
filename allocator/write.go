// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/ledgerspec"
	"vernier.dev/vernier/api/v1alpha1"
)

// fieldOwner is who wrote, in managedFields.
const fieldOwner = client.FieldOwner("vernier-allocator")

// release takes the slices of the pods that drop names out of the ledger, in one
// write; none when there are none.
func (a *Allocator) release(ctx context.Context, known *v1alpha1.SliceLedger, drop func(types.UID) bool) error {
	ledger := known.DeepCopy()
	if !ledgerspec.Release(ledger, drop) {
		return nil
	}
	if err := a.write(ctx, ledger); err != nil {
		return err
	}
	released := len(ledgerspec.Pods(known)) - len(ledgerspec.Pods(ledger))
	releases.Add(float64(released))
	a.Log.V(1).Info("released", "node", ledger.Name, "pods", released)
	return nil
}

// write is the compare-and-swap. Whatever the answer, the index knows the ledger
// as it is now when write returns, so that the next decision does not repeat a
// mistake.
//
// Nobody reads who wrote which field of a ledger, and for the API server that account is
// a tenth of a write. An empty entry ends it, and no write begins another.
func (a *Allocator) write(ctx context.Context, ledger *v1alpha1.SliceLedger) error {
	ledger.ManagedFields = []metav1.ManagedFieldsEntry{{}}
	err := a.Client.Update(ctx, ledger, fieldOwner)
	switch {
	case err == nil:
		a.SetLedger(ledger)
		return nil
	case apierrors.IsConflict(err):
		conflicts.WithLabelValues("ledger").Inc()
		if err := a.refresh(ctx, ledger.Name); err != nil {
			return err
		}
		return errAgain
	default:
		// The write may have arrived all the same.
		if refreshErr := a.refresh(ctx, ledger.Name); refreshErr != nil {
			return fmt.Errorf("writing ledger %s: %w; reading it: %w", ledger.Name, err, refreshErr)
		}
		return fmt.Errorf("writing ledger %s: %w", ledger.Name, err)
	}
}

// refresh reads a ledger live into the index.
func (a *Allocator) refresh(ctx context.Context, node string) error {
	live := &v1alpha1.SliceLedger{}
	err := a.Client.Get(ctx, client.ObjectKey{Name: node}, live)
	if apierrors.IsNotFound(err) {
		if known := a.index.Ledger(node); known != nil {
			a.DeleteLedger(known)
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("reading ledger %s: %w", node, err)
	}
	a.SetLedger(live)
	return nil
}
