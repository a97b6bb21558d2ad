// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"reflect"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	model "vernier.dev/vernier/allocator/state/view"
)

func quotaOf(name, of string, used, hard int64, scopes ...corev1.ResourceQuotaScope) corev1.ResourceQuota {
	list := func(n int64) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceName("requests." + of): *resource.NewQuantity(n, resource.DecimalSI)}
	}
	return corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Scopes: scopes},
		Status: corev1.ResourceQuotaStatus{Hard: list(hard), Used: list(used)}}
}

// What a namespace has, and of several quotas the one that leaves least.
func TestNamespaceUses(t *testing.T) {
	had := []model.Slice{{Core: 30, Mem: 100}, {Core: 30, Mem: 200, ReuseCore: 30, ReuseMem: 100}, {Core: 5, Mem: 1}}
	for name, tt := range map[string]struct {
		quotas []corev1.ResourceQuota
		want   [][]string
	}{
		"no quota": {nil, [][]string{{"vernier.dev/gpu-core", "35", "none", "", "", ""}, {"vernier.dev/gpu-mem-mib", "201", "none", "", "", ""}}},
		"some": {[]corev1.ResourceQuota{quotaOf("a", "vernier.dev/gpu-core", 40, 100), quotaOf("b", "vernier.dev/gpu", 3, 4), quotaOf("c", "nvidia.com/gpu", 1, 2)},
			[][]string{{"vernier.dev/gpu-core", "35", "a", "40", "100", "60"}, {"vernier.dev/gpu-mem-mib", "201", "none", "", "", ""}, {"vernier.dev/gpu", "", "b", "3", "4", "1"}}},
		"several of one": {[]corev1.ResourceQuota{quotaOf("a", "vernier.dev/gpu-core", 40, 100), quotaOf("b", "vernier.dev/gpu-core", 40, 50), quotaOf("c", "vernier.dev/gpu-core", 40, 80)},
			[][]string{{"vernier.dev/gpu-core", "35", "b", "40", "50", "10"}, {"vernier.dev/gpu-mem-mib", "201", "none", "", "", ""}}},
		"lowered below what is used": {[]corev1.ResourceQuota{quotaOf("a", "vernier.dev/gpu-mem-mib", 40, 10)},
			[][]string{{"vernier.dev/gpu-core", "35", "none", "", "", ""}, {"vernier.dev/gpu-mem-mib", "201", "a", "40", "10", "0"}}},
		"of some pods only": {[]corev1.ResourceQuota{quotaOf("a", "vernier.dev/gpu-core", 0, 10, corev1.ResourceQuotaScopeBestEffort), quotaOf("b", "vernier.dev/gpu-core", 40, 100)},
			[][]string{{"vernier.dev/gpu-core", "35", "b", "40", "100", "60"}, {"vernier.dev/gpu-mem-mib", "201", "none", "", "", ""}, {"vernier.dev/gpu-core", "", "a", "0", "10", "10"}}},
	} {
		if got := NamespaceTable(NamespaceUses(had, tt.quotas)).rows; !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %s\nwant %s", name, fmt.Sprint(got), fmt.Sprint(tt.want))
		}
	}
}
