// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
)

// What Prometheus adds up is what the account's sums have.
func TestAccount(t *testing.T) {
	from := sources(&attach.ContainerTable{}, &counting{})
	from.Account = func() []v1alpha1.ModelUsage {
		return []v1alpha1.ModelUsage{{
			Model: "H100", Free: v1alpha1.DeviceTime{Core: 50, Mem: 7}, Unknown: v1alpha1.DeviceTime{Core: 100, Mem: 9},
			Granted: []v1alpha1.NamespaceUsage{
				{Namespace: "*", DeviceTime: v1alpha1.DeviceTime{Core: 0, Mem: 3}},
				{Namespace: "team", DeviceTime: v1alpha1.DeviceTime{Core: 1250, Mem: 4}, UsedMilliseconds: ptr.To(int64(1500))},
			},
		}}
	}
	lines := ours(text(t, from))
	if expected := `vernier_node_granted_gpu_memory_mib_seconds_total{H100,*,} 3
vernier_node_granted_gpu_memory_mib_seconds_total{H100,team,} 4
vernier_node_granted_gpu_seconds_total{H100,*,} 0
vernier_node_granted_gpu_seconds_total{H100,team,} 12.5
vernier_node_ungranted_gpu_memory_mib_seconds_total{H100,free} 7
vernier_node_ungranted_gpu_memory_mib_seconds_total{H100,unavailable} 0
vernier_node_ungranted_gpu_memory_mib_seconds_total{H100,unknown} 9
vernier_node_ungranted_gpu_seconds_total{H100,free} 0.5
vernier_node_ungranted_gpu_seconds_total{H100,unavailable} 0
vernier_node_ungranted_gpu_seconds_total{H100,unknown} 1
vernier_node_used_gpu_seconds_total{H100,team,} 1.5`; lines != expected {
		t.Errorf("%s\nwant\n%s", lines, expected)
	}
}

// ours are the lines of the account.
func ours(text string) string {
	return strings.Join(slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return !strings.Contains(line, "_gpu_") }), "\n")
}
