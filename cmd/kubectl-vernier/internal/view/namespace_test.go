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
	"vernier.dev/vernier/api/v1alpha1"
)

func quotaOf(name, of string, used, hard int64, scopes ...corev1.ResourceQuotaScope) corev1.ResourceQuota {
	list := func(n int64) corev1.ResourceList {
		return corev1.ResourceList{corev1.ResourceName("requests." + of): *resource.NewQuantity(n, resource.DecimalSI)}
	}
	return corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.ResourceQuotaSpec{Scopes: scopes},
		Status: corev1.ResourceQuotaStatus{Hard: list(hard), Used: list(used)}}
}

// limitOfGPUs is a limit of which so much is counted: percent, and MiB of a GPU with 16,384.
func limitOfGPUs(name string, percent, core, mem, mib int64) corev1.ResourceQuota {
	unit := MemoryPercent
	if mib > 0 {
		unit = MemoryMiB
	}
	hard, _, err := Limit(v1alpha1.Percent(percent), unit, []v1alpha1.SliceLedger{{Status: v1alpha1.SliceLedgerStatus{Devices: []v1alpha1.DeviceStatus{{Mem: 16384}}}}})
	if err != nil {
		panic(err)
	}
	used := corev1.ResourceList{}
	for of, n := range map[string]int64{"gpu-core": core, "gpu-mem": mem, "gpu-mem-mib": mib, "gpu": 1} {
		used[corev1.ResourceName("requests.vernier.dev/"+of)] = *resource.NewQuantity(n, resource.DecimalSI)
	}
	return corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{v1alpha1.LabelGPULimit: "2.5"}},
		Status: corev1.ResourceQuotaStatus{Hard: hard, Used: used}}
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
		"a limit of GPUs": {[]corev1.ResourceQuota{limitOfGPUs("vernier-gpus", 250, 35, 100, 0), quotaOf("b", "vernier.dev/gpu-core", 40, 100)},
			[][]string{{"GPU(%)", "", "vernier-gpus", "100", "250", "150"}, {"vernier.dev/gpu-core", "35", "b", "40", "100", "60"}, {"vernier.dev/gpu-mem-mib", "201", "vernier-gpus", "", "", ""}}},
		"a limit in MiB, and one that leaves more": {[]corev1.ResourceQuota{limitOfGPUs("more", 300, 0, 0, 0), limitOfGPUs("vernier-gpus", 250, 35, 0, 10240)},
			[][]string{{"GPU(%)", "", "vernier-gpus", "63", "250", "187"}, {"vernier.dev/gpu-core", "35", "vernier-gpus", "", "", ""}, {"vernier.dev/gpu-mem-mib", "201", "vernier-gpus", "", "", ""}}},
	} {
		if got := NamespaceTable(NamespaceUses(had, tt.quotas)).rows; !reflect.DeepEqual(got, tt.want) {
			t.Errorf("%s: %s\nwant %s", name, fmt.Sprint(got), fmt.Sprint(tt.want))
		}
	}
}
