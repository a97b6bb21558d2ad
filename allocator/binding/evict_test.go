// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/test/objects"
)

// An eviction is of the very pod and of no version of it, and what a budget forbids now is no error.
func TestEvict(t *testing.T) {
	pods := schema.GroupResource{Resource: "pods"}
	for name, tt := range map[string]struct {
		answer error
		ok     bool
		failed bool
	}{
		"done":                       {nil, true, false},
		"a budget forbids it":        {apierrors.NewTooManyRequests("the budget is used up", 10), false, false},
		"several budgets cover it":   {apierrors.NewInternalError(errors.New("more than one PodDisruptionBudget")), false, false},
		"it is gone":                 {apierrors.NewNotFound(pods, "p"), true, false},
		"another has its name":       {apierrors.NewConflict(pods, "p", errors.New("precondition")), true, false},
		"the API server has no time": {apierrors.NewServerTimeout(pods, "create", 1), false, true},
		"its namespace is not ours":  {apierrors.NewForbidden(pods, "p", errors.New("vernier.dev/inject")), false, false},
	} {
		for _, dryRun := range []bool{true, false} {
			f := newFixture(t)
			var sent []*policyv1.Eviction
			f.Client = interceptor.NewClient(f.api, interceptor.Funcs{
				SubResourceCreate: func(_ context.Context, _ client.Client, kind string, obj, sub client.Object, _ ...client.SubResourceCreateOption) error {
					e := sub.(*policyv1.Eviction)
					if p, is := obj.(*corev1.Pod); !is || kind != "eviction" || p.Name != "p" || p.Namespace != "ns" || e.Name != "p" || e.Namespace != "ns" {
						t.Errorf("%s: %s of %v: %v", name, kind, obj, sub)
					}
					sent = append(sent, e)
					return tt.answer
				},
			})
			pod := objects.Halves("p", "c")
			pod.ResourceVersion = "7"
			if ok, err := f.Evict(t.Context(), pod, ptr.To[int64](3600), dryRun); ok != tt.ok || (err != nil) != tt.failed {
				t.Errorf("%s: %v, %v", name, ok, err)
			}
			if len(sent) != 1 {
				t.Fatalf("%s: %d requests", name, len(sent))
			}
			options := sent[0].DeleteOptions
			if uid := options.Preconditions.UID; uid == nil || *uid != types.UID("p") || options.Preconditions.ResourceVersion != nil {
				t.Errorf("%s: preconditions %+v", name, options.Preconditions)
			}
			if grace := options.GracePeriodSeconds; grace == nil || *grace != 3600 {
				t.Errorf("%s: grace %v", name, grace)
			}
			if slices.Contains(options.DryRun, metav1.DryRunAll) != dryRun {
				t.Errorf("%s: dry run %v: %v", name, dryRun, options.DryRun)
			}
		}
	}
}
