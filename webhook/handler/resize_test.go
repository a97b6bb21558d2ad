// SPDX-License-Identifier: Apache-2.0

package handler

import (
	"encoding/json"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	"vernier.dev/vernier/test/must"
)

// A resize that a pod can't have is refused when it is asked for; the refusal names the annotation.
func TestHostileResizes(t *testing.T) {
	const (
		shares = `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":50,"memMiB":8000},"side":{"gpus":1,"memPercent":5}}}`
		placed = `{"version":"v1alpha1","node":"n","containers":{"main":{"mode":"limiter","devices":[{"uuid":"GPU-0","core":50,"memMiB":8000}]},"side":{"mode":"mps","devices":[{"uuid":"GPU-0","memMiB":80}]}}}`
	)
	for resize, says := range map[string]string{
		`{"main":{"core":20,"memMiB":4000}}`:                "",
		`{"main":{"core":50}}`:                              "",
		`{"main":{"core":51}}`:                              "asks for 50 of each GPU",
		`{"main":{"memMiB":8001}}`:                          "asks for 8000",
		`{"main":{"core":0}}`:                               "neither core nor memMiB",
		`{"main":{"core":-1}}`:                              "from 1 to 100",
		`{"side":{"core":1}}`:                               "asks for no compute",
		`{"side":{"memMiB":40}}`:                            "mode mps, which can't change what runs",
		`{"other":{"core":1}}`:                              "container other asks for no share",
		`{"main":{"core":1},"main":{"core":2}}`:             "duplicate field",
		`{"main":{"Core":1}}`:                               "unknown field",
		`[]`:                                                "write amounts",
		"{" + strings.Repeat(" ", 5000) + "}":               "at most 4096",
		`{"main":{"core":1}}{}`:                             "write amounts",
		`{"main":{"core":1e99}}`:                            "write amounts",
		`{"main":{"memMiB":99999999999999999999999999999}}`: "write amounts",
	} {
		annotations := map[string]string{"vernier.dev/shares": shares, "vernier.dev/placement": placed, "vernier.dev/resize": resize}
		ask := func() admission.Response {
			raw := must.Get(json.Marshal(map[string]any{"metadata": map[string]any{"name": "p", "annotations": annotations}, "spec": map[string]any{}}))(t)
			return Resizes()(t.Context(), admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{Object: runtime.RawExtension{Raw: raw}}})
		}
		answer := ask()
		if text := message(answer); answer.Allowed != (says == "") || !strings.Contains(text, says) || !answer.Allowed && !strings.Contains(text, "metadata.annotations[vernier.dev/resize]") {
			t.Errorf("%.80s: allowed %t, %q; want %q", resize, answer.Allowed, text, says)
		}
		if delete(annotations, "vernier.dev/placement"); says == "" {
			if answer := ask(); answer.Allowed || !strings.Contains(message(answer), "has no place yet") {
				t.Errorf("%s without a place: %q", resize, message(answer))
			}
		}
	}
}

func message(r admission.Response) string {
	if r.Result == nil {
		return ""
	}
	return r.Result.Message
}
