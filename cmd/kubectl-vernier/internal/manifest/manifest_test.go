// SPDX-License-Identifier: Apache-2.0

package manifest_test

import (
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/cmd/kubectl-vernier/internal/manifest"
	"vernier.dev/vernier/test/must"
)

func TestRead(t *testing.T) {
	read := must.Get(manifest.Read(strings.NewReader(`
apiVersion: v1
kind: Pod
metadata: {name: alone, namespace: team}
spec: {containers: [{name: a, resources: {limits: {nvidia.com/gpumem: 9007199254740993}}}]}
---
# nothing but a comment
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec: {template: {spec: {containers: [{name: a}]}}}
---
apiVersion: v1
kind: List
items:
- {apiVersion: v1, kind: Service, metadata: {name: s}, spec: {ports: [{port: 80}]}}
- {apiVersion: batch/v1, kind: CronJob, metadata: {name: nightly}, spec: {jobTemplate: {spec: {template: {metadata: {labels: {a: b}}, spec: {containers: [{name: a}]}}}}}}
- {apiVersion: batch/v1, kind: Job, metadata: {generateName: run-}, spec: {template: {spec: {containers: [{name: a}]}}}}
---
apiVersion: batch.volcano.sh/v1alpha1
kind: Job
metadata: {name: train}
spec: {tasks: [{name: ps, template: {spec: {containers: [{name: a}]}}}, {name: worker, template: {spec: {containers: [{name: a}]}}}]}
---
{"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "t"}, "spec": {"pytorchReplicaSpecs": {"Worker": {"template": {"spec": {"containers": []}}}}}}
`)))(t)
	pods := read.Pods
	var got []string
	for _, p := range pods {
		got = append(got, p.Namespace+" "+p.Object+" "+p.Path)
	}
	want := []string{"team Pod/alone ", " Deployment/web spec.template", " CronJob/nightly spec.jobTemplate.spec.template", " Job/run-* spec.template",
		" Job/train spec.tasks[0].template", " Job/train spec.tasks[1].template", " PyTorchJob/t spec.pytorchReplicaSpecs.Worker.template"}
	if strings.Join(got, "\n") != strings.Join(want, "\n") {
		t.Errorf("found\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	// Templates of one object have one owner.
	if owner, err := pods[4].Owner.JSON(); err != nil || !strings.Contains(string(owner), `"kind":"Job"`) || !strings.Contains(string(owner), `"name":"train"`) ||
		pods[0].Owner != nil || pods[4].Owner != pods[5].Owner || pods[3].Owner == pods[4].Owner {
		t.Errorf("owner %s: %v", owner, err)
	}
	if text := string(pods[0].JSON); !strings.Contains(text, `"nvidia.com/gpumem":9007199254740993`) || !strings.Contains(text, `"name":"alone"`) {
		t.Errorf("the pod became %s", text)
	}
	if text := string(pods[1].JSON); !strings.Contains(text, `"metadata":{"ownerReferences":[{"apiVersion":"apps/v1","controller":true,"kind":"Controller","name":"fit","uid":"fit"}]}`) {
		t.Errorf("a template without metadata became %s", text)
	}
}

// Fields that no pod has are named where the object is Kubernetes' own: other kinds
// may have pods with more to them.
func TestUnknownFields(t *testing.T) {
	read := must.Get(manifest.Read(strings.NewReader(`
apiVersion: v1
kind: Pod
metadata: {name: a, annotation: {x: y}}
spec: {containers: [{name: a, resource: {}, resources: {limits: {nvidia.com/gpu: 1}}}]}
---
apiVersion: serving.knative.dev/v1
kind: Service
metadata: {name: b}
spec: {template: {spec: {containerConcurrency: 1, containers: [{name: a}]}}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: c}
spec: {replica: 1, template: {spec: {containers: [{name: a}]}}}
`)))(t)
	for i, want := range []string{"metadata.annotation spec.containers[0].resource", "", ""} {
		if got := strings.Join(read.Pods[i].Unknown, " "); got != want {
			t.Errorf("%s: unknown %q, want %q", read.Pods[i].Object, got, want)
		}
	}
}

func TestReadRefuses(t *testing.T) {
	for text, want := range map[string]string{"a: [": "document 1", "a: b\n---\n{": "document 2"} {
		if _, err := manifest.Read(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// How many pods an object makes stands beside the template, whatever the kind.
func TestCopies(t *testing.T) {
	const template = "template: {spec: {containers: [{name: a}]}}"
	for spec, want := range map[string]int{
		"{" + template + "}":                                                                      1,
		"{replicas: 5, " + template + "}":                                                         5,
		"{replicas: 0, " + template + "}":                                                         0,
		"{parallelism: 4, " + template + "}":                                                      4,
		"{parallelism: 4, completions: 3, " + template + "}":                                      3,
		"{completions: 3, " + template + "}":                                                      1,
		"{jobTemplate: {spec: {parallelism: 2, " + template + "}}}":                               2,
		"{tasks: [{replicas: 6, " + template + "}]}":                                              6,
		"{replicatedJobs: [{replicas: 3, template: {spec: {parallelism: 2, " + template + "}}}]}": 6,
		"{replicas: 99999999999, " + template + "}":                                               1 << 20,
		"{replicas: many, " + template + "}":                                                      1,
	} {
		read, err := manifest.Read(strings.NewReader("apiVersion: v1\nkind: K\nmetadata: {name: k}\nspec: " + spec))
		if err != nil || len(read.Pods) != 1 || read.Pods[0].Copies != want {
			t.Errorf("%s: %+v, %v, want %d copies", spec, read.Pods, err, want)
		}
	}
}

func TestGroups(t *testing.T) {
	read, err := manifest.Read(strings.NewReader(`
apiVersion: scheduling.x-k8s.io/v1alpha1
kind: PodGroup
metadata: {name: a, namespace: team}
spec: {minMember: 3}
---
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: b}
spec: {schedulingPolicy: {gang: {minCount: 2}}}
---
apiVersion: scheduling.k8s.io/v1alpha2
kind: PodGroup
metadata: {name: c}
spec: {schedulingPolicy: {basic: {}}}
`))
	want := []manifest.Group{{Namespace: "team", Name: "a", Min: 3}, {Name: "b", Min: 2}, {Name: "c", Min: 1}}
	if err != nil || !slices.Equal(read.Groups, want) {
		t.Errorf("%+v, %v, want %+v", read.Groups, err, want)
	}
}
