// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/handler"
	"vernier.dev/vernier/webhook/podtemplate"
)

// A container that asks for memory only gets what its namespace gives, in limits, requests and
// document alike, or is refused; a second round of admission changes nothing.
func TestComputeShares(t *testing.T) {
	dialects, err := dialect.Settings{Dialects: "hami"}.Set()
	if err != nil {
		t.Fatal(err)
	}
	hook := &admission.Webhook{Handler: handler.Pods(podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{Dialects: dialects,
		ComputeShares: demand.ComputeShares{"gives": {Default: 20}, "requires": {Required: true}}}))}
	for name, tt := range map[string]struct {
		namespace   string
		annotations map[string]string
		limits      []string
		core        int64
		shares      string // of the container
		refused     string
	}{
		"default":                     {namespace: "gives", limits: []string{"vernier.dev/gpu-mem", "10"}, core: 20, shares: `{"gpus":1,"core":20,"memPercent":10}`},
		"default on each GPU":         {namespace: "gives", limits: []string{"vernier.dev/gpu-mem-mib", "900", "vernier.dev/gpu", "3"}, core: 60, shares: `{"gpus":3,"core":20,"memMiB":300}`},
		"default beside a dialect":    {namespace: "gives", limits: []string{"nvidia.com/gpu", "2", "nvidia.com/gpumem", "300"}, core: 40, shares: `{"gpus":2,"core":20,"memMiB":300}`},
		"a quota to go beyond":        {namespace: "gives", annotations: map[string]string{api.AnnotationBurst: "idle"}, limits: []string{"vernier.dev/gpu-mem", "10"}, core: 20, shares: `{"gpus":1,"core":20,"memPercent":10}`},
		"own compute beside default":  {namespace: "gives", limits: []string{"vernier.dev/gpu-core", "7"}, core: 7, shares: `{"gpus":1,"core":7,"memPercent":7}`},
		"own compute where required":  {namespace: "requires", limits: []string{"vernier.dev/gpu-core", "7", "vernier.dev/gpu-mem", "10"}, core: 7, shares: `{"gpus":1,"core":7,"memPercent":10}`},
		"required":                    {namespace: "requires", limits: []string{"vernier.dev/gpu-mem", "10"}, refused: "spec.containers[0].resources.limits[vernier.dev/gpu-core]: Required value: container train asks for memory only, and namespace requires requires compute (webhook.computeShares of Vernier's chart): add vernier.dev/gpu-core, 1 to 100 for each GPU"},
		"required beside a dialect":   {namespace: "requires", limits: []string{"nvidia.com/gpu", "1", "nvidia.com/gpumem", "300"}, refused: "container train asks for memory only"},
		"a namespace without a rule":  {namespace: "other", limits: []string{"vernier.dev/gpu-mem", "10"}, shares: `{"gpus":1,"memPercent":10}`},
		"a misspelt name, no default": {namespace: "gives", limits: []string{"vernier.dev/gpu-cores", "7", "vernier.dev/gpu-mem", "10"}, refused: "vernier.dev/gpu-cores"},
	} {
		for _, requests := range []bool{true, false} {
			pod := podOf(container("train", tt.limits...))
			pod.Annotations = tt.annotations
			if !requests {
				pod.Spec.Containers[0].Resources.Requests = nil
			}
			req := request(marshal(t, pod))
			req.Namespace = tt.namespace
			response := hook.Handle(context.Background(), req)
			if response.Allowed != (tt.refused == "") {
				t.Errorf("%s: allowed is %v: %+v", name, response.Allowed, response.Result)
				continue
			}
			if !response.Allowed {
				if !strings.Contains(response.Result.Message, tt.refused) {
					t.Errorf("%s: %s, want %q", name, response.Result.Message, tt.refused)
				}
				continue
			}
			req.Object.Raw = apply(t, req.Object.Raw, response)
			got := &corev1.Pod{}
			if err := json.Unmarshal(req.Object.Raw, got); err != nil {
				t.Fatal(err)
			}
			c := got.Spec.Containers[0]
			if q := c.Resources.Limits[api.ResourceCore]; q.Value() != tt.core {
				t.Errorf("%s: limits %v, want %d", name, c.Resources.Limits, tt.core)
			}
			if q := c.Resources.Requests[api.ResourceCore]; len(c.Resources.Requests) > 0 && q.Value() != tt.core {
				t.Errorf("%s: requests %v, want %d", name, c.Resources.Requests, tt.core)
			}
			if want := `{"version":"v1alpha1","containers":{"train":` + tt.shares + `}}`; got.Annotations[api.AnnotationShares] != want {
				t.Errorf("%s: %s, want %s", name, got.Annotations[api.AnnotationShares], want)
			}
			if again := hook.Handle(context.Background(), req); !again.Allowed || len(again.Patch) > 0 {
				t.Errorf("%s: a second round says %v and patches %s", name, again.Result, again.Patch)
			}
		}
	}
}
