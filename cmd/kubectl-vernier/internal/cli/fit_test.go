// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/allocator/state/feasible"
	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// filtersOf are the scheduler's filters over nodes named as the fixture's ledgers.
func filtersOf(edit func(*corev1.Node)) func(context.Context) (*feasible.Filters, error) {
	return func(ctx context.Context) (*feasible.Filters, error) {
		var nodes []runtime.Object
		for _, name := range []string{"gpu-1", "gpu-2"} {
			n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{}}}
			for _, r := range []corev1.ResourceName{v1alpha1.ResourceGPUs, v1alpha1.ResourceCore, v1alpha1.ResourceMemPercent, v1alpha1.ResourceMemMiB, v1alpha1.ClassResource("gold"),
				corev1.ResourceCPU, corev1.ResourceMemory, corev1.ResourcePods} {
				n.Status.Allocatable[r] = resource.MustParse("1000G")
			}
			n.Status.Allocatable[corev1.ResourcePods] = resource.MustParse("100")
			edit(n)
			nodes = append(nodes, n)
		}
		return fillFilters(ctx, fake.NewClientset(nodes...))
	}
}

// asking is a workload of the kind with these fields beside the template, whose pods ask for
// percent of a GPU's compute. Of the fixture GPU 0 of gpu-1 has 70 % left, and nothing else.
func asking(kind, name, fields, percent string) string {
	return "apiVersion: apps/v1\nkind: " + kind + "\nmetadata: {name: " + name + "}\nspec: {" + fields +
		"template: {metadata: {labels: {app: x}}, spec: {containers: [{name: main, image: none, resources: {requests: {vernier.dev/gpu-core: " + percent + "}, limits: {vernier.dev/gpu-core: " + percent + ", vernier.dev/gpu-mem-mib: 100}}}]}}}\n---\n"
}

func inGang(manifest string) string {
	return strings.ReplaceAll(manifest, "labels: {app: x}", "labels: {scheduling.x-k8s.io/pod-group: g}")
}

func podGroup(least string) string {
	return "apiVersion: scheduling.x-k8s.io/v1alpha1\nkind: PodGroup\nmetadata: {name: g}\nspec: {minMember: " + least + "}\n---\n"
}

// fit counts replicas, and what one object takes is not there for the next.
func TestFit_CountsPods(t *testing.T) {
	nothing := func(*corev1.Node) {}
	taint := func(n *corev1.Node) {
		n.Spec.Taints = []corev1.Taint{{Key: "team", Value: "b", Effect: corev1.TaintEffectNoSchedule}}
	}
	for _, tt := range []struct {
		name, manifest string
		node           func(*corev1.Node)
		says           []string
		err            string
	}{
		{"all fit", asking("Deployment", "a", "replicas: 3, ", "20"), nothing, []string{"Deployment/a: all of 3 pods fit now: 3 on gpu-1"}, ""},
		{"some fit", asking("StatefulSet", "a", "replicas: 5, ", "30"), nothing,
			[]string{"StatefulSet/a: 2 of 5 pods fit now: 2 on gpu-1; 3 would wait", "nearest: gpu-1 GPU 0 has 10 %"}, "3 of 5 pods would wait or be refused"},
		{"none fits", asking("Job", "a", "parallelism: 2, ", "90"), nothing, []string{"Job/a: all of 2 pods would wait: container main needs 90 % compute"}, "2 of 2 pods"},
		{"no replicas", asking("Deployment", "a", "replicas: 0, ", "90"), nothing, []string{"Deployment/a: makes no pods"}, ""},
		{"one after the other", asking("Deployment", "a", "", "40") + asking("Deployment", "b", "", "40"), nothing,
			[]string{"Deployment/a: fits now, on 1 node", "Deployment/b: would wait: container main needs 40 % compute"}, "1 of 2 pods"},
		{"the scheduler refuses", asking("Deployment", "a", "", "40"), taint,
			[]string{"Deployment/a: would wait", "the scheduler refuses 1 node(s) with room, such as gpu-1: node(s) had untolerated taint team=b:NoSchedule"}, "1 of 1 pods"},
		{"CPU for one", strings.ReplaceAll(asking("Deployment", "a", "replicas: 2, ", "20"), "limits: {", "limits: {cpu: 3, "), func(n *corev1.Node) {
			n.Status.Allocatable[corev1.ResourceCPU] = resource.MustParse("4")
		}, []string{"Deployment/a: 1 of 2 pods fit now: 1 on gpu-1; 1 would wait", "gpu-1: Insufficient cpu"}, "1 of 2 pods"},
		{"a gang waits together", podGroup("2") + inGang(asking("Job", "a", "", "40")+asking("Job", "b", "", "40")) + asking("Deployment", "c", "", "60"), nothing,
			[]string{"Job/a: would wait for its gang: PodGroup default/g starts with 2 pods, and 1 fit now", "Job/b: would wait for its gang", "Deployment/c: fits now"}, "2 of 3 pods"},
		{"a gang has enough", podGroup("1") + inGang(asking("Job", "a", "", "40")+asking("Job", "b", "", "40")), nothing,
			[]string{"Job/a: fits now", "Job/b: would wait: container main needs 40 % compute"}, "1 of 2 pods"},
		{"a gang of unknown size", inGang(asking("Job", "a", "parallelism: 2, ", "40")), nothing,
			[]string{"Job/a: would wait for its gang: PodGroup default/g starts with 2 pods, and 1 fit now"}, "2 of 2 pods"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "x.yaml")
			must.Do(t, os.WriteFile(file, []byte(tt.manifest), 0o600))
			filters = filtersOf(tt.node)
			out, errOut, err := run(t, fakeClient(t, fixture()...), "fit -f "+file)
			if !strings.HasPrefix(errorText(err), tt.err) || (err == nil) != (tt.err == "") || strings.TrimPrefix(errOut, "No room is looked for.\n") != "" {
				t.Errorf("error %v, want %q; stderr %q", err, tt.err, errOut)
			}
			for _, part := range tt.says {
				if !strings.Contains(out, part) {
					t.Errorf("does not say %q:\n%s", part, out)
				}
			}
			if strings.Contains(out, file) {
				t.Errorf("names the only file:\n%s", out)
			}
		})
	}
}

// Room that the allocator keeps for others is not promised, and it is said for whom it is kept.
func TestFit_CountsReservedRoom(t *testing.T) {
	head := gated("team-a", "head", time.Hour, `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":60,"memPercent":10}}}`)
	reserved := because(event("room", "head", time.Minute, eventSource, "reserved on node gpu-1 GPU 0, waits for pods train to end"), model.ReasonReserved)
	filters = filtersOf(func(*corev1.Node) {})
	for percent, says := range map[string][]string{
		"10": {"Deployment/a: fits now, on 1 node"},
		"40": {"Deployment/a: would wait", "nearest: gpu-1 GPU 0 has 70 % and 61,439 MiB free, of which 60 % and 8,192 MiB are reserved for others; room is reserved for team-a/head"},
	} {
		file := filepath.Join(t.TempDir(), "x.yaml")
		must.Do(t, os.WriteFile(file, []byte(asking("Deployment", "a", "", percent)), 0o600))
		out, _, _ := run(t, fakeClient(t, append(fixture(), head, reserved)...), "fit -f "+file)
		for _, part := range says {
			if !strings.Contains(out, part) {
				t.Errorf("of %s %% fit does not say %q:\n%s", percent, part, out)
			}
		}
	}
}

// Of several files each object's is named, and so is the one that cannot be read.
func TestFit_NamesFiles(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"a.yaml": asking("Deployment", "a", "", "10"), "b.yaml": asking("Deployment", "a", "", "99")} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	filters = filtersOf(func(*corev1.Node) {})
	out, _, _ := run(t, fakeClient(t, fixture()...), "fit -f "+dir)
	for _, part := range []string{"a.yaml: Deployment/a: fits now", "b.yaml: Deployment/a: would wait"} {
		if !strings.Contains(out, dir+"/"+part) {
			t.Errorf("does not say %q:\n%s", part, out)
		}
	}
	must.Do(t, os.WriteFile(filepath.Join(dir, "b.yaml"), []byte("a: ["), 0o600))
	if _, _, err := run(t, fakeClient(t, fixture()...), "fit -f "+dir); !strings.Contains(errorText(err), dir+"/b.yaml: document 1") {
		t.Errorf("%v", err)
	}
}

// Where the scheduler's filters cannot be asked, that and the role are said, and room is
// looked for all the same.
func TestFit_SaysThatTheSchedulerWasNotAsked(t *testing.T) {
	filters = func(context.Context) (*feasible.Filters, error) {
		return nil, errors.New("you may not list and watch nodes")
	}
	out, errOut, err := run(t, fakeClient(t, fixture()...), "fit -f testdata/pod.yaml")
	if err != nil || !strings.Contains(out, "Pod/small: fits now, on 1 node") ||
		!strings.Contains(errOut, "were not asked: you may not list and watch nodes. The cluster role vernier-fit") {
		t.Errorf("%q, stderr %q, %v", out, errOut, err)
	}
}

// What the API server would refuse a pod for is said, in the dry run's words. What the manifests may
// make first is no refusal.
func TestFit_WhenTheDryRunFails(t *testing.T) {
	forbidden := func(text string) error {
		return apierrors.NewForbidden(schema.GroupResource{Resource: "pods"}, "fit-x", errors.New(text))
	}
	for name, tt := range map[string]struct {
		err         error
		out, errOut string
		refused     bool
	}{
		"a quota":            {forbidden("exceeded quota: q"), "would be refused: pods \"fit-x\" is forbidden: exceeded quota: q", "", true},
		"a service account":  {forbidden("error looking up service account team-a/x: serviceaccount \"x\" not found"), "fits now", "Pod/small: quotas, LimitRanges and policies were not asked: pods", false},
		"a priority class":   {forbidden("no PriorityClass with name x was found"), "fits now", "Create that first", false},
		"the namespace":      {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "x"), "fits now", "namespaces \"x\" not found. Create that first", false},
		"no right to create": {forbidden(`User "u" cannot create resource "pods" in API group "" in the namespace "default"`), "fits now", "you may not create pods in namespace default", false},
	} {
		r := interceptor.NewClient(fakeClient(t, fixture()...), interceptor.Funcs{
			Create: func(_ context.Context, _ client.WithWatch, _ client.Object, o ...client.CreateOption) error {
				if !slices.Contains(o, client.CreateOption(client.DryRunAll)) {
					t.Errorf("%s: this creates a pod", name)
				}
				return tt.err
			}})
		out, errOut, err := run(t, r, "fit -f testdata/pod.yaml")
		if !strings.Contains(out, tt.out) || !strings.Contains(errOut, tt.errOut) || (tt.errOut == "") == strings.Contains(errOut, "policies were not asked") || (err != nil) != tt.refused {
			t.Errorf("%s: %s, stderr %q, error %v", name, out, errOut, err)
		}
	}
	// Anything else is no answer.
	r := interceptor.NewClient(fakeClient(t, fixture()...), interceptor.Funcs{
		Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewInternalError(errors.New("no"))
		}})
	if _, _, err := run(t, r, "fit -f testdata/pod.yaml"); !apierrors.IsInternalError(err) {
		t.Errorf("error %v", err)
	}
}

// Quotas are asked about all pods of the manifests together.
func TestFit_CountsQuotas(t *testing.T) {
	quota := func(name string, hard, used corev1.ResourceList) *corev1.ResourceQuota {
		return &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Status: corev1.ResourceQuotaStatus{Hard: hard, Used: used}}
	}
	of := func(name corev1.ResourceName, n string) corev1.ResourceList {
		return corev1.ResourceList{name: resource.MustParse(n)}
	}
	scoped := quota("s", of("pods", "1"), nil)
	scoped.Spec.Scopes = []corev1.ResourceQuotaScope{corev1.ResourceQuotaScopeNotBestEffort}
	filters = filtersOf(func(*corev1.Node) {})
	two := asking("Deployment", "a", "replicas: 2, ", "10") + asking("Deployment", "b", "replicas: 2, ", "10")
	for name, tt := range map[string]struct {
		manifest string
		quotas   []client.Object
		says     []string
		errOut   string
	}{
		"room for all": {two, []client.Object{quota("q", of("requests.vernier.dev/gpu-core", "40"), nil)}, []string{"Deployment/a: all of 2", "Deployment/b: all of 2"}, ""},
		"room for some": {two, []client.Object{quota("q", of("requests.vernier.dev/gpu-core", "40"), of("requests.vernier.dev/gpu-core", "10"))},
			[]string{"Deployment/a: all of 2", "Deployment/b: 1 of 2 pods fit now: 1 on gpu-1; 1 would wait: ResourceQuota q has room for 1 of 2 pods (requests.vernier.dev/gpu-core)"}, ""},
		"room for the first": {two, []client.Object{quota("q", of("pods", "9"), nil), quota("r", of("count/pods", "2"), nil)},
			[]string{"Deployment/a: all of 2", "Deployment/b: would be refused: ResourceQuota r has room for 0 of 2 pods (count/pods)"}, ""},
		"room for none":          {two, []client.Object{quota("q", of("pods", "1"), of("pods", "2"))}, []string{"Deployment/a: would be refused: ResourceQuota q has room for 0 of 2 pods (pods)"}, ""},
		"CPU":                    {strings.ReplaceAll(two, "requests: {", "requests: {cpu: 300m, "), []client.Object{quota("q", of("requests.cpu", "1"), nil)}, []string{"room for 1 of 2 pods (requests.cpu)"}, ""},
		"memory's limit":         {strings.ReplaceAll(two, "limits: {", "limits: {memory: 2Gi, "), []client.Object{quota("q", of("limits.memory", "7Gi"), nil)}, []string{"room for 1 of 2 pods (limits.memory)"}, ""},
		"neither quota nor room": {asking("Deployment", "a", "replicas: 4, ", "30"), []client.Object{quota("q", of("pods", "3"), nil)}, []string{"2 of 4 pods fit now", "has 10 % and", "; ResourceQuota q has room for 3 of 4 pods"}, ""},
		"a scope":                {two, []client.Object{scoped}, []string{"Deployment/b: all of 2"}, "ResourceQuota s of namespace default has scopes: it was asked about one pod of each object.\n"},
		"one pod":                {asking("Deployment", "a", "", "10"), []client.Object{scoped}, []string{"Deployment/a: fits now"}, ""}, // the dry run has asked
	} {
		file := filepath.Join(t.TempDir(), "x.yaml")
		must.Do(t, os.WriteFile(file, []byte(tt.manifest), 0o600))
		out, errOut, err := run(t, fakeClient(t, append(fixture(), tt.quotas...)...), "fit -f "+file)
		for _, part := range tt.says {
			if !strings.Contains(out, part) {
				t.Errorf("%s: does not say %q:\n%s", name, part, out)
			}
		}
		if refused := strings.Contains(out, "ResourceQuota"); errOut != tt.errOut || (err != nil) != refused {
			t.Errorf("%s: stderr %q, error %v", name, errOut, err)
		}
		if doc, _, _ := run(t, fakeClient(t, append(fixture(), tt.quotas...)...), "fit -o json -f "+file); strings.Contains(doc, `"cause": "QuotaExceeded"`) != (err != nil && name != "neither quota nor room") {
			t.Errorf("%s: causes of %s", name, doc)
		}
	}
}
