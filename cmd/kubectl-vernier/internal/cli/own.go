// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// showsLedgers is how a user comes to see the ledgers.
const showsLedgers = "the cluster role vernier-viewer shows them: `kubectl create clusterrolebinding NAME --clusterrole=vernier-viewer --user=YOU`"

// readableLedgers lists all ledgers, and reports false where the user may not.
func readableLedgers(ctx context.Context, r client.Reader) ([]v1alpha1.SliceLedger, bool, error) {
	all, err := ledgers(ctx, r)
	if apierrors.IsForbidden(err) {
		return nil, false, nil
	}
	return all, err == nil, err
}

// leftOut says on stderr, once, what a user without the ledgers is not shown.
func (c *command) leftOut(what string) {
	if !c.saidLeftOut {
		c.saidLeftOut = true
		fmt.Fprintf(whole(c.errOut), "left out: %s, which are in the ledgers; %s\n", what, showsLedgers)
	}
}

// visibleSlices are the slices of the namespace's pods: by the ledgers, or without these
// by the placements of the pods.
func (c *command) visibleSlices(ctx context.Context, r client.Reader, all []v1alpha1.SliceLedger, readable bool) ([]model.Slice, error) {
	if !readable {
		pods, err := podsIn(ctx, r, c.ns)
		if err != nil {
			return nil, err
		}
		return c.slicesOfChosen(ctx, r, model.SlicesOfPods(pods))
	}
	slices := model.Slices(all, c.ns)
	asked := map[string]bool{}
	for _, s := range slices {
		if s.State != model.StateGranted || asked[s.Namespace] {
			continue
		}
		asked[s.Namespace] = true
		pods, err := podsIn(ctx, r, s.Namespace)
		if err != nil && !apierrors.IsForbidden(err) {
			return nil, err
		}
		model.Finish(slices, pods)
	}
	return c.slicesOfChosen(ctx, r, slices)
}

// slicesOfChosen are the slices of the pods that -l chooses.
func (c *command) slicesOfChosen(ctx context.Context, r client.Reader, slices []model.Slice) ([]model.Slice, error) {
	return ofPods(ctx, c, r, slices, func(s model.Slice) types.NamespacedName {
		return types.NamespacedName{Namespace: s.Namespace, Name: s.Pod}
	})
}

// podsIn lists pods of a namespace, or of all if it is empty.
func podsIn(ctx context.Context, r client.Reader, ns string, which ...client.ListOption) ([]corev1.Pod, error) {
	var list corev1.PodList
	if err := r.List(ctx, &list, append(which, client.InNamespace(ns))...); err != nil {
		return nil, explain(err, "pods", ns)
	}
	return list.Items, nil
}

// quotas are the ResourceQuotas of the namespace; it reports false, with a word on stderr, where the user
// may not read them.
func (c *command) quotas(ctx context.Context, r client.Reader) ([]corev1.ResourceQuota, bool, error) {
	var list corev1.ResourceQuotaList
	err := r.List(ctx, &list, client.InNamespace(c.ns))
	if apierrors.IsForbidden(err) {
		fmt.Fprintf(whole(c.errOut), "left out: the quotas of namespace %s; the cluster role view shows them\n", c.ns)
		return nil, false, nil
	} else if err != nil {
		return nil, false, explain(err, "resourcequotas", c.ns)
	}
	return list.Items, true, nil
}
