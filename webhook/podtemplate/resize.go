// SPDX-License-Identifier: Apache-2.0

package podtemplate

import (
	"fmt"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
)

// CheckResize says why a pod with these annotations cannot be resized as one of them asks. It is nil
// where the pod itself is no obstacle.
func CheckResize(annotations map[string]string) *field.Error {
	at, text := annotationsPath.Key(api.AnnotationResize), annotations[api.AnnotationResize]
	to, err := api.ParseResize(text)
	if err != nil {
		return field.Invalid(at, field.OmitValueType{}, err.Error())
	}
	request := podrequest.OfAnnotations(annotations)
	if err := to.Known(request.Shares); err != nil {
		return field.Invalid(at, text, err.Error())
	}
	placed, err := request.Placement()
	if err != nil {
		return field.Forbidden(at, fmt.Sprintf("the pod has no place yet: wait until it runs, or create it with annotation %s", api.AnnotationStart))
	}
	for name := range to {
		if mode := placed.Containers[name].Mode; mode != api.ModeLimiter {
			return field.Forbidden(at, fmt.Sprintf("container %s is in mode %s, which can't change what runs: create the pod again with annotation %s: %s", name, mode, api.AnnotationMode, api.ModeLimiter))
		}
	}
	return nil
}

// burstable refuses a pod of which no quota can be over-committed.
func (f *findings) burstable() {
	if f.QoS != api.QoSBurstable || len(f.errs) > 0 {
		return
	}
	at := annotationsPath.Key(api.AnnotationQoS)
	switch {
	case !f.hasQuota():
		f.errs = append(f.errs, field.Invalid(at, f.QoS, fmt.Sprintf("no container has a quota: remove it, or ask for %s", api.ResourceCore)))
	case f.Mode != api.ModeAuto && f.Mode != api.ModeLimiter:
		f.errs = append(f.errs, field.Forbidden(at, fmt.Sprintf("containers in mode %s can't use more than their quota: use mode %s, or remove it", f.Mode, api.ModeLimiter)))
	}
}

// start refuses amounts to begin with that the pod can't have.
func (f *findings) start() {
	at := annotationsPath.Key(api.AnnotationStart)
	if len(f.Start) == 0 || len(f.errs) > 0 {
		return
	}
	if err := f.Start.Known(f.Shares); err != nil {
		f.errs = append(f.errs, field.Invalid(at, field.OmitValueType{}, err.Error()))
	}
	if f.Mode != api.ModeAuto && f.Mode != api.ModeLimiter {
		f.errs = append(f.errs, field.Forbidden(at, fmt.Sprintf("containers in mode %s can't begin with less than they ask for: use mode %s, or remove it", f.Mode, api.ModeLimiter)))
	}
}
