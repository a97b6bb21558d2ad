// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	corev1 "k8s.io/api/core/v1"

	api "vernier.dev/vernier/api/v1alpha1"
)

// nvidia is NVIDIA's device plugin where it shares GPUs: each is advertised as a
// number of replicas, and a replica is an equal part that nobody keeps to it, or
// that MPS does.
type nvidia struct {
	replicas api.Percent
	// timeSlicing: nvidia.com/gpu is a replica, too, as the plugin calls it by default.
	timeSlicing bool
}

const nvidiaShared corev1.ResourceName = "nvidia.com/gpu.shared"

func (d nvidia) Words() Words {
	w := Words{Name: "nvidia", Trace: "gpu", Resources: []corev1.ResourceName{nvidiaShared}}
	if d.timeSlicing {
		w.Resources = append(w.Resources, nvidiaGPU)
	}
	return w
}

// Share: a replica has its part of the memory, as under MPS, and no quota of
// compute, as with time-slicing.
func (d nvidia) Share(_ *Reading, a *Asking) api.Share {
	name := nvidiaShared
	if d.timeSlicing && asksAny(a.Resources, nvidiaGPU) {
		if name = nvidiaGPU; asksAny(a.Resources, nvidiaShared) {
			a.refuse(name, string(nvidiaShared)+" is asked for as well: keep the one or the other")
			return api.Share{}
		}
	}
	gpus := a.gpus(name)
	if d.replicas == 0 {
		a.refuse(name, "only the configuration of NVIDIA's device plugin has the size of a replica: "+
			"the operator sets it for Vernier with --nvidia-replicas (dialects.nvidiaReplicas in the chart)")
		return api.Share{}
	}
	if gpus > 1 {
		a.warn(name, "%d replicas are on %d GPUs, one on each", gpus, gpus)
	}
	return api.Share{GPUs: gpus, MemPercent: api.WholeGPU / d.replicas}
}

func (nvidia) Pod(*Reading) {}
