// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"

	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/v1alpha1"
)

// classStatus has GPUClasses say whether a GPU of the cluster could serve them.
type classStatus struct{ client.Client }

// watchClasses adds the controller that does so while the replica leads. A change of one class or
// of a node's devices may matter to all classes, so they are looked at together.
func watchClasses(mgr manager.Manager) error {
	all := handler.EnqueueRequestsFromMapFunc(func(context.Context, client.Object) []reconcile.Request {
		return []reconcile.Request{{}}
	})
	devices := predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
		was, is := e.ObjectOld.(*v1alpha1.SliceLedger), e.ObjectNew.(*v1alpha1.SliceLedger)
		return !equality.Semantic.DeepEqual(was.Status.Devices, is.Status.Devices)
	}}
	return builder.ControllerManagedBy(mgr).Named("classes").
		Watches(&v1alpha1.GPUClass{}, all).
		Watches(&v1alpha1.SliceLedger{}, all, builder.WithPredicates(devices)).
		WithOptions(controller.Options{SkipNameValidation: ptr.To(true)}). // tests have several replicas in a process
		Complete(&classStatus{mgr.GetClient()})
}

// Reconcile writes the conditions that have changed.
func (s *classStatus) Reconcile(ctx context.Context, _ reconcile.Request) (reconcile.Result, error) {
	list, ledgers := &v1alpha1.GPUClassList{}, &v1alpha1.SliceLedgerList{}
	if err := s.List(ctx, list); err != nil {
		return reconcile.Result{}, err
	}
	if err := s.List(ctx, ledgers, client.UnsafeDisableDeepCopy); err != nil {
		return reconcile.Result{}, err
	}
	known := classes.Of(list.Items...)
	for i := range list.Items {
		class := &list.Items[i]
		now := view.Available(class, known, ledgers.Items)
		now.ObservedGeneration = class.Generation
		if !meta.SetStatusCondition(&class.Status.Conditions, now) {
			continue
		}
		if err := s.Status().Update(ctx, class); client.IgnoreNotFound(err) != nil {
			return reconcile.Result{}, err
		}
	}
	return reconcile.Result{}, nil
}
