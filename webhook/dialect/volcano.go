// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	corev1 "k8s.io/api/core/v1"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// volcano is GPU sharing under Volcano: the vGPUs of its device plugin, and the
// older gpu-memory and gpu-number.
type volcano struct{}

const (
	volcanoCount   corev1.ResourceName = "volcano.sh/vgpu-number"
	volcanoMem     corev1.ResourceName = "volcano.sh/vgpu-memory"
	volcanoPercent corev1.ResourceName = "volcano.sh/vgpu-memory-percentage"
	volcanoCores   corev1.ResourceName = "volcano.sh/vgpu-cores"
	volcanoOldMem  corev1.ResourceName = "volcano.sh/gpu-memory"
	volcanoOldGPU  corev1.ResourceName = "volcano.sh/gpu-number"
)

func (volcano) Words() Words {
	return Words{
		Name: "volcano", Trace: "gpu", Mark: api.DialectVolcano,
		Resources:  []corev1.ResourceName{volcanoCount, volcanoMem, volcanoPercent, volcanoCores, volcanoOldMem, volcanoOldGPU},
		Schedulers: []string{"volcano"},
	}
}

func (d volcano) Asks(_ *slim.Pod, c *slim.Container) bool {
	return asksAny(c.Resources, d.Words().Resources)
}

func (d volcano) Share(_ *Reading, a *Asking) api.Share {
	vgpus := []corev1.ResourceName{volcanoCount, volcanoMem, volcanoPercent, volcanoCores}
	number, mem := a.gpus(volcanoOldGPU), a.mib(volcanoOldMem, 1)
	switch {
	case asksAny(a.Resources, vgpus):
		a.ignore(volcanoOldGPU, "the container asks for vGPUs, and these count")
		a.ignore(volcanoOldMem, "the container asks for vGPUs, and these count")
		return vgpu{count: volcanoCount, mem: volcanoMem, percent: volcanoPercent, cores: volcanoCores}.share(a)
	case number > 0:
		a.ignore(volcanoOldMem, "whole GPUs are asked for")
		return api.Share{GPUs: number, Core: api.WholeGPU, MemPercent: api.WholeGPU}
	default:
		return api.Share{GPUs: 1, MemMiB: mem}
	}
}

func (volcano) Pod(r *Reading) {
	have := r.Pod.Metadata.Annotations
	for _, key := range r.keys("volcano.sh/vgpu-", "nvidia.com/", "scheduling.k8s.io/group-name", "volcano.sh/queue-name") {
		value := have[key]
		switch key {
		case useType, noUseType:
			r.annotate(api.AnnotationGPUModel, models(have[useType], have[noUseType]), key)
		case "volcano.sh/vgpu-use-gpuuuid":
			r.annotate(api.AnnotationGPUUUID, uuids(value, ""), key)
		case "volcano.sh/vgpu-nouse-gpuuuid":
			if have["volcano.sh/vgpu-use-gpuuuid"] == "" {
				r.annotate(api.AnnotationGPUUUID, uuids("", value), key)
			}
		case "volcano.sh/vgpu-mode":
			vgpuMode(r, key, value)
		case "scheduling.k8s.io/group-name":
			r.ignore(key, "the pods of its group are placed one by one, not all or none")
		case "volcano.sh/queue-name":
			r.ignore(key, "Volcano's queue does not count it: use a ResourceQuota or Kueue")
		default:
			r.ignore(key, "Vernier has nothing like it")
		}
	}
}
