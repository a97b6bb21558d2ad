// SPDX-License-Identifier: Apache-2.0

package view

import (
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// NamespaceUse is what the pods of a namespace have of a resource, and what its quota leaves.
type NamespaceUse struct {
	// Resource is Vernier's resource, without the prefix of ResourceQuotas.
	Resource corev1.ResourceName `json:"resource"`
	// Granted is what slices have: percent of a GPU's compute, or MiB. It is of those two only.
	Granted *int64 `json:"granted,omitempty"`
	// Quota is the ResourceQuota that leaves least, without scopes or as a row of its own for each
	// with some. It is empty where none bounds the resource.
	Quota string `json:"quota,omitempty"`
	// Counted of Hard are by that quota, which counts pods that wait too.
	Counted int64 `json:"counted,omitempty"`
	Hard    int64 `json:"hard,omitempty"`
	scoped  bool
	// limited: the quota is the limit of GPUs, which has a row of its own.
	limited bool
}

// gpuPercent is what a limit of GPUs bounds: compute, memory and slices, whichever leaves least.
const gpuPercent corev1.ResourceName = "GPU(%)"

// Left is what the quota leaves.
func (u *NamespaceUse) Left() int64 { return max(u.Hard-u.Counted, 0) }

// NamespaceUses has a row for the compute and one for the memory that the slices of one namespace
// have. Each other resource of Vernier's has one that a quota of the namespace bounds. A limit of GPUs
// has one row for all that it bounds.
func NamespaceUses(of []model.Slice, quotas []corev1.ResourceQuota) []NamespaceUse {
	var core, mem int64
	for i := range of {
		core += int64(of[i].Core - of[i].ReuseCore)
		mem += int64(of[i].Mem - of[i].ReuseMem)
	}
	uses := []NamespaceUse{{Resource: v1alpha1.ResourceCore, Granted: &core}, {Resource: v1alpha1.ResourceMemMiB, Granted: &mem}}
	var limit *NamespaceUse
	for i := range quotas {
		q := &quotas[i]
		if of := limitOf(q); of != nil {
			if limit == nil || of.Left() < limit.Left() {
				limit = of
			}
			continue
		}
		scoped := len(q.Spec.Scopes) > 0 || q.Spec.ScopeSelector != nil
		for key, hard := range q.Status.Hard {
			name, is := strings.CutPrefix(string(key), corev1.DefaultResourceRequestsPrefix)
			if !is || !strings.HasPrefix(name, v1alpha1.Prefix) {
				continue
			}
			used := q.Status.Used[key]
			u := NamespaceUse{Resource: corev1.ResourceName(name), Quota: q.Name, Counted: used.Value(), Hard: hard.Value(), scoped: scoped}
			at := slices.IndexFunc(uses, func(o NamespaceUse) bool { return o.Resource == u.Resource && !o.scoped })
			switch {
			case scoped || at < 0:
				uses = append(uses, u)
			case uses[at].Quota == "" || u.Left() < uses[at].Left() || u.Left() == uses[at].Left() && u.Quota < uses[at].Quota:
				u.Granted = uses[at].Granted
				uses[at] = u
			}
		}
	}
	slices.SortStableFunc(uses[2:], func(a, b NamespaceUse) int {
		return strings.Compare(string(a.Resource)+" "+a.Quota, string(b.Resource)+" "+b.Quota)
	})
	if limit == nil {
		return uses
	}
	for i := range uses[:2] {
		if uses[i].Quota == "" {
			uses[i].Quota, uses[i].limited = limit.Quota, true
		}
	}
	return slices.Insert(uses, 0, *limit)
}

// limitOf is the row of a limit of GPUs; nil of any other quota.
func limitOf(q *corev1.ResourceQuota) *NamespaceUse {
	of := func(list corev1.ResourceList, name corev1.ResourceName) int64 {
		n := list[corev1.DefaultResourceRequestsPrefix+name]
		return n.Value()
	}
	u := &NamespaceUse{Resource: gpuPercent, Quota: q.Name, Hard: of(q.Status.Hard, v1alpha1.ResourceCore)}
	if q.Labels[v1alpha1.LabelGPULimit] == "" || u.Hard == 0 {
		return nil
	}
	for _, name := range []corev1.ResourceName{v1alpha1.ResourceCore, v1alpha1.ResourceMemPercent, v1alpha1.ResourceMemMiB, v1alpha1.ResourceGPUs} {
		if hard := of(q.Status.Hard, name); hard > 0 {
			u.Counted = max(u.Counted, (of(q.Status.Used, name)*u.Hard+hard-1)/hard)
		}
	}
	return u
}

// NamespaceTable has a row for each.
func NamespaceTable(uses []NamespaceUse) Table {
	t := Table{header: []string{"RESOURCE", "GRANTED", "QUOTA", "COUNTED", "HARD", "LEFT"}}
	for i := range uses {
		u := &uses[i]
		granted, quota := "", []string{"none", "", "", ""}
		if u.Granted != nil {
			granted = strconv.FormatInt(*u.Granted, 10)
		}
		if u.limited {
			quota = []string{u.Quota, "", "", ""}
		} else if u.Quota != "" {
			quota = []string{u.Quota, strconv.FormatInt(u.Counted, 10), strconv.FormatInt(u.Hard, 10), strconv.FormatInt(u.Left(), 10)}
		}
		t.rows = append(t.rows, append([]string{string(u.Resource), granted}, quota...))
	}
	return t
}
