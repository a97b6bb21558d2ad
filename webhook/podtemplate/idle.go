// SPDX-License-Identifier: Apache-2.0

package podtemplate

import (
	"fmt"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/slim"
)

// onIdle reviews a pod with an idle slice. There is one container with a slice, held by the limiter, and
// nothing that is promised.
func (f *findings) onIdle(annotations map[string]string) {
	if !podrequest.OfIdle(f.Shares) {
		return
	}
	forbid := func(key, why string) {
		f.errs = append(f.errs, field.Forbidden(annotationsPath.Key(key), why))
	}
	if len(f.Shares) > 1 {
		f.errs = append(f.errs, field.Invalid(specPath.Child("containers"), len(f.Shares), fmt.Sprintf(
			"a pod with an idle slice has one container that asks for a GPU: remove %s, or make a pod of each container", api.ResourceIdleCore)))
	}
	if f.Mode != api.ModeAuto && f.Mode != api.ModeLimiter {
		forbid(api.AnnotationMode, fmt.Sprintf("an idle slice is held in mode %s: use that, or remove the annotation", api.ModeLimiter))
	}
	if f.QoS != api.QoSOpportunistic && annotations[api.AnnotationQoS] != "" {
		forbid(api.AnnotationQoS, fmt.Sprintf("a pod with an idle slice is %s: write that, or remove the annotation", api.QoSOpportunistic))
	}
	if len(f.Start) > 0 {
		forbid(api.AnnotationStart, "an idle slice is not resized: remove it, or ask for less")
	}
}

// hasController refuses a pod with an idle slice that nothing makes again. A template has no owner yet.
func hasController(pod *slim.Pod, asked *podrequest.Request) *field.Error {
	if !asked.Idle() || slices.ContainsFunc(pod.Metadata.OwnerReferences, func(r metav1.OwnerReference) bool { return ptr.Deref(r.Controller, false) }) {
		return nil
	}
	return field.Required(field.NewPath("metadata", "ownerReferences"),
		"a pod with an idle slice is evicted when others are granted its memory; have a controller make it, such as a Job")
}
