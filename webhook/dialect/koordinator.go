// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"cmp"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	api "vernier.dev/vernier/api/v1alpha1"
)

// koordinator is Koordinator's DeviceShare: totals, of one GPU or of whole ones,
// or spread over as many GPUs as gpu.shared says.
type koordinator struct{}

const (
	koordGPU    corev1.ResourceName = "koordinator.sh/gpu"
	koordShared corev1.ResourceName = "koordinator.sh/gpu.shared"
	koordCore   corev1.ResourceName = "koordinator.sh/gpu-core"
	koordMem    corev1.ResourceName = "koordinator.sh/gpu-memory"
	koordRatio  corev1.ResourceName = "koordinator.sh/gpu-memory-ratio"
)

func (koordinator) Words() Words {
	return Words{
		Name: "koordinator", Trace: "gpu",
		Resources:  []corev1.ResourceName{nvidiaGPU, koordGPU, koordShared, koordCore, koordMem, koordRatio},
		Schedulers: []string{"koord-scheduler"},
	}
}

const mostPercent = api.WholeGPU * api.MaxContainerDevices

func (d koordinator) Share(r *Reading, a *Asking) api.Share {
	whole, gpu := a.gpus(nvidiaGPU), a.percent(koordGPU, mostPercent)
	parts := totals{gpus: a.gpus(koordShared), core: a.percent(koordCore, mostPercent),
		ratio: a.percent(koordRatio, mostPercent), mem: a.bytes(koordMem)}
	switch {
	case len(r.errs) > 0:
		return api.Share{}
	case whole > 0 && gpu == 0 && parts == (totals{}):
		return api.Share{GPUs: whole, Core: api.WholeGPU, MemPercent: api.WholeGPU}
	case whole == 0 && gpu > 0 && parts == (totals{}):
		parts = totals{core: gpu, ratio: gpu}
		return parts.share(a, koordGPU, koordGPU)
	case whole > 0 || gpu > 0 || parts.mem > 0 && parts.ratio > 0 || parts.mem == 0 && parts.ratio == 0:
		for _, name := range d.Words().Resources {
			if asksAny(a.Resources, name) {
				a.refuse(name, "Koordinator takes nvidia.com/gpu alone, koordinator.sh/gpu alone, or gpu-memory or gpu-memory-ratio, "+
					"with gpu-core and gpu.shared or without: keep to one of these")
				break
			}
		}
		return api.Share{}
	}
	return parts.share(a, koordCore, koordRatio)
}

// totals of a container over its GPUs; 0 where it says none.
type totals struct {
	gpus        api.DeviceCount
	core, ratio api.Percent
	mem         api.MiB
}

// share spreads the totals; core and ratio are what they were asked for by.
func (t totals) share(a *Asking, core, ratio corev1.ResourceName) api.Share {
	asked := []struct {
		name    corev1.ResourceName
		percent api.Percent
	}{{core, t.core}, {ratio, t.ratio}}
	gpus := cmp.Or(t.gpus, max(t.core.GPUs(), t.ratio.GPUs()))
	n := api.Percent(gpus)
	for _, of := range asked {
		switch {
		case t.gpus == 0 && of.percent > api.WholeGPU && of.percent%api.WholeGPU != 0:
			a.refuse(of.name, "more than one GPU is asked for by whole GPUs, a multiple of 100, or with "+string(koordShared))
			return api.Share{}
		case of.percent%n != 0 || of.percent > api.WholeGPU*n:
			a.refuse(of.name, fmt.Sprintf("is not the same whole percent, 100 at most, of each of %d GPUs", gpus))
			return api.Share{}
		}
	}
	return api.Share{GPUs: gpus, Core: t.core / n, MemPercent: t.ratio / n,
		// Rounded up: never less than was asked for.
		MemMiB: (t.mem + api.MiB(gpus) - 1) / api.MiB(gpus)}
}

func (d koordinator) Pod(r *Reading) {
	r.together(d)
	for _, key := range r.keys("scheduling.koordinator.sh/", "gang.scheduling.koordinator.sh/") {
		switch key {
		case "scheduling.koordinator.sh/device-allocated":
			r.ignore(key, "Koordinator's scheduler wrote it for another pod: the GPUs are chosen again")
		case "gang.scheduling.koordinator.sh/name":
			r.ignore(key, oneByOne)
		case "scheduling.koordinator.sh/device-joint-allocate", "scheduling.koordinator.sh/device-allocate-hint",
			"scheduling.koordinator.sh/gpu-partition-spec":
			r.ignore(key, "choose GPUs with "+api.AnnotationGPUModel+", "+api.AnnotationGPUUUID+" and "+api.AnnotationTopology)
		default:
			r.ignore(key, "the pod does not come by Koordinator's scheduler")
		}
	}
	r.ignoreLabels("Koordinator's scheduler does not count it: use a ResourceQuota or Kueue", "quota.scheduling.koordinator.sh/name")
	r.ignoreLabels(oneByOne, "pod-group.scheduling.sigs.k8s.io")
}
