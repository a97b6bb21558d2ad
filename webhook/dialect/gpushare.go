// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
)

// gpushare is Alibaba's: memory of one GPU, or in all of several GPUs, and
// compute that is shared as it comes.
type gpushare struct {
	// unit of aliyun.com/gpu-mem: GiB or MiB.
	unit string
}

const (
	aliyunMem   corev1.ResourceName = "aliyun.com/gpu-mem"
	aliyunCount corev1.ResourceName = "aliyun.com/gpu-count"
	aliyunCore  corev1.ResourceName = "aliyun.com/gpu-core.percentage"
)

func (d gpushare) Words() Words {
	mark := api.DialectGPUShareGiB
	if d.unit == "MiB" {
		mark = api.DialectGPUShareMiB
	}
	return Words{
		Name: "gpushare", Trace: "gpu", Mark: mark,
		Resources:  []corev1.ResourceName{aliyunMem, aliyunCount, aliyunCore},
		Schedulers: []string{"gpushare-scheduler"},
	}
}

func (d gpushare) Share(r *Reading, a *Asking) api.Share {
	if a.none(aliyunMem, aliyunCount, aliyunCore) {
		return api.Share{}
	}
	unit := api.MiB(1024)
	if d.unit == "MiB" {
		unit = 1
	}
	mem, core := a.mib(aliyunMem, unit), a.percent(aliyunCore, api.WholeGPU)
	gpus := d.count(r, a)
	if mem == 0 {
		if len(r.errs) == 0 {
			r.refuse(field.Required(a.Path().Child("resources", "limits").Key(string(aliyunMem)),
				"says how much memory; without it gpushare gives nothing: add it"))
		}
		return api.Share{}
	}
	if mem/unit%api.MiB(gpus) != 0 {
		a.refuse(aliyunMem, fmt.Sprintf("does not divide evenly over %d GPUs: ask for a multiple of %d", gpus, gpus))
		return api.Share{}
	}
	if core > 0 && gpus > 1 {
		a.refuse(aliyunCore, "is a part of one GPU, and the pod asks for several: remove the one or the other")
	}
	d.doubt(a, mem/api.MiB(gpus))
	return api.Share{GPUs: gpus, Core: core, MemMiB: mem / api.MiB(gpus)}
}

// doubt warns where the amount would make sense in the other unit only: nothing in a
// pod says which one its author had in mind, gpushare's own samples are in MiB.
func (d gpushare) doubt(a *Asking, each api.MiB) {
	switch {
	case d.unit != "MiB" && each > 1<<20:
		a.warn(aliyunMem, "is read in GiB, and no GPU has %d: where pods say it in MiB, the operator sets gpushareUnit (--gpushare-unit) to MiB", each/1024)
	case d.unit == "MiB" && each < 64:
		a.warn(aliyunMem, "is read in MiB, and a CUDA context alone takes more than %d. Where pods say it in GiB, the operator sets gpushareUnit (--gpushare-unit) to GiB", each)
	}
}

// count is the number of GPUs over which the memory is spread: a label of the pod
// in ACK, a resource in manifests that have one.
func (d gpushare) count(r *Reading, a *Asking) api.DeviceCount {
	if n := a.gpus(aliyunCount); n > 0 {
		return n
	}
	label := r.Pod.Metadata.Labels[string(aliyunCount)]
	if label == "" {
		return 1
	}
	n, err := api.ParseDeviceCount(label)
	if err != nil {
		r.refuse(field.Invalid(labelsPath.Key(string(aliyunCount)), label, err.Error()))
		return 1
	}
	return n
}

func (d gpushare) Pod(r *Reading) { r.together(d) }
