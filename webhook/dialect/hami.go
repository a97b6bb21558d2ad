// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// hami is Project HAMi: nvidia.com/gpu is a number of vGPUs, and what they have is
// said for each.
type hami struct {
	vgpu
	priority corev1.ResourceName
}

const (
	nvidiaGPU    corev1.ResourceName = "nvidia.com/gpu"
	hamiMem      corev1.ResourceName = "nvidia.com/gpumem"
	hamiPercent  corev1.ResourceName = "nvidia.com/gpumem-percentage"
	hamiCores    corev1.ResourceName = "nvidia.com/gpucores"
	hamiPriority corev1.ResourceName = "nvidia.com/priority"
)

// Annotations of HAMi; Volcano understands the first two as well.
const (
	useType   = "nvidia.com/use-gputype"
	noUseType = "nvidia.com/nouse-gputype"
	hamiUUID  = "nvidia.com/use-gpuuuid"
	hamiNot   = "nvidia.com/nouse-gpuuuid"
)

func (d hami) Words() Words {
	return Words{
		Name: "hami", Trace: trace(d.names()), Mark: api.DialectHAMi,
		Resources:  append(d.names(), d.priority),
		Schedulers: []string{"hami-scheduler"},
	}
}

// Asks: a priority alone asks for no GPU.
func (d hami) Asks(_ *slim.Pod, c *slim.Container) bool { return asksAny(c.Resources, d.names()...) }

func (d hami) Share(_ *Reading, a *Asking) api.Share {
	a.ignore(d.priority, "tasks on one GPU have the same priority, and each its own quota")
	return d.share(a)
}

func (hami) Pod(r *Reading) {
	have := r.Pod.Metadata.Annotations
	for _, key := range r.keys("nvidia.com/", "hami.io/") {
		value := have[key]
		switch key {
		case useType, noUseType:
			r.annotate(api.AnnotationGPUModel, models(have[useType], have[noUseType]), key)
		case hamiUUID:
			r.annotate(api.AnnotationGPUUUID, uuids(value, ""), key)
		case hamiNot:
			// A list of what to use makes HAMi forget what not to use.
			if have[hamiUUID] == "" {
				r.annotate(api.AnnotationGPUUUID, uuids("", value), key)
			}
		case "nvidia.com/numa-bind":
			if bind, err := strconv.ParseBool(value); err == nil && bind {
				r.annotate(api.AnnotationTopology, "numa", key)
			}
		case "nvidia.com/vgpu-mode":
			vgpuMode(r, key, value)
		case "hami.io/gpu-scheduler-policy":
			gpuPolicy(r, key, value)
		case "hami.io/node-scheduler-policy":
			if value != "binpack" {
				r.ignore(key, "nodes are filled one after the other; "+api.AnnotationPolicy+" spread chooses the emptiest GPU of all")
			}
		default:
			r.ignore(key, "Vernier has nothing like it")
		}
	}
}

// vgpuMode reads how a vGPU may be held. The limiter is what hami-core is, and what
// a share has at least.
func vgpuMode(r *Reading, key, value string) {
	for mode := range strings.SplitSeq(value, ",") {
		if strings.TrimSpace(mode) == "hami-core" {
			return
		}
	}
	r.mode(key, value)
}

func gpuPolicy(r *Reading, key, value string) {
	switch value {
	case "binpack":
		r.annotate(api.AnnotationPolicy, string(api.PolicyPack), key)
	case "spread":
		r.annotate(api.AnnotationPolicy, string(api.PolicySpread), key)
	case "topology-aware":
		r.annotate(api.AnnotationTopology, "nvlink", key)
	case "numa":
		r.annotate(api.AnnotationTopology, "numa", key)
	default:
		r.ignore(key, "it is none of binpack, spread, topology-aware and numa")
	}
}
