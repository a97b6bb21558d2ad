// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"bytes"
	"cmp"
	"slices"

	"gomodules.xyz/jsonpatch/v2"
	"k8s.io/apimachinery/pkg/util/validation/field"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/guard"
	"vernier.dev/vernier/webhook/slim"
)

// Verdict is what admission makes of a pod. The zero value lets it through as it
// is.
type Verdict struct {
	// Name of the pod, or what its name will begin with.
	Name string
	// Dialect that it is written in; empty where it asks in our own words.
	Dialect string
	// Shares by container; empty where the pod asks for none.
	Shares map[string]api.Share
	// Warnings for its author.
	Warnings []string
	// Errors: the pod is refused where there is one.
	Errors field.ErrorList
	// Patch of the pod; empty where nothing is missing.
	Patch []jsonpatch.Operation
}

// Review returns what becomes of a pod, given as JSON, in a namespace. An error says that
// it is no pod.
func (h *Handler) Review(namespace string, raw []byte) (Verdict, error) {
	// The API server's own encoder wrote the object: it does not escape any
	// character of a trace. Match conditions keep most pods away; this makes
	// those that come all the same cost next to nothing.
	if !h.concerns(raw) {
		return Verdict{}, nil
	}
	pod, err := slim.Decode(raw)
	if err != nil || pod.Metadata == nil {
		return Verdict{}, cmp.Or(err, errNoPod)
	}
	v := Verdict{Name: cmp.Or(pod.Metadata.Name, pod.Metadata.GenerateName)}
	if !h.rules.Dialects.Asks(pod) && !asks(pod) {
		v.Warnings, v.Errors = leftovers(pod)
		return v, nil
	}
	if v.Errors = guard.Bounds(pod); len(v.Errors) > 0 {
		return v, nil
	}
	had := pod.Metadata.Annotations
	translated := h.rules.Dialects.Translate(pod)
	v.Dialect = translated.Dialect
	r := review(pod, namespace, h.fleet.Size(), h.rules)
	v.Shares = r.shares.Containers
	v.Warnings = append(translated.Warnings, r.warnings...)
	v.Errors = append(translated.Errors, r.errs...)
	if len(v.Errors) > 0 {
		return v, nil
	}
	if v.Patch, err = r.patch(pod, had, translated); err != nil {
		v.Errors = append(v.Errors, field.InternalError(annotationsPath.Key(api.AnnotationShares), err))
	}
	return v, nil
}

func (h *Handler) concerns(raw []byte) bool {
	return slices.ContainsFunc(h.traces, func(trace []byte) bool { return bytes.Contains(raw, trace) })
}
