// SPDX-License-Identifier: Apache-2.0

package podtemplate_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/podtemplate"
)

// A pod with an idle slice has a controller, one container with a slice, and nothing that is promised. Its
// limits stay as they are, and it is opportunistic. Rules for other shares do not concern it.
func TestIdleSlice(t *testing.T) {
	const slice, owner = `"vernier.dev/idle-core":"30","vernier.dev/idle-mem-mib":"4096"`,
		`[{"apiVersion":"batch/v1","kind":"Job","name":"j","uid":"u","controller":true}]`
	rules := podtemplate.Rules{Minimum: demand.Minimum{Percent: 50, MemMiB: 8000}, ComputeShares: must.Get(demand.ParseComputeShares("*=required", demand.Minimum{}))(t)}
	for name, tt := range map[string]struct {
		owners, annotations, other string
		want                       string
	}{
		"of a Job":                {},
		"opportunistic":           {annotations: `"vernier.dev/qos":"opportunistic"`},
		"in mode limiter":         {annotations: `"vernier.dev/mode":"limiter"`},
		"of nobody":               {owners: `[]`, want: "metadata.ownerReferences: Required value: a pod with an idle slice is evicted"},
		"with an owner":           {owners: `[{"apiVersion":"v1","kind":"ConfigMap","name":"c","uid":"u"}]`, want: "have a controller make it"},
		"guaranteed":              {annotations: `"vernier.dev/qos":"guaranteed"`, want: "annotations[vernier.dev/qos]: Forbidden: a pod with an idle slice is opportunistic"},
		"in mode mps":             {annotations: `"vernier.dev/mode":"mps"`, want: "annotations[vernier.dev/mode]: Forbidden: an idle slice is held in mode limiter"},
		"bursting":                {annotations: `"vernier.dev/burst":"idle"`, want: "no container has a quota to go beyond"},
		"with less at first":      {annotations: `"vernier.dev/start":"{\"a\":{\"memMiB\":5}}"`, want: "annotations[vernier.dev/start]: Forbidden: an idle slice is not resized"},
		"beside a share":          {other: `"vernier.dev/gpu-core":"60"`, want: "one container that asks for a GPU"},
		"beside another":          {other: slice, want: "one container that asks for a GPU"},
		"with a share besides it": {other: slice + `,"vernier.dev/gpu-core":"60"`, want: "limits[vernier.dev/gpu-core]: Forbidden: an idle slice has nothing that is promised"},
	} {
		t.Run(name, func(t *testing.T) {
			if tt.owners == "" {
				tt.owners = owner
			}
			reader := podtemplate.New(&fleet.Fleet{}, rules)
			raw := []byte(fmt.Sprintf(`{"metadata":{"name":"p","annotations":{%s},"ownerReferences":%s},
				"spec":{"containers":[{"name":"a","resources":{"limits":{%s}}},{"name":"b","resources":{"limits":{%s}}}]}}`, tt.annotations, tt.owners, slice, tt.other))
			read := must.Get(reader.Read("team", raw))(t)
			if tt.want != "" {
				if text := read.Errors.ToAggregate(); text == nil || !strings.Contains(text.Error(), tt.want) || len(read.Patch) > 0 {
					t.Errorf("refused with %v, want %q", text, tt.want)
				}
				return
			}
			if len(read.Errors) > 0 {
				t.Fatal(read.Errors)
			}
			pod := must.Get(read.Admitted(raw))(t)
			asked := podrequest.Of(pod)
			if got := asked.Shares["a"]; got != (api.Share{GPUs: 1, MemMiB: 4096, Idle: 30}) || asked.QoS != api.QoSOpportunistic {
				t.Errorf("asks for %+v with QoS %s", got, asked.QoS)
			}
			if n := len(pod.Spec.Containers[0].Resources.Limits); n != 2 {
				t.Errorf("%d limits, want 2", n)
			}
			again := must.Get(reader.Read("team", must.Get(json.Marshal(pod))(t)))(t)
			if len(again.Errors) > 0 || len(again.Patch) > 0 {
				t.Errorf("a second round: %v, %v", again.Errors, again.Patch)
			}
		})
	}
}

// Of a template nobody knows yet who makes its pods.
func TestIdleSlice_Template(t *testing.T) {
	warnings := must.Get(podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{}).Workload("team", []byte(`{"kind":"Job","spec":{"template":{"spec":{"containers":[
		{"name":"a","resources":{"limits":{"vernier.dev/idle-core":"30","vernier.dev/idle-mem-mib":"4096"}}}]}}}}`)))(t)
	if len(warnings) > 0 {
		t.Errorf("warned: %q", warnings)
	}
}
