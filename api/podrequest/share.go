// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"cmp"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/api/classes"
	api "vernier.dev/vernier/api/v1alpha1"
)

// Asks reports whether a container asks for more than none of any resource of ours.
func Asks(r corev1.ResourceRequirements) bool {
	return len(api.Asked(r.Limits))+len(api.Asked(r.Requests)) > 0
}

// ShareOf is what a container asks for per device. path is the field path of its
// resources, known are the classes, to be named to who has misspelt one; it may be nil. Where
// there are errors the share means nothing; each names the field and the remedy.
func ShareOf(r corev1.ResourceRequirements, known *classes.Set, path *field.Path) (api.Share, field.ErrorList) {
	limits := path.Child("limits")
	errs := names(r, known, path)
	want, bad := read(r.Limits, limits)
	errs = append(errs, bad...)
	if len(errs) == 0 {
		return want.share(limits)
	}
	// What is wrong with the other amounts is said as well. An amount that cannot be read is
	// 0 in here, and without the number of GPUs nothing is known of theirs.
	if !slices.ContainsFunc(bad, func(e *field.Error) bool {
		return e.Field == limits.Key(string(api.ResourceGPUs)).String() || e.Field == limits.Key(string(api.ResourceCore)).String()
	}) && !want.none() {
		_, more := want.share(limits)
		errs = append(errs, more...)
	}
	return api.Share{}, errs
}

// FollowsCompute reports whether an earlier round of admission wrote the memory in the limits, as that of
// the compute, and the compute has changed since. Equal amounts that the author wrote look the same.
func FollowsCompute(limits corev1.ResourceList, before api.Share) bool {
	core, mem := limits[api.ResourceCore], limits[api.ResourceMemPercent]
	was := int64(before.Core) * int64(before.GPUs)
	return was > 0 && before.MemPercent == before.Core && mem.Value() == was && core.Value() != was
}

// PodLevel refuses our resources in a pod's own resources: a slice belongs to a
// container.
func PodLevel(r corev1.ResourceRequirements, path *field.Path) field.ErrorList {
	var errs field.ErrorList
	for _, name := range api.Asked(r.Limits) {
		errs = append(errs, podLevel(path.Child("limits"), name))
	}
	for _, name := range api.Asked(r.Requests) {
		errs = append(errs, podLevel(path.Child("requests"), name))
	}
	return errs
}

func podLevel(path *field.Path, name corev1.ResourceName) *field.Error {
	return field.Forbidden(path.Key(string(name)), "a share belongs to a container: move the line to the container that uses the GPU")
}

// totals are a container's amounts over all of its GPUs; 0 where it says none.
type totals struct {
	core, mem api.Percent
	mib       api.MiB
	gpus      api.DeviceCount
	// idle and idleMiB are those of an idle slice.
	idle    api.Percent
	idleMiB api.MiB
}

// none reports if there is nothing to spread.
func (w totals) none() bool { return w.core == 0 && w.mem == 0 && w.mib == 0 }

// onIdle is an idle slice, which has no amounts but its own.
func (w totals) onIdle(limits *field.Path) (api.Share, field.ErrorList) {
	var errs field.ErrorList
	require := func(set bool, name, other corev1.ResourceName) {
		if !set {
			errs = append(errs, field.Required(limits.Key(string(name)), fmt.Sprintf("%s asks for an idle slice: add how much of the other it has", other)))
		}
	}
	require(w.idle > 0, api.ResourceIdleCore, api.ResourceIdleMemMiB)
	require(w.idleMiB > 0, api.ResourceIdleMemMiB, api.ResourceIdleCore)
	for name, set := range map[corev1.ResourceName]bool{
		api.ResourceCore: w.core > 0, api.ResourceMemPercent: w.mem > 0, api.ResourceMemMiB: w.mib > 0, api.ResourceGPUs: w.gpus > 0,
	} {
		if set {
			errs = append(errs, field.Forbidden(limits.Key(string(name)), "an idle slice has nothing that is promised, and is of one GPU: remove it, or the idle resources"))
		}
	}
	slices.SortFunc(errs, func(a, b *field.Error) int { return cmp.Compare(a.Field, b.Field) })
	if w.idle > api.WholeGPU {
		errs = append(errs, field.Invalid(limits.Key(string(api.ResourceIdleCore)), w.idle, "an idle slice is of one GPU: ask for 100 or less"))
	}
	if w.idleMiB > mostMiB {
		errs = append(errs, tooMuch(limits.Key(string(api.ResourceIdleMemMiB)), w.idleMiB))
	}
	return api.Share{GPUs: 1, MemMiB: w.idleMiB, Idle: w.idle}, errs
}

// share spreads the totals evenly over the GPUs.
func (w totals) share(limits *field.Path) (api.Share, field.ErrorList) {
	if w.idle > 0 || w.idleMiB > 0 {
		return w.onIdle(limits)
	}
	if w.mem > 0 && w.mib > 0 {
		return api.Share{}, field.ErrorList{field.Forbidden(limits.Key(string(api.ResourceMemMiB)),
			fmt.Sprintf("%s already says how much memory: keep one of the two", api.ResourceMemPercent))}
	}
	if w.none() {
		return api.Share{}, field.ErrorList{field.Required(limits.Key(string(api.ResourceCore)),
			fmt.Sprintf("%s only says over how many GPUs a share is spread: add %s, %s or %s",
				api.ResourceGPUs, api.ResourceCore, api.ResourceMemPercent, api.ResourceMemMiB))}
	}
	gpus := cmp.Or(w.gpus, w.core.GPUs())
	if errs := w.fits(limits, gpus); len(errs) > 0 {
		return api.Share{}, errs
	}
	var errs field.ErrorList
	share := api.Share{GPUs: gpus}
	var err error
	if share.Core, err = w.core.Split(gpus); err != nil {
		bad := uneven(limits, api.ResourceCore, int64(w.core), gpus)
		if w.gpus == 0 {
			// Where the number of GPUs comes from is not in the manifest.
			bad.Detail = fmt.Sprintf("more than %d is spread over several GPUs, and this does not divide evenly over %d. Ask for %s, or for %d or less of one GPU",
				api.WholeGPU, gpus, nearest(api.ResourceCore, int64(w.core), gpus), api.WholeGPU)
		}
		errs = append(errs, bad)
	}
	if share.MemPercent, err = w.mem.Split(gpus); err != nil {
		errs = append(errs, uneven(limits, api.ResourceMemPercent, int64(w.mem), gpus))
	}
	if share.MemMiB, err = w.mib.Split(gpus); err != nil {
		errs = append(errs, uneven(limits, api.ResourceMemMiB, int64(w.mib), gpus))
	}
	if w.mem == 0 && w.mib == 0 {
		share.MemPercent = share.Core
	}
	return share, errs
}

// fits refuses more than 100 percent of a device.
func (w totals) fits(limits *field.Path, gpus api.DeviceCount) field.ErrorList {
	var errs field.ErrorList
	most := api.WholeGPU * api.Percent(gpus)
	if w.core > most {
		errs = append(errs, field.Invalid(limits.Key(string(api.ResourceGPUs)), gpus, fmt.Sprintf(
			"%s %d needs at least %d GPUs: raise this to %d, or ask for %s %d or less",
			api.ResourceCore, w.core, w.core.GPUs(), w.core.GPUs(), api.ResourceCore, most)))
	}
	if w.mem > most {
		errs = append(errs, field.Invalid(limits.Key(string(api.ResourceMemPercent)), w.mem, fmt.Sprintf(
			"is more than 100 percent of each of its %d GPUs: ask for %d or less, or set %s to %d",
			gpus, most, api.ResourceGPUs, w.mem.GPUs())))
	}
	if w.mib > mostMiB*api.MiB(gpus) {
		errs = append(errs, tooMuch(limits.Key(string(api.ResourceMemMiB)), w.mib))
	}
	return errs
}

func tooMuch(at *field.Path, mib api.MiB) *field.Error {
	return field.Invalid(at, mib, fmt.Sprintf("is more than any GPU has: this is MiB, for so many bytes write %d", mibOf(int64(mib))))
}

// mostMiB is 64 TiB: who asks for more of a GPU means bytes.
const mostMiB api.MiB = 64 << 20

// uneven names the nearest totals that divide evenly.
func uneven(limits *field.Path, name corev1.ResourceName, total int64, gpus api.DeviceCount) *field.Error {
	return field.Invalid(limits.Key(string(name)), total,
		fmt.Sprintf("does not divide evenly over %d GPUs: ask for %s", gpus, nearest(name, total, gpus)))
}

func nearest(name corev1.ResourceName, total int64, gpus api.DeviceCount) string {
	n := int64(gpus)
	below := total / n * n
	above := below + n
	switch {
	case below == 0:
		return fmt.Sprint(above)
	case name != api.ResourceMemMiB && above > n*int64(api.WholeGPU):
		return fmt.Sprint(below)
	}
	return fmt.Sprintf("%d or %d", below, above)
}
