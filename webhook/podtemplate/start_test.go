// SPDX-License-Identifier: Apache-2.0

package podtemplate_test

import (
	"encoding/json"
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/podtemplate"
	"vernier.dev/vernier/webhook/start"
)

// A new pod starts with the advice where its namespace or it itself wants that, with enough known, never
// with more than it requests, never with less than 1.1 times the peak, and not where others count
// requests. Its requests and shares stay. A second round of admission changes nothing.
func TestStart(t *testing.T) {
	type advice = api.SliceAdviceStatus
	known := func() *advice {
		return &advice{Workload: "Deployment/web", Container: "a", Initial: true, Confidence: api.ConfidenceHigh, Days: 3, Pods: 3,
			Request: api.GPUAmounts{Core: 50, MemMiB: 8000}, Advice: api.GPUAmounts{Core: 20, MemMiB: 4000}, Mem: api.MemUse{PeakMiB: 3000}}
	}
	share := `"vernier.dev/gpu-core":"50","vernier.dev/gpu-mem-mib":"8000"`
	const shrunk = `{"a":{"core":20,"memMiB":4000}}`
	for name, tt := range map[string]struct {
		change              func(*advice)
		annotations, labels string
		limits, gates       string
		least               demand.Minimum
		want                string
	}{
		"its namespace wants it":      {want: shrunk},
		"it wants it":                 {change: func(a *advice) { a.Initial = false }, annotations: `"vernier.dev/advice":"initial"`, want: shrunk},
		"nobody wants it":             {change: func(a *advice) { a.Initial = false }},
		"it wants to see it":          {annotations: `"vernier.dev/advice":"show"`},
		"it wants none":               {annotations: `"vernier.dev/advice":"off"`},
		"it says how much":            {annotations: `"vernier.dev/start":"{\"a\":{\"core\":40}}"`, want: `{"a":{"core":40}}`},
		"two days":                    {change: func(a *advice) { a.Days = 2 }},
		"two pods":                    {change: func(a *advice) { a.Pods = 2 }},
		"medium confidence":           {change: func(a *advice) { a.Confidence = api.ConfidenceMedium }},
		"another workload's":          {change: func(a *advice) { a.Workload = "deployment/web" }},
		"advice above the request":    {change: func(a *advice) { a.Advice = api.GPUAmounts{Core: 80, MemMiB: 9000} }},
		"advice below the peak":       {change: func(a *advice) { a.Mem.PeakMiB = 5000 }, want: `{"a":{"core":20,"memMiB":5500}}`},
		"a peak above the request":    {change: func(a *advice) { a.Mem.PeakMiB = 7999 }, want: `{"a":{"core":20}}`},
		"no advice of memory":         {change: func(a *advice) { a.Advice.MemMiB = 0 }},
		"no quota":                    {limits: `"vernier.dev/gpu-mem-mib":"8000"`, want: `{"a":{"memMiB":4000}}`},
		"percent":                     {limits: `"vernier.dev/gpu-core":"30"`, want: `{"a":{"core":20}}`},
		"a whole GPU":                 {limits: `"vernier.dev/gpu-core":"100"`},
		"mode mps":                    {annotations: `"vernier.dev/mode":"mps"`},
		"less than the least":         {least: demand.Minimum{Percent: 21}},
		"another's gate":              {gates: `{"name":"example.com/gate"}`},
		"a queue of Kueue's":          {labels: `"kueue.x-k8s.io/queue-name":"q",`},
		"managed by Kueue":            {labels: `"kueue.x-k8s.io/managed":"true",`},
		"a group of Kueue's":          {labels: `"kueue.x-k8s.io/pod-group-name":"g",`},
		"its ReplicaSet has no label": {labels: `"pod-template-hash":"other",`},
	} {
		t.Run(name, func(t *testing.T) {
			a := known()
			if tt.change != nil {
				tt.change(a)
			}
			all := &start.Advice{}
			object := must.Get(start.Slim(&api.SliceAdvice{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "deployment.web.a"}, Status: *a}))(t)
			all.Put(object.(*api.SliceAdvice))
			reader := podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{Advice: all, Minimum: tt.least})
			limits := tt.limits
			if limits == "" {
				limits = share
			}
			raw := []byte(fmt.Sprintf(`{"metadata":{"generateName":"web-abc-","labels":{"pod-template-hash":"abc",%s"x":"y"},"annotations":{%s},
				"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-abc","uid":"u","controller":true}]},
				"spec":{"schedulingGates":[%s],"containers":[{"name":"a","resources":{"limits":{%s}}},{"name":"b"}]}}`, tt.labels, tt.annotations, tt.gates, limits))
			read := must.Get(reader.Read("team", raw))(t)
			if len(read.Errors) > 0 {
				t.Fatal(read.Errors)
			}
			pod := must.Get(read.Admitted(raw))(t)
			if got := pod.Annotations[api.AnnotationStart]; got != tt.want {
				t.Errorf("it starts with %q, want %q", got, tt.want)
			}
			without := must.Get(podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{Minimum: tt.least}).Read("team", raw))(t)
			if other := must.Get(without.Admitted(raw))(t); other.Annotations[api.AnnotationShares] != pod.Annotations[api.AnnotationShares] {
				t.Errorf("its shares are %s, without advice %s", pod.Annotations[api.AnnotationShares], other.Annotations[api.AnnotationShares])
			}
			again := must.Get(reader.Read("team", must.Get(json.Marshal(pod))(t)))(t)
			if len(again.Errors) > 0 || len(again.Patch) > 0 {
				t.Errorf("a second round: %v, %v", again.Errors, again.Patch)
			}
			if elsewhere := must.Get(reader.Read("other", raw))(t); tt.annotations == "" {
				if pod := must.Get(elsewhere.Admitted(raw))(t); pod.Annotations[api.AnnotationStart] != "" {
					t.Error("it starts so in another namespace")
				}
			}
		})
	}
}
