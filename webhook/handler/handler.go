// SPDX-License-Identifier: Apache-2.0

// Package handler owns the answers to admission requests: a patch or a refusal, by what
// podtemplate reads.
//
// It has no side effects. A dry run is answered whether there is room now, beside what any other
// request is. It never asks the API server anything: an answer costs microseconds, and that of a
// dry run what fleet.Room says.
package handler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"vernier.dev/vernier/webhook/podtemplate"
	"vernier.dev/vernier/webhook/slim"
)

// Path at which Pods is served.
const Path = "/mutate-pods"

// Pods admits pods at creation.
func Pods(pods *podtemplate.Reader) admission.HandlerFunc {
	return func(_ context.Context, req admission.Request) admission.Response {
		read, err := pods.Read(req.Namespace, req.Object.Raw)
		if err != nil {
			return admission.Errored(http.StatusBadRequest, err)
		}
		if req.DryRun != nil && *req.DryRun {
			read.Warnings = append(read.Warnings, pods.Room(&read)...)
		}
		if len(read.Errors) > 0 {
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

// ResizesPath at which Resizes is served.
const ResizesPath = "/validate-resizes"

// Resizes refuses documents of the resize annotation that can't be read, or that ask for more than the pod
// does. The allocator says whether devices have room for them.
func Resizes() admission.HandlerFunc {
	return func(_ context.Context, req admission.Request) admission.Response {
		pod, err := slim.Decode(req.Object.Raw)
		if err != nil || pod.Metadata == nil {
			return admission.Errored(http.StatusBadRequest, cmp.Or(err, errors.New("the object has no metadata: it is not a pod")))
		}
		if err := podtemplate.CheckResize(pod.Metadata.Annotations); err != nil {
			return refused(podtemplate.Reading{Name: pod.Metadata.Name, Errors: field.ErrorList{err}})
		}
		return admission.Allowed("")
	}
}

// WorkloadsPath at which Workloads is served.
const WorkloadsPath = "/warn-workloads"

// Workloads warns at the creation and the update of workloads. It refuses none: the pods are
// refused, if nobody corrects the template.
func Workloads(pods *podtemplate.Reader) admission.HandlerFunc {
	return func(_ context.Context, req admission.Request) admission.Response {
		// What cannot be read is no workload: that is the API server's to say.
		warnings, _ := pods.Workload(req.Namespace, req.Object.Raw)
		return admission.Allowed("").WithWarnings(bounded(warnings)...)
	}
}

// The API server cuts warnings to 256 characters each where they have more than 4,096 in all.
const (
	maxWarnings      = 16
	maxWarningBytes  = 1 << 10
	maxWarningsBytes = 4000
)

// bounded keeps as many warnings as the API server passes on uncut.
func bounded(warnings []string) []string {
	total := 0
	for i, text := range warnings {
		if len(text) > maxWarningBytes {
			text = strings.ToValidUTF8(text[:maxWarningBytes-len("…")], "") + "…"
			warnings[i] = text
		}
		if total += len(text); i == maxWarnings || total > maxWarningsBytes {
			return append(warnings[:i], fmt.Sprintf("%d more warnings: kubectl vernier explain -f FILE shows all", len(warnings)-i))
		}
	}
	return warnings
}
