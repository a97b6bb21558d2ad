// SPDX-License-Identifier: Apache-2.0

package podtemplate_test

import (
	"reflect"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/demand"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/fleet"
	"vernier.dev/vernier/webhook/podtemplate"
)

// One reading has everything: the dialect, the shares, what the annotations say, those of the
// dialect among them, what is wrong by field, and the pod as it is admitted.
func TestRead(t *testing.T) {
	dialects := must.Get(dialect.Settings{Dialects: "hami"}.Set())(t)
	reader := podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{Dialects: dialects})
	for name, tt := range map[string]struct {
		metadata, containers string
		dialect              string
		shares               map[string]api.Share
		mode                 api.Mode
		policy               api.Policy
		burst                api.Burst
		warned, errs         []string // the fields
	}{
		"ours": {
			metadata:   `"annotations":{"vernier.dev/mode":"limiter","vernier.dev/policy":"spread","vernier.dev/burst":"idle","vernier.dev/topology":"numa"}`,
			containers: `{"name":"a","resources":{"limits":{"vernier.dev/gpu-core":"150","vernier.dev/gpu":"2"}}},{"name":"b"}`,
			shares:     map[string]api.Share{"a": {GPUs: 2, Core: 75, MemPercent: 75}},
			mode:       api.ModeLimiter, policy: api.PolicySpread, burst: api.BurstIdle,
		},
		"in a dialect": {
			metadata:   `"annotations":{"hami.io/gpu-scheduler-policy":"spread"}`,
			containers: `{"name":"a","resources":{"limits":{"nvidia.com/gpu":"1","nvidia.com/gpumem":"3000","nvidia.com/priority":"1"}}}`,
			dialect:    "hami", shares: map[string]api.Share{"a": {GPUs: 1, MemMiB: 3000}},
			mode: api.ModeAuto, policy: api.PolicySpread, burst: api.BurstNone,
			warned: []string{"spec.containers[0].resources.limits[nvidia.com/priority]"},
		},
		"wrong in three places": {
			metadata:   `"annotations":{"vernier.dev/mode":"exclusive","vernier.dev/polcy":"pack"}`,
			containers: `{"name":"a","resources":{"limits":{"vernier.dev/gpu-core":"101"}}},{"name":"b","resources":{"limits":{"vernier.dev/gpu-core":"30"}}}`,
			errs: []string{"metadata.annotations[vernier.dev/polcy]", "spec.containers[0].resources.limits[vernier.dev/gpu-core]",
				"metadata.annotations[vernier.dev/mode]"},
		},
		"asks for nothing": {metadata: `"annotations":{"vernier.dev/mode":"auto"}`, containers: `{"name":"a"}`,
			warned: []string{"metadata.annotations[vernier.dev/mode]"}},
	} {
		t.Run(name, func(t *testing.T) {
			raw := []byte(`{"metadata":{"name":"p",` + tt.metadata + `},"spec":{"containers":[` + tt.containers + `]}}`)
			read := must.Get(reader.Read("team", raw))(t)
			if read.Name != "p" || read.Dialect != tt.dialect || len(read.Warnings) != len(tt.warned) || len(read.Errors) != len(tt.errs) {
				t.Fatalf("%+v", read)
			}
			for i, field := range tt.warned {
				if !strings.HasPrefix(read.Warnings[i], field+": ") {
					t.Errorf("warning %q, want of %s", read.Warnings[i], field)
				}
			}
			for i, field := range tt.errs {
				if read.Errors[i].Field != field {
					t.Errorf("error %v, want of %s", read.Errors[i], field)
				}
			}
			if tt.shares == nil {
				return
			}
			if w := read.Wishes; !reflect.DeepEqual(read.Shares, tt.shares) || w.Mode != tt.mode || w.Policy != tt.policy || w.Burst != tt.burst {
				t.Errorf("shares %v, %+v", read.Shares, w)
			}
			pod := must.Get(read.Admitted(raw))(t)
			if len(pod.Spec.SchedulingGates) != 1 || pod.Spec.SchedulingGates[0] != (corev1.PodSchedulingGate{Name: api.Gate}) {
				t.Errorf("gates %v", pod.Spec.SchedulingGates)
			}
			written, err := api.ParseShares(pod.Annotations[api.AnnotationShares])
			if err != nil || !reflect.DeepEqual(written.Containers, tt.shares) {
				t.Errorf("shares %v: %v", written, err)
			}
			// The allocator reads the same from the pod.
			wishes := podrequest.WishesOf(pod.Annotations)
			if wishes.Err() != nil || !reflect.DeepEqual(wishes, read.Wishes) {
				t.Errorf("the pod says %+v, the reading %+v: %v", wishes, read.Wishes, wishes.Err())
			}
		})
	}
}

// Volcano's gate for its queues and ours wait for each other, so it is refused beside a share: where a pod asks for
// it, and where Volcano's webhook was first.
func TestVolcanosGateIsRefused(t *testing.T) {
	const (
		key  = "scheduling.volcano.sh/queue-allocation-gate"
		asks = `"name":"a","resources":{"limits":{"vernier.dev/gpu-core":"10"}}`
		text = "Forbidden: Volcano takes this gate off a pod that has no other, and Vernier places a pod that has only Vernier's: neither would ever go. Remove it"
		at   = "metadata.annotations[" + key + "]: " + text
		gate = "spec.schedulingGates[" + key + "]: " + text
	)
	reader := podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{})
	for name, tt := range map[string]struct {
		value, gate, container string
		want                   []string
	}{
		"asked for":             {"true", "example.com/a", asks, []string{at}},
		"set by Volcano":        {"true", key, asks, []string{at, gate}},
		"set by somebody":       {"", key, asks, []string{gate}},
		"not switched on by it": {"false", "example.com/a", asks, nil},
		"without a share":       {"true", key, `"name":"a"`, nil},
	} {
		raw := []byte(`{"metadata":{"name":"p","annotations":{"` + key + `":"` + tt.value + `"}},"spec":{"schedulerName":"volcano","schedulingGates":[{"name":"` + tt.gate + `"}],"containers":[{` + tt.container + `}]}}`)
		read := must.Get(reader.Read("team", raw))(t)
		if len(read.Errors) != len(tt.want) {
			t.Errorf("%s: %v", name, read.Errors)
			continue
		}
		for i, want := range tt.want {
			if got := read.Errors[i].Error(); !strings.HasPrefix(got, want) {
				t.Errorf("%s: %q, want %q", name, got, want)
			}
		}
	}
	// A template says so before there are pods.
	job := `{"metadata":{"name":"j"},"spec":{"template":{"metadata":{"annotations":{"` + key + `":"true"}},"spec":{"containers":[{` + asks + `}]}}}}`
	if warned := must.Get(reader.Workload("team", []byte(job)))(t); len(warned) != 1 || !strings.HasPrefix(warned[0], "spec.template.metadata.annotations["+key+"]: pods are refused: ") {
		t.Errorf("of a template: %q", warned)
	}
}

// Whether there is room is asked for the very demand that the allocator reads from the admitted pod.
func TestRoom(t *testing.T) {
	dialects := must.Get(dialect.Settings{Dialects: "hami"}.Set())(t)
	known := classes.Of(api.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, Spec: api.GPUClassSpec{Models: []string{"H100"}, Unit: api.GPUUnit{Core: 25}, Topology: "numa"}})
	reader := podtemplate.New(&fleet.Fleet{}, podtemplate.Rules{Dialects: dialects, Classes: known, ComputeShares: must.Get(demand.ParseComputeShares("team=20", demand.Minimum{}))(t)})
	for name, tt := range map[string]struct{ annotations, spec, want string }{
		"ours": {`"vernier.dev/mode":"limiter","vernier.dev/policy":"spread","vernier.dev/topology":"numa","vernier.dev/gpu-model":"!A100"`,
			`"initContainers":[{"name":"i","resources":{"limits":{"vernier.dev/gpu-core":"10"}}},{"name":"s","restartPolicy":"Always","resources":{"limits":{"vernier.dev/gpu-core":"10"}}}],` +
				`"containers":[{"name":"a","resources":{"limits":{"vernier.dev/gpu-core":"150","vernier.dev/gpu":"2"}}},{"name":"b"}]`, fleet.NotLooked},
		"a dialect":                 {``, `"containers":[{"name":"a","resources":{"limits":{"nvidia.com/gpu":"1","nvidia.com/gpumem":"3000"}}}]`, fleet.NotLooked},
		"a class":                   {``, `"containers":[{"name":"a","resources":{"limits":{"vernier.dev/gpu-gold":"2"}}}]`, fleet.NotLooked},
		"a class that there is not": {``, `"containers":[{"name":"a","resources":{"limits":{"vernier.dev/gpu-glod":"2"}}}]`, fleet.NotLooked},
		"another mistake":           {``, `"containers":[{"name":"a","resources":{"limits":{"vernier.dev/gpu-core":"101"}}}]`, ""},
		"no share":                  {`"vernier.dev/mode":"limiter"`, `"containers":[{"name":"a"}]`, ""},
	} {
		raw := []byte(`{"metadata":{"name":"p","annotations":{` + tt.annotations + `}},"spec":{` + tt.spec + `}}`)
		read := must.Get(reader.Read("team", raw))(t)
		if got := strings.Join(reader.Room(&read), "\n"); !strings.Contains(got, tt.want) || (got == "") != (tt.want == "") {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
		if len(read.Errors) > 0 || len(read.Shares) == 0 {
			continue
		}
		asked := must.Get(placement.DemandOf(&read.Request, known))(t)
		admitted := must.Get(placement.DemandOf(podrequest.Of(must.Get(read.Admitted(raw))(t)), known))(t)
		if !reflect.DeepEqual(asked, admitted) {
			t.Errorf("%s: asked for %+v, and the allocator reads %+v", name, asked, admitted)
		}
	}
}
