// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	corev1 "k8s.io/api/core/v1"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// nvidia is NVIDIA's device plugin where it shares GPUs: each is advertised as a
// number of replicas, and a replica is an equal part that nobody keeps to it, or
// that MPS does.
type nvidia struct {
	replicas api.Percent
}

const nvidiaShared corev1.ResourceName = "nvidia.com/gpu.shared"

func (nvidia) Words() Words {
	return Words{Name: "nvidia", Trace: "gpu", Resources: []corev1.ResourceName{nvidiaShared}}
}

func (d nvidia) Asks(_ *slim.Pod, c *slim.Container) bool {
	return asksAny(c.Resources, d.Words().Resources)
}

// Share: a replica has its part of the memory, as under MPS, and no quota of
// compute, as with time-slicing.
func (d nvidia) Share(_ *Reading, a *Asking) api.Share {
	gpus := a.gpus(nvidiaShared)
	if d.replicas == 0 {
		a.refuse(nvidiaShared, "how large a replica is only NVIDIA's device plugin was told: "+
			"the operator says it to Vernier with --nvidia-replicas (dialects.nvidiaReplicas in the chart)")
		return api.Share{}
	}
	if gpus > 1 {
		a.warn(nvidiaShared, "%d replicas are on %d GPUs, one on each", gpus, gpus)
	}
	return api.Share{GPUs: gpus, MemPercent: api.WholeGPU / d.replicas}
}

func (nvidia) Pod(*Reading) {}
