// SPDX-License-Identifier: Apache-2.0

// Package handler owns the admission of pods: it puts together what the other
// packages of the webhook find and answers with a patch or a refusal.
//
// It has no side effects, so a dry run is like any other request, and it never
// asks the API server anything: an answer costs microseconds.
package handler

import (
	"context"
	"fmt"
	"net/http"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/fleet"
)

// Path at which the handler is served.
const Path = "/mutate-pods"

// Rules are what an operator sets. The zero value is the chart's default.
type Rules struct {
	// Dialects of other systems that pods may be written in.
	Dialects dialect.Set
	// Minimum of a share.
	Minimum demand.Minimum
	// ComputeShares are what namespaces give to containers that ask for memory only.
	ComputeShares demand.ComputeShares
	// AllowedHostPaths are the only folders of a node that pods with shares may mount;
	// empty is all folders that do not open the node.
	AllowedHostPaths []string
}

// Handler admits pods at creation.
type Handler struct {
	fleet *fleet.Fleet
	rules Rules
	// traces are the texts of which one stands in every pod that concerns us.
	traces [][]byte
}

// New makes a handler. The fleet is what warnings compare a share with.
func New(known *fleet.Fleet, rules Rules) *Handler {
	h := &Handler{fleet: known, rules: rules, traces: [][]byte{[]byte(api.Prefix)}}
	for _, trace := range rules.Dialects.Traces() {
		h.traces = append(h.traces, []byte(trace))
	}
	return h
}

// Handle implements admission.Handler.
func (h *Handler) Handle(_ context.Context, req admission.Request) admission.Response {
	verdict, err := h.Review(req.Namespace, req.Object.Raw)
	switch {
	case err != nil:
		return admission.Errored(http.StatusBadRequest, err)
	case len(verdict.Errors) > 0:
		return refused(verdict)
	}
	return admission.Patched("", verdict.Patch...).WithWarnings(verdict.Warnings...)
}

// maxErrors bounds the errors of one answer: a pod of any size gets one that a person
// can read.
const maxErrors = 32

// refused answers as the API server itself does for an invalid pod, with one
// cause per field.
func refused(verdict Verdict) admission.Response {
	errs := verdict.Errors
	if len(errs) > maxErrors {
		rest := fmt.Sprintf("%d more errors: correct these, then create the pod again to see them", len(errs)-maxErrors)
		errs = append(errs[:maxErrors:maxErrors], field.Forbidden(specPath, rest))
	}
	status := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, verdict.Name, errs).Status()
	response := admission.Denied("")
	response.Result = &status
	return response.WithWarnings(verdict.Warnings...)
}
