// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
)

// volcano is GPU sharing under Volcano: the vGPUs of its device plugin, and the
// older gpu-memory and gpu-number.
type volcano struct{ vgpu }

const (
	volcanoCount   corev1.ResourceName = "volcano.sh/vgpu-number"
	volcanoMem     corev1.ResourceName = "volcano.sh/vgpu-memory"
	volcanoPercent corev1.ResourceName = "volcano.sh/vgpu-memory-percentage"
	volcanoCores   corev1.ResourceName = "volcano.sh/vgpu-cores"
	volcanoOldMem  corev1.ResourceName = "volcano.sh/gpu-memory"
	volcanoOldGPU  corev1.ResourceName = "volcano.sh/gpu-number"
)

// What Volcano reads of pods and of the objects that they are made from.
const (
	volcanoScheduling = "scheduling.volcano.sh/"
	volcanoQueue      = volcanoScheduling + "queue-name"
	volcanoMinMember  = volcanoScheduling + "group-min-member"
)

// volcanoLost says what becomes of a queue or of a group.
func volcanoLost(key string) string {
	if strings.HasSuffix(key, "queue-name") {
		return "Volcano's queue does not count it: use a ResourceQuota or Kueue"
	}
	return oneByOne
}

// taskMin says what counts in the place of a task's minAvailable.
const taskMin = "spec.minAvailable counts, of pods of any task"

func (d volcano) Words() Words {
	return Words{
		Name: "volcano", Trace: trace(d.names()), Mark: api.DialectVolcano,
		Resources:  append(d.names(), volcanoOldMem, volcanoOldGPU),
		Schedulers: []string{"volcano"},
	}
}

func (d volcano) Share(_ *Reading, a *Asking) api.Share {
	number, mem := a.gpus(volcanoOldGPU), a.mib(volcanoOldMem, 1)
	switch {
	case asksAny(a.Resources, d.names()...):
		a.ignore(volcanoOldGPU, "the container asks for vGPUs, and these count")
		a.ignore(volcanoOldMem, "the container asks for vGPUs, and these count")
		return d.share(a)
	case number > 0:
		a.ignore(volcanoOldMem, "whole GPUs are asked for")
		return api.Share{GPUs: number, Core: api.WholeGPU, MemPercent: api.WholeGPU}
	default:
		return api.Share{GPUs: 1, MemMiB: mem}
	}
}

func (volcano) Pod(r *Reading) {
	have := r.Pod.Metadata.Annotations
	for _, key := range r.keys("volcano.sh/vgpu-", "nvidia.com/", podrequest.AnnotationVolcanoGroup, "volcano.sh/queue-name", volcanoScheduling) {
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
		case podrequest.AnnotationVolcanoGroup:
			r.warn(annotationsPath.Key(key), "honoured while Volcano's PodGroups are installed; without them %s", oneByOne)
		case podrequest.VolcanoGate: // refused where it counts
		case "volcano.sh/queue-name", volcanoQueue, volcanoScheduling + "group-name", volcanoMinMember:
			r.ignore(key, volcanoLost(key))
		default:
			r.ignore(key, "Vernier has nothing like it")
		}
	}
}

// Object: a Job of Volcano's says for all of its pods which queue they count in. How many start together its
// PodGroup says, which Volcano makes before the pods. Other objects say it by annotations, from which its
// controller makes a group.
func (d volcano) Object(o *Object) {
	if o.Kind == "Job" && strings.HasPrefix(o.APIVersion, "batch.volcano.sh/") {
		// Volcano's own is what a Job has that names none, and what its tasks get.
		if name := cmp.Or(o.Spec.SchedulerName, d.Words().Schedulers[0]); slices.Contains(d.Words().Schedulers, name) {
			for i := range o.Spec.Tasks {
				if task := &o.Spec.Tasks[i]; !asks(d, &task.Template) {
					o.warnings = append(o.warnings, kept(specPath.Child("schedulerName"), name, fmt.Sprintf("task %s asks", cmp.Or(task.Name, strconv.Itoa(i)))))
				}
			}
		}
		if o.Spec.Queue != "" {
			o.lose("spec.queue", volcanoLost(volcanoQueue))
		}
		for i := range o.Spec.Tasks {
			if o.Spec.Tasks[i].MinAvailable != nil {
				o.lose(fmt.Sprintf("spec.tasks[%d].minAvailable", i), taskMin)
			}
		}
	}
	for _, key := range []string{podrequest.AnnotationVolcanoGroup, volcanoMinMember, volcanoQueue} {
		if o.Metadata.Annotations[key] != "" {
			o.lose(annotationsPath.Key(key).String(), volcanoLost(key))
		}
	}
}
