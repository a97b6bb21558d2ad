// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
)

var (
	freeableGPUs = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vernier_advice_freeable_gpus",
		Help: "Compute that running slices hold above what is advised, in whole GPUs. Advice of low confidence does not count. 0 at a standby.",
	})
	freeableMemory = prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vernier_advice_freeable_memory_bytes",
		Help: "The same of memory.",
	})
)

func init() { metrics.Registry.MustRegister(freeableGPUs, freeableMemory) }
