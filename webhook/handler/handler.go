// SPDX-License-Identifier: Apache-2.0

// Package handler owns the answers to admission requests: a patch or a refusal, by what
// podtemplate reads.
//
// It has no side effects, so a dry run is like any other request. It never
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

	"vernier.dev/vernier/webhook/podtemplate"
)

// Path at which Pods is served.
const Path = "/mutate-pods"

// Pods admits pods at creation.
func Pods(pods *podtemplate.Reader) admission.HandlerFunc {
	return func(_ context.Context, req admission.Request) admission.Response {
		read, err := pods.Read(req.Namespace, req.Object.Raw)
		switch {
		case err != nil:
			return admission.Errored(http.StatusBadRequest, err)
		case len(read.Errors) > 0:
			return refused(read)
		}
		return admission.Patched("", read.Patch...).WithWarnings(read.Warnings...)
	}
}

// maxErrors bounds the errors of one answer: a pod of any size gets one that a person
// can read.
const maxErrors = 32

// refused answers as the API server itself does for an invalid pod, with one
// cause per field.
func refused(read podtemplate.Reading) admission.Response {
	errs := read.Errors
	if len(errs) > maxErrors {
		rest := fmt.Sprintf("%d more errors: correct these, then create the pod again to see them", len(errs)-maxErrors)
		errs = append(errs[:maxErrors:maxErrors], field.Forbidden(field.NewPath("spec"), rest))
	}
	status := apierrors.NewInvalid(schema.GroupKind{Kind: "Pod"}, read.Name, errs).Status()
	response := admission.Denied("")
	response.Result = &status
	return response.WithWarnings(read.Warnings...)
}
