// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"fmt"
	"strings"

	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"vernier.dev/vernier/webhook/podtemplate"
)

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
