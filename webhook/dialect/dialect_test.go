// SPDX-License-Identifier: Apache-2.0

package dialect_test

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	jsonpatch "gopkg.in/evanphx/json-patch.v4"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/api/podrequest"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/slim"
)

// reading is one pod of a dialect's table and what is to become of it.
type reading struct {
	// pod is YAML: metadata and spec.
	pod string
	// settings, with the dialect of the table switched on unless they say others.
	settings dialect.Settings
	// shares by container, as JSON; empty where the pod is not translated.
	shares string
	// set are the annotations of ours, but for the dialect itself.
	set map[string]string
	// warns and refuses are parts of the texts, one for each.
	warns, refuses []string
}

// check runs the table of one dialect.
func check(t *testing.T, name string, cases map[string]reading) {
	for title, c := range cases {
		t.Run(title, func(t *testing.T) {
			if c.settings.Dialects == "" {
				c.settings.Dialects = name
			}
			set := must.Get(c.settings.Set())(t)
			raw := must.Get(yaml.YAMLToJSON([]byte(c.pod)))(t)
			pod := decode(t, raw)
			got := set.Translate(pod)
			match(t, "warnings", got.Warnings, c.warns)
			match(t, "errors", texts(got.Errors), c.refuses)
			if len(c.refuses) > 0 {
				return
			}
			if shares := sharesOf(t, pod); shares != c.shares {
				t.Errorf("shares %s, want %s", shares, c.shares)
			}
			if c.shares == "" {
				if got.Dialect != "" || len(got.Patch) > 0 || len(got.Annotations) > 0 {
					t.Errorf("translated: %+v", got)
				}
				return
			}
			if got.Dialect != name {
				t.Errorf("read as %s, want %s", got.Dialect, name)
			}
			want := map[string]string{api.AnnotationDialect: got.Annotations[api.AnnotationDialect]}
			for key, value := range c.set {
				want[key] = value
			}
			if have, expected := marshal(t, got.Annotations), marshal(t, want); have != expected {
				t.Errorf("annotations %s, want %s", have, expected)
			}
			patched(t, set, raw, got, c.shares)
		})
	}
}

// patched applies what is to change to the pod as it was sent: it asks in no
// dialect any more, and for the same shares.
func patched(t *testing.T, set dialect.Set, raw []byte, got dialect.Translation, shares string) {
	t.Helper()
	patch := must.Get(jsonpatch.DecodePatch([]byte(marshal(t, got.Patch))))(t)
	after, err := patch.Apply(raw)
	if err != nil {
		t.Fatalf("%s does not apply to %s: %v", marshal(t, got.Patch), raw, err)
	}
	pod := decode(t, after)
	if pod.Metadata.Annotations == nil {
		pod.Metadata.Annotations = map[string]string{}
	}
	for key, value := range got.Annotations {
		pod.Metadata.Annotations[key] = value
	}
	if again := sharesOf(t, pod); again != shares {
		t.Errorf("the patched pod asks for %s, want %s: %s", again, shares, after)
	}
	for _, c := range append(slices.Clone(pod.Spec.Containers), pod.Spec.InitContainers...) {
		for name, limit := range c.Resources.Limits {
			if request, set := c.Resources.Requests[name]; strings.HasPrefix(string(name), api.Prefix) && (!set || limit.Cmp(request) != 0) {
				t.Errorf("%s: limit of %s without its request", c.Name, name)
			}
		}
	}
	if second := set.Translate(pod); second.Dialect != "" {
		t.Errorf("a second round translates again: %+v", second)
	}
}

func decode(t *testing.T, raw []byte) *slim.Pod {
	t.Helper()
	pod := must.Get(slim.Decode(raw))(t)
	if pod.Metadata == nil {
		pod.Metadata = &slim.Metadata{}
	}
	return pod
}

func sharesOf(t *testing.T, pod *slim.Pod) string {
	t.Helper()
	shares := map[string]api.Share{}
	for _, c := range append(slices.Clone(pod.Spec.InitContainers), pod.Spec.Containers...) {
		if !podrequest.Asks(c.Resources) {
			continue
		}
		share, errs := podrequest.ShareOf(c.Resources, nil, field.NewPath(c.Name))
		if len(errs) > 0 {
			t.Errorf("the translation is refused: %v", errs)
		}
		shares[c.Name] = share
	}
	if len(shares) == 0 {
		return ""
	}
	return marshal(t, shares)
}

func match(t *testing.T, what string, got, want []string) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s %q, want %d: %q", what, got, len(want), want)
		return
	}
	for i := range want {
		if !strings.Contains(got[i], want[i]) {
			t.Errorf("%s %q, want %q", what, got[i], want[i])
		}
	}
}

func texts(errs field.ErrorList) []string {
	var all []string
	for _, err := range errs {
		all = append(all, err.Error())
	}
	return all
}

func marshal(t *testing.T, v any) string {
	t.Helper()
	text := must.Get(json.Marshal(v))(t)
	return string(text)
}

// What an object says for all of its pods is lost with the scheduler that read it.
func TestOfObject(t *testing.T) {
	const group = ": not honoured: the pods are placed one by one, not all or none: name a PodGroup with the label scheduling.x-k8s.io/pod-group"
	const stays = "spec.schedulerName: volcano stays, since task master asks for no GPU: where that scheduler is gone it waits for ever: set default-scheduler"
	all := must.Get(dialect.Settings{Dialects: "all"}.Set())(t)
	for name, c := range map[string]struct {
		dialect, object string
		want            []string
	}{
		"a Job of Volcano's": {"volcano", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, spec: {queue: q, minAvailable: 3, schedulerName: mine, tasks: [{replicas: 1}, {minAvailable: 2}]}}`,
			[]string{"spec.queue: not honoured: Volcano's queue does not count it: use a ResourceQuota or Kueue", "spec.tasks[1].minAvailable: not honoured: spec.minAvailable counts, of pods of any task"}},
		"a master without a GPU": {"volcano", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, spec: {tasks: [
			{name: master, template: {spec: {containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 0}}}]}}},
			{name: worker, template: {spec: {containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 1}}}]}}}]}}`, []string{stays}},
		"of its own scheduler": {"volcano", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, spec: {schedulerName: volcano, tasks: [{name: master, template: {spec: {containers: [{name: a}]}}}]}}`, []string{stays}},
		"of another scheduler": {"volcano", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, spec: {schedulerName: default-scheduler, tasks: [{name: master}]}}`, nil},
		"Kubernetes' Job":      {"volcano", `{apiVersion: batch/v1, kind: Job, spec: {queue: q, minAvailable: 3}}`, nil},
		"a Deployment under Volcano": {"volcano", `{apiVersion: apps/v1, kind: Deployment, metadata: {annotations: {scheduling.k8s.io/group-name: g, scheduling.volcano.sh/group-min-member: "2", scheduling.volcano.sh/queue-name: q}}}`,
			[]string{"metadata.annotations[scheduling.k8s.io/group-name]" + group, "metadata.annotations[scheduling.volcano.sh/group-min-member]" + group,
				"metadata.annotations[scheduling.volcano.sh/queue-name]: not honoured: Volcano's queue does not count it: use a ResourceQuota or Kueue"}},
		"a Job under KAI": {"kai", `{apiVersion: batch/v1, kind: Job, metadata: {labels: {kai.scheduler/queue: q, a: b}}}`,
			[]string{"metadata.labels[kai.scheduler/queue]: not honoured: KAI's queue does not count it: use a ResourceQuota or Kueue"}},
		"a Job of another dialect": {"hami", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, spec: {queue: q}}`, nil},
		"rubbish":                  {"volcano", `{kind: Job, spec: 7}`, nil},
	} {
		raw := must.Get(yaml.YAMLToJSON([]byte(c.object)))(t)
		if got := all.OfObject(c.dialect, raw); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
