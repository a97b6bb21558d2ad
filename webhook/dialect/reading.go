// SPDX-License-Identifier: Apache-2.0

package dialect

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// Reading collects what the translation of one pod brings to light.
type Reading struct {
	Pod *slim.Pod

	// asksBy are the resources of which any alone asks for a GPU.
	asksBy   []corev1.ResourceName
	set      map[string]string
	warnings []string
	errs     field.ErrorList
}

var (
	annotationsPath = field.NewPath("metadata", "annotations")
	labelsPath      = field.NewPath("metadata", "labels")
	specPath        = field.NewPath("spec")
)

func (r *Reading) warn(at *field.Path, format string, args ...any) {
	r.warnings = append(r.warnings, at.String()+": "+fmt.Sprintf(format, args...))
}

func (r *Reading) refuse(err *field.Error) { r.errs = append(r.errs, err) }

// annotate sets one of our annotations for what another key asks for. What the
// user has set with our own key stays.
func (r *Reading) annotate(key, value, from string) {
	if have, set := r.Pod.Metadata.Annotations[key]; set {
		if have != value {
			r.warn(annotationsPath.Key(from), "not honoured: %s is set too, and counts", key)
		}
		return
	}
	r.set[key] = value
}

// ignore warns about a key that is set and means nothing here.
func (r *Reading) ignore(key, why string) { r.warn(annotationsPath.Key(key), "not honoured: %s", why) }

// mode asks for a way to hold the shares, where this release has it.
func (r *Reading) mode(key, value string) {
	mode, err := api.ParseMode(value)
	if err != nil {
		r.ignore(key, "the share is held as "+api.AnnotationMode+" says: "+err.Error())
		return
	}
	r.annotate(api.AnnotationMode, string(mode), key)
}

// ignoreLabels warns about those labels that are set.
func (r *Reading) ignoreLabels(why string, keys ...string) {
	for _, key := range keys {
		if _, set := r.Pod.Metadata.Labels[key]; set {
			r.warn(labelsPath.Key(key), "not honoured: %s", why)
		}
	}
}

// together warns where several containers ask and the other system would have put
// them on the same GPUs.
func (r *Reading) together(d Dialect) {
	n := 0
	for i := range r.Pod.Spec.Containers {
		if asksIn(d, r.Pod, &r.Pod.Spec.Containers[i]) {
			n++
		}
	}
	if n > 1 {
		r.warn(specPath.Child("containers"), "not honoured: the %d containers that ask may get different GPUs of the node: set %s %s for one", n, api.AnnotationSameGPU, api.SameGPURequired)
	}
}

// amounts refuses amounts as annotations: without them the container would get more than its
// author has written. One that is a limit as well has no effect.
func (r *Reading) amounts() {
	for _, name := range r.asksBy {
		value, set := r.Pod.Metadata.Annotations[string(name)]
		if !set {
			continue
		}
		if r.Pod.Any(func(c *slim.Container) bool { return asksAny(c.Resources, name) }) {
			r.ignore(string(name), "it is an amount, and the container's limit counts")
			continue
		}
		r.refuse(field.Invalid(annotationsPath.Key(string(name)), value, "an amount has no effect as an annotation: write it as a limit of the container"))
	}
}

// keys are the pod's annotations that begin with one of the prefixes, sorted, but for amounts.
func (r *Reading) keys(prefixes ...string) []string {
	var found []string
	for key := range r.Pod.Metadata.Annotations {
		if slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(key, p) }) && !slices.Contains(r.asksBy, corev1.ResourceName(key)) {
			found = append(found, key)
		}
	}
	slices.Sort(found)
	return found
}

// Asking is a container that asks in a dialect. Its amounts are read once each:
// what is wrong with one is said when it is read.
type Asking struct {
	slim.Ref
	reading *Reading
}

// at is the field of an amount.
func (a *Asking) at(name corev1.ResourceName) *field.Path {
	list := "limits"
	if _, limited := a.Resources.Limits[name]; !limited {
		if _, requested := a.Resources.Requests[name]; requested {
			list = "requests"
		}
	}
	return a.Path().Child("resources", list).Key(string(name))
}

// amount reads a whole number of 1 to most; 0 where none is asked for, or where
// it is refused.
func (a *Asking) amount(name corev1.ResourceName, most int64, unit string) int64 {
	q := quantity(a.Resources, name)
	if q.IsZero() {
		return 0
	}
	n := q.Value()
	if q.CmpInt64(n) != 0 || n < 1 || n > most {
		a.refuse(name, fmt.Sprintf("must be a whole number of %s, from 1 to %d", unit, most))
		return 0
	}
	return n
}

func (a *Asking) percent(name corev1.ResourceName, most api.Percent) api.Percent {
	return api.Percent(a.amount(name, int64(most), "percent"))
}

func (a *Asking) gpus(name corev1.ResourceName) api.DeviceCount {
	return api.DeviceCount(a.amount(name, api.MaxContainerDevices, "GPUs"))
}

// mostMiB is more than any GPU will have for a while: a pod that asks for more has
// written bytes.
const mostMiB = 1 << 24

// mib reads an amount in units of so many MiB each.
func (a *Asking) mib(name corev1.ResourceName, unit api.MiB) api.MiB {
	text := "MiB, written without a suffix"
	if unit > 1 {
		text = fmt.Sprintf("%d MiB each, written without a suffix", unit)
	}
	return api.MiB(a.amount(name, int64(mostMiB/unit), text)) * unit
}

// bytes reads an amount of bytes, rounded up to a MiB.
func (a *Asking) bytes(name corev1.ResourceName) api.MiB {
	n := a.amount(name, mostMiB<<20, "bytes, such as 8Gi")
	return api.MiB((n + 1<<20 - 1) >> 20)
}

func (a *Asking) refuse(name corev1.ResourceName, why string) {
	q := quantity(a.Resources, name)
	a.reading.refuse(field.Invalid(a.at(name), q.String(), why))
}

func (a *Asking) warn(name corev1.ResourceName, format string, args ...any) {
	a.reading.warn(a.at(name), format, args...)
}

// ignore warns about an amount that is asked for and means nothing here.
func (a *Asking) ignore(name corev1.ResourceName, why string) {
	if asksAny(a.Resources, name) {
		a.warn(name, "removed and not honoured: %s", why)
	}
}

// none reports whether 0 is written of what the others are a part of: then they are nothing.
func (a *Asking) none(of corev1.ResourceName, others ...corev1.ResourceName) bool {
	_, limited := a.Resources.Limits[of]
	_, requested := a.Resources.Requests[of]
	q := quantity(a.Resources, of)
	if !limited && !requested || !q.IsZero() {
		return false
	}
	for _, name := range others {
		a.ignore(name, "0 "+string(of)+" are asked for")
	}
	return true
}

// quantity of a resource: its limit, else its request, else none.
func quantity(r corev1.ResourceRequirements, name corev1.ResourceName) resource.Quantity {
	if q, set := r.Limits[name]; set {
		return q
	}
	return r.Requests[name]
}
