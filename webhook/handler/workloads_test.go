// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"unicode/utf8"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/podtemplate"
)

// Whatever a workload carries is admitted, and no more is said than the API server passes on.
func TestHostileWorkloads(t *testing.T) {
	hook := Workloads(podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{}))
	var many []string
	for i := range 500 {
		many = append(many, fmt.Sprintf(`{"name":"c%d","resources":{"limits":{"vernier.dev/gpu-%s":"1"}}}`, i, strings.Repeat("m", 100)))
	}
	for name, tt := range map[string]struct {
		raw    string
		warned int
	}{
		"no JSON":         {raw: `{"vernier.dev/`},
		"no object":       {raw: `["vernier.dev/"]`},
		"no template":     {raw: `{"metadata":{"annotations":{"vernier.dev/mode":"mps"}}}`},
		"no metadata":     {raw: `{"spec":{"template":{"spec":{"containers":[{"resources":{"limits":{"vernier.dev/gpu-core":"101"}}}]}}}}`, warned: 1},
		"a long value":    {raw: `{"spec":{"template":{"metadata":{"annotations":{"vernier.dev/gpu-model":"` + strings.Repeat("é", 2040) + `,"}},"spec":{"containers":[{"resources":{"limits":{"vernier.dev/gpu-core":"1"}}}]}}}}`, warned: 1},
		"many containers": {raw: `{"spec":{"template":{"spec":{"containers":[` + strings.Join(many, ",") + `]}}}}`, warned: 1},
		"60 containers":   {raw: `{"spec":{"template":{"spec":{"containers":[` + strings.Join(many[:60], ",") + `]}}}}`, warned: 17},
	} {
		var req admission.Request
		req.Object = runtime.RawExtension{Raw: []byte(tt.raw)}
		response := hook.Handle(context.Background(), req)
		text := strings.Join(response.Warnings, "")
		if !response.Allowed || len(response.Warnings) > tt.warned || tt.warned > 0 && !strings.HasPrefix(text, "spec.template.") || len(text) > 4096 || !utf8.ValidString(text) {
			t.Errorf("%s: %d warnings of %d bytes: %+v", name, len(response.Warnings), len(text), response)
		}
	}
}
