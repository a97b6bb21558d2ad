// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"vernier.dev/vernier/api/v1alpha1"
)

// account are the sums of the node's account, SliceUsage. Their bounds bound the series:
// v1alpha1.MaxUsageSumEntries namespaces of all models together.
type account struct {
	granted, grantedMemory, used, rest, restMemory *prometheus.Desc
}

// percentSeconds is how many of them are a GPU for a second.
const percentSeconds = 100

func newAccount(desc func(name, help string, labels ...string) *prometheus.Desc) account {
	const rest = "by state: free, unavailable (cordoned, unhealthy, or in MIG mode without a profile), unknown (the agent was away). With what is granted it adds up to all of the node's."
	return account{
		granted:       desc("node_granted_gpu_seconds_total", "Compute that the ledger granted to the namespace, 1 for a whole GPU for a second. Over restarts of the agent, as in its published account. Namespace * are those beyond 384.", "model", "namespace"),
		grantedMemory: desc("node_granted_gpu_memory_mib_seconds_total", "The same of memory, in MiB.", "model", "namespace"),
		used:          desc("node_used_gpu_seconds_total", "Device time that was measured in the namespace's slices with a compute quota and in its whole GPUs. Absent where nothing was measured.", "model", "namespace"),
		rest:          desc("node_ungranted_gpu_seconds_total", "Compute that no namespace was granted, "+rest, "model", "state"),
		restMemory:    desc("node_ungranted_gpu_memory_mib_seconds_total", "The same of memory, in MiB.", "model", "state"),
	}
}

func (a account) send(out chan<- prometheus.Metric, sums []v1alpha1.ModelUsage) {
	counter := func(d *prometheus.Desc, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, value, labels...)
	}
	for i := range sums {
		m := &sums[i]
		for _, e := range m.Granted {
			counter(a.granted, float64(e.Core)/percentSeconds, m.Model, e.Namespace)
			counter(a.grantedMemory, float64(e.Mem), m.Model, e.Namespace)
			if e.UsedMilliseconds != nil {
				counter(a.used, float64(*e.UsedMilliseconds)/1000, m.Model, e.Namespace)
			}
		}
		for state, t := range map[string]v1alpha1.DeviceTime{"free": m.Free, "unavailable": m.Unavailable, "unknown": m.Unknown} {
			counter(a.rest, float64(t.Core)/percentSeconds, m.Model, state)
			counter(a.restMemory, float64(t.Mem), m.Model, state)
		}
	}
}
