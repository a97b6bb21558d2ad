// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	corev1 "k8s.io/api/core/v1"

	api "vernier.dev/vernier/api/v1alpha1"
)

// gpuManager is Tencent's gpu-manager: a part of one card, or whole cards.
type gpuManager struct{}

const (
	tencentCore corev1.ResourceName = "tencent.com/vcuda-core"
	tencentMem  corev1.ResourceName = "tencent.com/vcuda-memory"
	// tencentBlock is what one vcuda-memory is.
	tencentBlock api.MiB = 256
)

func (gpuManager) Words() Words {
	return Words{
		Name: "gpu-manager", Trace: "vcuda",
		Resources:  []corev1.ResourceName{tencentCore, tencentMem},
		Schedulers: []string{"gpu-admission", "gpu-quota-admission"},
	}
}

// Share: 100 cores are one card and all of its memory, whatever is asked for.
func (gpuManager) Share(r *Reading, a *Asking) api.Share {
	if a.none(tencentCore, tencentMem) {
		return api.Share{}
	}
	core := a.percent(tencentCore, api.WholeGPU*api.MaxContainerDevices)
	mem := a.mib(tencentMem, tencentBlock)
	switch {
	case len(r.errs) > 0:
	case core >= api.WholeGPU && core%api.WholeGPU == 0:
		return api.Share{GPUs: core.GPUs(), Core: api.WholeGPU, MemPercent: api.WholeGPU}
	case core > api.WholeGPU:
		a.refuse(tencentCore, "more than one card is asked for by whole cards: use a multiple of 100")
	case core == 0 || mem == 0:
		name := tencentCore
		if mem == 0 {
			name = tencentMem
		}
		a.refuse(name, "a part of a card needs vcuda-core and vcuda-memory: add it")
	}
	return api.Share{GPUs: 1, Core: core, MemMiB: mem}
}

func (gpuManager) Pod(r *Reading) {
	for _, key := range r.keys("tencent.com/vcuda-") {
		switch key {
		case "tencent.com/vcuda-core-limit":
			r.ignore(key, "the quota is vcuda-core; "+api.AnnotationBurst+" idle lets containers use idle time beyond it")
		default:
			r.ignore(key, "Vernier has nothing like it")
		}
	}
}
