// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// A class says whether there is a GPU for it, as nodes come and go, and as other classes do.
func TestClassSaysWhetherItIsAvailable(t *testing.T) {
	s := startWith(t, nil)
	s.run()
	class := &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"},
		Spec: v1alpha1.GPUClassSpec{Models: []string{"H100"}, Unit: v1alpha1.GPUUnit{Core: 25}}}
	s.must(s.Create(t.Context(), class))
	await := func(reason string) {
		t.Helper()
		s.await("the class to say "+reason, func(ctx context.Context) (bool, error) {
			err := s.Get(ctx, client.ObjectKeyFromObject(class), class)
			is := meta.FindStatusCondition(class.Status.Conditions, v1alpha1.ConditionAvailable)
			return is != nil && is.Reason == reason && is.ObservedGeneration == class.Generation, err
		})
	}
	await(view.ReasonNoGPU)
	s.addNode("n0")
	ledger := &v1alpha1.SliceLedger{}
	s.must(s.Get(t.Context(), client.ObjectKey{Name: "n0"}, ledger))
	set := func(edit func(*v1alpha1.DeviceStatus)) {
		t.Helper()
		s.must(s.Get(t.Context(), client.ObjectKeyFromObject(ledger), ledger))
		for i := range ledger.Status.Devices {
			edit(&ledger.Status.Devices[i])
		}
		s.must(s.Status().Update(t.Context(), ledger))
	}
	set(func(d *v1alpha1.DeviceStatus) { d.Model = "NVIDIA H100 80GB HBM3" })
	await(view.ReasonServed)
	set(func(d *v1alpha1.DeviceStatus) { d.Healthy = false })
	await(view.ReasonUnhealthy)
	s.must(s.Delete(t.Context(), ledger))
	await(view.ReasonNoGPU)
}
