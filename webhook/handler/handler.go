// SPDX-License-Identifier: Apache-2.0

// Package handler owns the admission of pods: it puts together what the other
// packages of the webhook find and answers with a patch or a refusal.
//
// It has no side effects, so a dry run is like any other request, and it never
// asks the API server anything: an answer costs microseconds.
package handler

import (
	"bytes"
	"cmp"
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/slim"
)

// Path at which the handler is served.
const Path = "/mutate-pods"

// Handler admits pods at creation.
type Handler struct {
	// Fleet is what warnings compare a share with.
	Fleet *fleet.Fleet
}

var prefix = []byte(api.Prefix)

// Handle implements admission.Handler.
func (h *Handler) Handle(_ context.Context, req admission.Request) admission.Response {
	// The API server's own encoder wrote the object: it does not escape any
	// character of our prefix. Match conditions keep most pods away; this makes
	// those that come all the same cost next to nothing.
	if !bytes.Contains(req.Object.Raw, prefix) {
		return admission.Allowed("")
	}
	pod, err := slim.Decode(req.Object.Raw)
	if err != nil || pod.Metadata == nil {
		return admission.Errored(http.StatusBadRequest, cmp.Or(err, errNoPod))
	}
	if !asks(pod) {
		if errs := leftovers(pod); len(errs) > 0 {
			return refused(pod, errs)
		}
		return admission.Allowed("")
	}
	r := review(pod, h.Fleet.Size())
	if len(r.errs) > 0 {
		return refused(pod, r.errs)
	}
	patch, err := r.patch(pod)
	if err != nil {
		return admission.Errored(http.StatusInternalServerError, err)
	}
	return admission.Patched("", patch...).WithWarnings(r.warnings...)
}

// refused answers as the API server itself does for an invalid pod, with one
// cause per field.
func refused(pod *slim.Pod, errs field.ErrorList) admission.Response {
	name := cmp.Or(pod.Metadata.Name, pod.Metadata.GenerateName)
	status := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, name, errs).Status()
	response := admission.Denied("")
	response.Result = &status
	return response
}
