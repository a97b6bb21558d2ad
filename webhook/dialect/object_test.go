// SPDX-License-Identifier: Apache-2.0

package dialect_test

import (
	"slices"
	"testing"

	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/webhook/dialect"
)

// What an object says for all of its pods is lost with the scheduler that read it.
func TestOfObject(t *testing.T) {
	const group = ": not honoured: the pods are placed one by one, not all or none: name a PodGroup with the label scheduling.x-k8s.io/pod-group"
	const stays = "spec.schedulerName: volcano stays, since task master asks for no GPU: where that scheduler is gone it waits for ever: set default-scheduler"
	all, err := dialect.Settings{Dialects: "all"}.Set()
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		dialect, object string
		want            []string
	}{
		"a Job of Volcano's": {"volcano", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, spec: {queue: q, minAvailable: 3, schedulerName: mine, tasks: [{replicas: 1}, {minAvailable: 2}]}}`,
			[]string{"spec.queue: not honoured: Volcano's queue does not count it: use a ResourceQuota or Kueue", "spec.minAvailable" + group, "spec.tasks[1].minAvailable" + group}},
		"a master without a GPU": {"volcano", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, spec: {tasks: [
			{name: master, template: {spec: {containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 0}}}]}}},
			{name: worker, template: {spec: {containers: [{name: a, resources: {limits: {volcano.sh/vgpu-number: 1}}}]}}}]}}`, []string{stays}},
		"of its own scheduler": {"volcano", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, spec: {schedulerName: volcano, tasks: [{name: master, template: {spec: {containers: [{name: a}]}}}]}}`, []string{stays}},
		"of another scheduler": {"volcano", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, spec: {schedulerName: default-scheduler, tasks: [{name: master}]}}`, nil},
		"Kubernetes' Job":      {"volcano", `{apiVersion: batch/v1, kind: Job, spec: {queue: q, minAvailable: 3}}`, nil},
		"a Deployment under Volcano": {"volcano", `{apiVersion: apps/v1, kind: Deployment, metadata: {annotations: {scheduling.volcano.sh/group-min-member: "2", scheduling.volcano.sh/queue-name: q}}}`,
			[]string{"metadata.annotations[scheduling.volcano.sh/group-min-member]" + group,
				"metadata.annotations[scheduling.volcano.sh/queue-name]: not honoured: Volcano's queue does not count it: use a ResourceQuota or Kueue"}},
		"a Job under KAI": {"kai", `{apiVersion: batch/v1, kind: Job, metadata: {labels: {kai.scheduler/queue: q, a: b}}}`,
			[]string{"metadata.labels[kai.scheduler/queue]: not honoured: KAI's queue does not count it: use a ResourceQuota or Kueue"}},
		"a Job of another dialect": {"hami", `{apiVersion: batch.volcano.sh/v1alpha1, kind: Job, spec: {queue: q}}`, nil},
		"rubbish":                  {"volcano", `{kind: Job, spec: 7}`, nil},
	} {
		raw, err := yaml.YAMLToJSON([]byte(c.object))
		if err != nil {
			t.Fatal(err)
		}
		if got := all.OfObject(c.dialect, raw); !slices.Equal(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}
