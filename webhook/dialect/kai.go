// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// kai is KAI Scheduler and Run:ai: annotations of the pod ask for a part of a GPU
// for one of its containers, or, newer, for each container by its name. Whole GPUs
// are nvidia.com/gpu.
type kai struct{}

const (
	kaiFraction  = "gpu-fraction"
	kaiMemory    = "gpu-memory"
	kaiDevices   = "gpu-fraction-num-devices"
	kaiContainer = "gpu-fraction-container-name"
	kaiCompute   = "gpu-sm-percentage"
	// Annotations for one container: the prefix, its name, and what.
	kaiOwn        = "nvidia.com/container."
	kaiOwnRequest = ".gpu-memory.request"
	kaiOwnLimit   = ".gpu-memory.limit"
	kaiOwnMode    = ".gpu-compute.mode"
	// Of the pod, in some releases.
	kaiPodMode = "kai.scheduler/gpu-compute-sharing-mode"
	// Of a group of pods: KAI's pod grouper writes the annotation.
	kaiGroup    = "pod-group-name"
	kaiSubgroup = "kai.scheduler/subgroup-name"
	// Run:ai's limits, beside the fraction or the memory that is guaranteed.
	runaiFractionLimit = "gpu-fraction-limit"
	runaiLimit         = "RUNAI_GPU_MEMORY_LIMIT"

	kaiQueueLost = "KAI's queue does not count it: use a ResourceQuota or Kueue"
	notLent      = "memory beyond what is guaranteed is not lent"
)

var kaiQueues = []string{"kai.scheduler/queue", "runai/queue"}

func (kai) Words() Words {
	return Words{
		Name: "kai", Trace: "gpu", Mark: api.DialectKAI,
		Resources: []corev1.ResourceName{nvidiaGPU}, AnnotationPrefixes: []string{kaiFraction, kaiMemory, kaiOwn},
		Schedulers: []string{"kai-scheduler", "runai-scheduler"},
	}
}

// Asks: nvidia.com/gpu is KAI's only in a pod that names its scheduler. A
// container that a translation has been over has limits of ours, and still the
// pod's annotations: it asks no more.
func (d kai) Asks(pod *slim.Pod, c *slim.Container) bool {
	if slices.Contains(d.Words().Schedulers, pod.Spec.SchedulerName) && asksAny(c.Resources, d.Words().Resources...) {
		return true
	}
	if pod.Metadata.Annotations[api.AnnotationDialect] != "" && podrequest.Asks(c.Resources) {
		return false
	}
	return d.forPod(pod, c) || d.own(pod, c)
}

// forPod reports whether the annotations for the pod as a whole are for this one:
// the container that they name, else the first.
func (kai) forPod(pod *slim.Pod, c *slim.Container) bool {
	have := pod.Metadata.Annotations
	if have[kaiFraction] == "" && have[kaiMemory] == "" {
		return false
	}
	if name := have[kaiContainer]; name != "" && hasContainer(pod, name) {
		return c.Name == name
	}
	return len(pod.Spec.Containers) > 0 && c.Name == pod.Spec.Containers[0].Name
}

func hasContainer(pod *slim.Pod, name string) bool {
	return pod.Any(func(c *slim.Container) bool { return c.Name == name })
}

// own reports whether the container has annotations of its own.
func (kai) own(pod *slim.Pod, c *slim.Container) bool {
	have := pod.Metadata.Annotations
	return have[kaiOwn+c.Name+kaiOwnRequest] != "" || have[kaiOwn+c.Name+kaiOwnLimit] != ""
}

func (d kai) Share(r *Reading, a *Asking) api.Share {
	whole := a.gpus(nvidiaGPU)
	forPod, own := d.forPod(r.Pod, a.Container), d.own(r.Pod, a.Container)
	switch {
	case whole > 0 && (forPod || own):
		a.refuse(nvidiaGPU, "the pod's annotations ask for a part of a GPU for this container: keep the one or the other")
		return api.Share{}
	case whole > 0:
		return api.Share{GPUs: whole, Core: api.WholeGPU, MemPercent: api.WholeGPU}
	}
	share := api.Share{GPUs: max(1, kaiAmount(r, kaiDevices, api.ParseDeviceCount)), Core: kaiAmount(r, kaiCompute, kaiPercent)}
	if own {
		share.MemMiB = d.ownMemory(r, a)
		return share
	}
	have := r.Pod.Metadata.Annotations
	if fraction := have[kaiFraction]; fraction != "" {
		share.MemPercent = kaiPortion(r, fraction)
	} else {
		share.MemMiB = kaiAmount(r, kaiMemory, kaiMiB)
	}
	return share
}

// ownMemory is what is guaranteed: the request, or the limit where there is none.
func (kai) ownMemory(r *Reading, a *Asking) api.MiB {
	own := kaiOwn + a.Name
	request, limit := kaiAmount(r, own+kaiOwnRequest, kaiBytes), kaiAmount(r, own+kaiOwnLimit, kaiBytes)
	if request > 0 && limit > request {
		r.ignore(own+kaiOwnLimit, "the request is what is guaranteed, and the limit as well")
	}
	return cmp.Or(request, limit)
}

// kaiAmount reads an annotation of the pod; 0 where it is not there, and where it is refused.
func kaiAmount[T ~int32 | ~int64](r *Reading, key string, parse func(string) (T, error)) T {
	text := r.Pod.Metadata.Annotations[key]
	if text == "" {
		return 0
	}
	amount, err := parse(text)
	if err != nil {
		r.refuse(field.Invalid(annotationsPath.Key(key), text, err.Error()))
		return 0
	}
	return amount
}

func kaiBytes(text string) (api.MiB, error) {
	q, err := resource.ParseQuantity(text)
	if err != nil || q.Value() < 1 || q.Value() > mostMiB<<20 {
		return 0, errors.New("must be an amount of memory, such as 8Gi")
	}
	return api.MiB((q.Value() + 1<<20 - 1) >> 20), nil
}

// kaiPortion is a fraction of a GPU's memory in percent, the nearest.
func kaiPortion(r *Reading, text string) api.Percent {
	at := annotationsPath.Key(kaiFraction)
	fraction, err := strconv.ParseFloat(text, 64)
	if err != nil || !(fraction > 0 && fraction <= 1) {
		r.refuse(field.Invalid(at, text, "must be a number above 0, 1 at most"))
		return 0
	}
	percent := max(1, math.Round(fraction*100))
	if math.Abs(percent-fraction*100) > 1e-6 {
		r.warn(at, "%s is given as %.0f %%: the smallest step is 1 %%; gpu-memory says it in MiB", text, percent)
	}
	return api.Percent(percent)
}

func kaiMiB(text string) (api.MiB, error) {
	mib, err := api.ParseMiB(text)
	if err == nil && mib > mostMiB {
		err = fmt.Errorf("%d MiB is more than any GPU has: write it in MiB, %d at most", mib, mostMiB)
	}
	return mib, err
}

// kaiPercent is a cap on compute; it is kept as a quota.
func kaiPercent(text string) (api.Percent, error) {
	percent, err := api.ParsePercent(text)
	if err == nil && percent > api.WholeGPU {
		err = fmt.Errorf("%d is more than all of a GPU: write 1 to %d percent", percent, api.WholeGPU)
	}
	return percent, err
}

func (d kai) Pod(r *Reading) {
	have := r.Pod.Metadata.Annotations
	if name := have[kaiContainer]; name != "" && !hasContainer(r.Pod, name) {
		r.refuse(field.NotFound(annotationsPath.Key(kaiContainer), name))
	}
	if have[kaiFraction] != "" && have[kaiMemory] != "" {
		r.ignore(kaiMemory, kaiFraction+" is set too, and counts")
	}
	for _, key := range r.keys(kaiFraction+".", kaiMemory+".", runaiFractionLimit, kaiGroup, "gpu-sm-cores", "mps", kaiOwn, "kai.scheduler/") {
		mode := key == kaiPodMode || strings.HasSuffix(key, kaiOwnMode)
		switch {
		case key == "mps" && have[key] != "true", strings.HasSuffix(key, kaiOwnRequest), strings.HasSuffix(key, kaiOwnLimit):
		case key == "mps", mode && have[key] == "sm-sharing":
			r.mode(key, string(api.ModeMPS))
		case mode && have[key] == "time-slicing":
		case key == "gpu-sm-cores":
			r.ignore(key, "how many SMs a GPU has is not known yet: ask for "+kaiCompute)
		case key == kaiGroup:
			r.ignore(key, oneByOne)
		case key == runaiFractionLimit, strings.HasSuffix(key, ".limit"):
			r.ignore(key, notLent)
		default:
			r.ignore(key, "Vernier has nothing like it")
		}
	}
	for i, v := range r.Pod.Spec.Volumes {
		if v.HostPath != nil && v.HostPath.Path == "/tmp/nvidia-mps" {
			r.warn(specPath.Child("volumes").Index(i).Child("hostPath"),
				"not honoured: it was the way to an MPS server that the operator runs: set %s mps", api.AnnotationMode)
		}
	}
	for c := range r.Pod.All() {
		for i, v := range c.Env {
			if v.Name == runaiLimit {
				r.warn(c.Path().Child("env").Index(i), "not honoured: "+notLent)
			}
		}
	}
	r.ignoreLabels(kaiQueueLost, kaiQueues...)
	r.ignoreLabels(oneByOne, kaiSubgroup)
}

// Object: KAI takes the queue of a group from the object that its pods are made from, too.
func (kai) Object(o *Object) {
	for _, key := range kaiQueues {
		if o.Metadata.Labels[key] != "" {
			o.lose(labelsPath.Key(key).String(), kaiQueueLost)
		}
	}
}
