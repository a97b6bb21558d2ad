// SPDX-License-Identifier: Apache-2.0

// Package refused counts the node agent's writes that the API server refuses. A refused write is
// tried again, every 10 s in the end; the log has the API server's words.
package refused

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	"vernier.dev/vernier/api/refusal"
)

// The writes.
const (
	LedgerStatus = "ledger_status"
	Capacity     = "capacity"
	Usage        = "usage"
)

// Writes are how many were refused, by write.
var Writes = prometheus.NewCounterVec(prometheus.CounterOpts{
	Name: "vernier_node_refused_writes_total",
	Help: "Writes that the API server refused, as by an admission policy or a webhook that is away. By write: " + LedgerStatus + " (the ledger or its status), " + Capacity + " (the node's), " + Usage + " (the node's account).",
}, []string{"write"})

func init() {
	for _, write := range []string{LedgerStatus, Capacity, Usage} {
		Writes.WithLabelValues(write) // a rate needs a series from the beginning
	}
	metrics.Registry.MustRegister(Writes)
}

// Count counts the error of a write, if it is a refusal.
func Count(write string, err error) {
	if refusal.Is(err) {
		Writes.WithLabelValues(write).Inc()
	}
}
