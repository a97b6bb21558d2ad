// SPDX-License-Identifier: Apache-2.0

// Package handler owns the admission of pods: it puts together what the other
// packages of the webhook find and answers with a patch or a refusal.
//
// It has no side effects, so a dry run is like any other request, and it never
// asks the API server anything: an answer costs microseconds.
package handler

import (
	"context"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/fleet"
)

// Path at which the handler is served.
const Path = "/mutate-pods"

// Handler admits pods at creation.
type Handler struct {
	fleet    *fleet.Fleet
	dialects dialect.Set
	// traces are the texts of which one stands in every pod that concerns us.
	traces [][]byte
}

// New makes a handler. The fleet is what warnings compare a share with; pods
// written in one of the dialects are translated.
func New(known *fleet.Fleet, dialects dialect.Set) *Handler {
	h := &Handler{fleet: known, dialects: dialects, traces: [][]byte{[]byte(api.Prefix)}}
	for _, trace := range dialects.Traces() {
		h.traces = append(h.traces, []byte(trace))
	}
	return h
}

// Handle implements admission.Handler.
func (h *Handler) Handle(_ context.Context, req admission.Request) admission.Response {
	verdict, err := h.Review(req.Object.Raw)
	switch {
	case err != nil:
		return admission.Errored(http.StatusBadRequest, err)
	case len(verdict.Errors) > 0:
		return refused(verdict)
	}
	return admission.Patched("", verdict.Patch...).WithWarnings(verdict.Warnings...)
}

// refused answers as the API server itself does for an invalid pod, with one
// cause per field.
func refused(verdict Verdict) admission.Response {
	status := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, verdict.Name, verdict.Errors).Status()
	response := admission.Denied("")
	response.Result = &status
	return response.WithWarnings(verdict.Warnings...)
}
