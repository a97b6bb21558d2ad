// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	podresource "k8s.io/component-helpers/resource"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/cmd/kubectl-vernier/internal/view"
)

// quotaRoom is what a ResourceQuota has left, in thousandths.
type quotaRoom struct {
	name string
	left map[corev1.ResourceName]int64
}

// countQuotas finds for how many pods of each object, after those before it, the quotas of its
// namespace have room: the dry run has asked about one.
func (e *explainer) countQuotas(ctx context.Context, r client.Reader, all []*candidate) error {
	pods, rooms := map[string]int{}, map[string][]quotaRoom{}
	for _, c := range all {
		if c.dry != nil {
			pods[c.dry.Namespace] += c.Pods
		}
	}
	for _, c := range all {
		if c.dry == nil || pods[c.dry.Namespace] < 2 {
			continue
		}
		of, read := rooms[c.dry.Namespace]
		if !read {
			var err error
			if of, err = e.quotaRooms(ctx, r, c.dry.Namespace); err != nil {
				return err
			}
			rooms[c.dry.Namespace] = of
		}
		use, admitted := usage(c.dry), int64(c.Pods)
		for _, q := range of {
			for _, name := range slices.Sorted(maps.Keys(q.left)) {
				if n, left := use[name], max(q.left[name], 0); n > 0 && left/n < admitted {
					admitted = left / n
					c.quota = fmt.Sprintf("ResourceQuota %s has room for %d of %d pods (%s)", q.name, admitted, c.Pods, name)
				}
			}
		}
		for _, q := range of {
			for name := range q.left {
				q.left[name] -= use[name] * admitted
			}
		}
		if c.overQuota = c.Pods - int(admitted); c.overQuota > 0 && admitted == 0 {
			c.Verdict, c.Cause, c.Refusals = view.VerdictRefused, cause.Quota, append(c.Refusals, view.Refusal{Message: c.quota})
		}
	}
	return nil
}

// quotaRooms are those of a namespace that count all of its pods.
func (e *explainer) quotaRooms(ctx context.Context, r client.Reader, namespace string) (rooms []quotaRoom, err error) {
	var list corev1.ResourceQuotaList
	if err := r.List(ctx, &list, client.InNamespace(namespace)); apierrors.IsForbidden(err) {
		fmt.Fprintf(whole(e.errOut), "Quotas were asked about one pod of each object: you may not list those of namespace %s.\n", namespace)
	} else if err != nil {
		return nil, explain(err, "resourcequotas", namespace)
	}
	for i := range list.Items {
		q := &list.Items[i]
		if len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil {
			fmt.Fprintf(whole(e.errOut), "ResourceQuota %s of namespace %s has scopes: it was asked about one pod of each object.\n", q.Name, namespace)
			continue
		}
		room := quotaRoom{q.Name, map[corev1.ResourceName]int64{}}
		for name, hard := range q.Status.Hard {
			used := q.Status.Used[name]
			room.left[name] = hard.MilliValue() - used.MilliValue()
		}
		rooms = append(rooms, room)
	}
	return rooms, nil
}

// usage is what quotas count of a pod, in thousandths.
func usage(pod *corev1.Pod) map[corev1.ResourceName]int64 {
	use := map[corev1.ResourceName]int64{corev1.ResourcePods: 1000, "count/pods": 1000}
	for name, n := range podresource.PodRequests(pod, podresource.PodResourcesOptions{}) {
		use[name], use[corev1.DefaultResourceRequestsPrefix+name] = n.MilliValue(), n.MilliValue()
	}
	limits := podresource.PodLimits(pod, podresource.PodResourcesOptions{})
	use[corev1.ResourceLimitsCPU], use[corev1.ResourceLimitsMemory] = limits.Cpu().MilliValue(), limits.Memory().MilliValue()
	return use
}
