// SPDX-License-Identifier: Apache-2.0

package handler_test

import (
	"context"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/handler"
	"vernier.dev/vernier/webhook/podtemplate"
)

// A container that asks for memory only gets what its namespace gives, in limits, requests and
// document alike, or is refused; a second round of admission changes nothing.
func TestComputeShares(t *testing.T) {
	dialects := must.Get(dialect.Settings{Dialects: "hami"}.Set())(t)
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
			must.Do(t, json.Unmarshal(req.Object.Raw, got))
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

// 0 of a resource is none of it, in our own words, in those of a dialect, and of NVIDIA's
// device plugin beside a share.
func TestZeroIsNone(t *testing.T) {
	for name, c := range map[string]struct {
		containers []corev1.Container
		shares     string // as the webhook writes them; empty where the pod asks for none
		warns      string
		// gone are resources that are taken out.
		gone []corev1.ResourceName
	}{
		"ours":                           {containers: []corev1.Container{container("a", "vernier.dev/gpu-core", "0", "vernier.dev/gpu-mem-mib", "0")}},
		"ours in a sidecar":              {containers: []corev1.Container{container("a", "vernier.dev/gpu-core", "20", "vernier.dev/gpu-mem-mib", "0", "vernier.dev/gpu", "0"), container("b", "vernier.dev/gpu-core", "0")}, shares: `"a":{"gpus":1,"core":20,"memPercent":20}`},
		"NVIDIA's beside ours":           {containers: []corev1.Container{container("a", "vernier.dev/gpu-core", "20", "nvidia.com/gpu", "0", "nvidia.com/gpumem", "0")}, shares: `"a":{"gpus":1,"core":20,"memPercent":20}`},
		"HAMi's":                         {containers: []corev1.Container{container("a", "nvidia.com/gpu", "0", "nvidia.com/gpumem", "0")}},
		"HAMi's in a sidecar":            {containers: []corev1.Container{container("a", "nvidia.com/gpu", "1", "nvidia.com/gpumem", "1000"), container("b", "nvidia.com/gpu", "0", "nvidia.com/gpumem", "0")}, shares: `"a":{"gpus":1,"memMiB":1000}`},
		"amounts of no GPU":              {containers: []corev1.Container{container("a", "nvidia.com/gpu", "0", "nvidia.com/gpumem", "1000")}, warns: "limits[nvidia.com/gpumem]: removed and not honoured: 0 nvidia.com/gpu are asked for", gone: []corev1.ResourceName{"nvidia.com/gpumem"}},
		"amounts of no GPU of Volcano's": {containers: []corev1.Container{container("a", "volcano.sh/vgpu-number", "0", "volcano.sh/vgpu-cores", "10")}, warns: "limits[volcano.sh/vgpu-cores]: removed", gone: []corev1.ResourceName{"volcano.sh/vgpu-cores"}},
		"amounts of no GPU beside a GPU": {containers: []corev1.Container{container("a", "nvidia.com/gpu", "1"), container("b", "nvidia.com/gpu", "0", "nvidia.com/gpucores", "10")}, shares: `"a":{"gpus":1,"memPercent":100}`, warns: "containers[1].resources.limits[nvidia.com/gpucores]: removed"},
		"compute of no memory":           {containers: []corev1.Container{container("a", "aliyun.com/gpu-mem", "0", "aliyun.com/gpu-count", "1")}, warns: "limits[aliyun.com/gpu-count]: removed", gone: []corev1.ResourceName{"aliyun.com/gpu-count"}},
		"memory of no cores":             {containers: []corev1.Container{container("a", "tencent.com/vcuda-core", "0", "tencent.com/vcuda-memory", "4")}, warns: "limits[tencent.com/vcuda-memory]: removed", gone: []corev1.ResourceName{"tencent.com/vcuda-memory"}},
	} {
		t.Run(name, func(t *testing.T) {
			raw := marshal(t, podOf(c.containers...))
			response := everybodys(t).Handle(context.Background(), request(raw))
			if !response.Allowed {
				t.Fatal(response.Result)
			}
			patched, got := apply(t, raw, response), &corev1.Pod{}
			must.Do(t, json.Unmarshal(patched, got))
			want := ""
			if c.shares != "" {
				want = `{"version":"v1alpha1","containers":{` + c.shares + `}}`
			}
			if got.Annotations[api.AnnotationShares] != want || slices.Contains(got.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: api.Gate}) != (want != "") {
				t.Errorf("shares %s, gates %v, want %s", got.Annotations[api.AnnotationShares], got.Spec.SchedulingGates, want)
			}
			if said := strings.Join(response.Warnings, "\n"); !strings.Contains(said, c.warns) || (c.warns == "") != (said == "") {
				t.Errorf("warnings %q, want %q", said, c.warns)
			}
			for _, name := range c.gone {
				r := got.Spec.Containers[0].Resources
				if limit, request := r.Limits[name], r.Requests[name]; !limit.IsZero() || !request.IsZero() {
					t.Errorf("%s is left, and no node has it", name)
				}
			}
			if again := everybodys(t).Handle(context.Background(), request(patched)); !again.Allowed || len(again.Patch) > 0 {
				t.Errorf("a second round says %v and patches %s", again.Result, again.Patch)
			}
		})
	}
}

// What a LimitRange has set is named, by what LimitRanger writes of it. Anybody may write that,
// so it changes nothing.
func TestLimitRangeIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		limits    []string
		says      string // the annotation
		container string
		want      string
	}{
		"a sidecar":             {limits: []string{"vernier.dev/gpu-core", "50"}, says: "LimitRanger plugin set: cpu, vernier.dev/gpu-core request for container b; cpu, vernier.dev/gpu-core limit for container b", want: "spec.containers[1].resources.limits[vernier.dev/gpu-core]: a LimitRange gives container b 50, which the pod does not ask for. Its max is the default too, unless the LimitRange has default vernier.dev/gpu-core: 0"},
		"memory":                {limits: []string{"vernier.dev/gpu-core", "20", "vernier.dev/gpu-mem-mib", "20480"}, says: "LimitRanger plugin set: vernier.dev/gpu-mem-mib limit for container b", want: "limits[vernier.dev/gpu-mem-mib]: a LimitRange gives container b 20480"},
		"of a dialect":          {limits: []string{"nvidia.com/gpumem", "1000"}, says: "LimitRanger plugin set: nvidia.com/gpumem limit for container b", want: "limits[nvidia.com/gpumem]: a LimitRange gives container b 1k"},
		"0, as it should be":    {limits: []string{"vernier.dev/gpu-core", "0"}, says: "LimitRanger plugin set: vernier.dev/gpu-core limit for container b"},
		"what was asked for":    {limits: []string{"vernier.dev/gpu-core", "50"}, says: "LimitRanger plugin set: cpu limit for container b"},
		"an init container's":   {limits: []string{"vernier.dev/gpu-core", "50"}, says: "LimitRanger plugin set: vernier.dev/gpu-core limit for init container b"},
		"rubbish":               {limits: []string{"vernier.dev/gpu-core", "50"}, says: " limit for ; , limit for container b;"},
		"with the pod's errors": {limits: []string{"vernier.dev/gpu-core", "20", "nvidia.com/gpu", "1"}, says: "LimitRanger plugin set: vernier.dev/gpu-core limit for container b", want: "a LimitRange gives container b 20"},
	} {
		pod := podOf(container("a", "vernier.dev/gpu-core", "1", "vernier.dev/gpu", "1"), container("b", append(c.limits, "vernier.dev/gpu", "0")...))
		plain := everybodys(t).Handle(context.Background(), request(marshal(t, pod)))
		pod.Annotations = map[string]string{"kubernetes.io/limit-ranger": c.says}
		response := everybodys(t).Handle(context.Background(), request(marshal(t, pod)))
		if said := strings.Join(response.Warnings, "\n"); !strings.Contains(said, c.want) || (c.want == "") != (said == "") {
			t.Errorf("%s: warnings %q, want %q", name, said, c.want)
		}
		if response.Allowed != plain.Allowed || name != "with the pod's errors" && !plain.Allowed {
			t.Errorf("%s: %v, without the annotation %v", name, response.Result, plain.Result)
		}
	}
}

// Of a long annotation the beginning is read.
func TestHostileLimitRange(t *testing.T) {
	const set = "vernier.dev/gpu-core limit for container b"
	for says, want := range map[string]int{
		set + strings.Repeat("; x limit for container y", 8_000):        1,
		strings.Repeat("x limit for container y; ", 8_000) + set:        0,
		strings.Repeat("vernier.dev/gpu-core, ", 8_000) + "x limit for": 0,
	} {
		pod := podOf(container("b", "vernier.dev/gpu-core", "50"))
		pod.Annotations = map[string]string{"kubernetes.io/limit-ranger": says}
		response := ours().Handle(context.Background(), request(marshal(t, pod)))
		if !response.Allowed || len(response.Warnings) != want {
			t.Errorf("%.60s…: %v, %d warnings, want %d", says, response.Result, len(response.Warnings), want)
		}
	}
}
