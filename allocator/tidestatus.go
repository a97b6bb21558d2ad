// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/api/tide"
	"vernier.dev/vernier/api/v1alpha1"
)

// tideStatus has Tides say whether they are open. Nothing is decided by it.
type tideStatus struct {
	client.Client
	now func() servertime.Reading
}

// watchTides adds the controller that does so while the replica leads.
func watchTides(mgr manager.Manager, now func() servertime.Reading) error {
	return builder.ControllerManagedBy(mgr).Named("tides").
		For(&v1alpha1.Tide{}, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		WithOptions(controller.Options{SkipNameValidation: ptr.To(true)}). // tests have several replicas in a process
		Complete(&tideStatus{mgr.GetClient(), now})
}

// Reasons of the condition Accepted.
const (
	reasonRead    = "Read"
	reasonNotRead = "NotRead"
	reasonClock   = "ClockSkew"
)

// Reconcile writes the status where it has changed, and looks again when it will change.
func (s *tideStatus) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	t := &v1alpha1.Tide{}
	if err := s.Get(ctx, request.NamespacedName, t); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	was := t.Status.DeepCopy()
	again := setTideStatus(t, s.now())
	if !equality.Semantic.DeepEqual(was, &t.Status) {
		if err := s.Status().Update(ctx, t); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{RequeueAfter: again}, nil
}

// setTideStatus sets what follows from the spec and the time, and returns after how long that is looked
// at again.
func setTideStatus(t *v1alpha1.Tide, now servertime.Reading) (again time.Duration) {
	accepted := metav1.Condition{Type: v1alpha1.ConditionAccepted, Status: metav1.ConditionTrue, Reason: reasonRead, ObservedGeneration: t.Generation}
	read, err := tide.Read(t)
	untrusted := now.Err()
	switch {
	case err != nil:
		accepted.Status, accepted.Reason = metav1.ConditionFalse, reasonNotRead
		accepted.Message = "its nodes lend nothing: " + err.Error()
	case untrusted != nil:
		accepted.Status, accepted.Reason = metav1.ConditionUnknown, reasonClock
		accepted.Message = "it does not open before the allocator's clock is right: " + untrusted.Error()
	}
	meta.SetStatusCondition(&t.Status.Conditions, accepted)
	if untrusted != nil {
		return servertime.MaxSkew
	}
	open, until := read.Open(now.Now)
	next := read.Next(now.Now)
	t.Status.Open, t.Status.Until, t.Status.Next = open, nil, nil
	switch {
	case open:
		t.Status.Until = &metav1.Time{Time: until.UTC()}
		return min(until.Sub(now.Now), time.Hour)
	case !next.IsZero():
		t.Status.Next = &metav1.Time{Time: next.UTC()}
		return min(next.Sub(now.Now), time.Hour)
	}
	return time.Hour
}
