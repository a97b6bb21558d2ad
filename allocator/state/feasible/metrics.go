// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

// refusedNodes names the plugin and not its reason, which may hold anything that is
// written in a taint or a selector.
var refusedNodes = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "vernier_allocator_refused_nodes_total",
	Help: "Nodes with the devices for a pod that the scheduler would have refused, by the plugin that is against it.",
}, []string{"plugin"})

func init() { metrics.Registry.MustRegister(refusedNodes) }
