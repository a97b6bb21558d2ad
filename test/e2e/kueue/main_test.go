// SPDX-License-Identifier: Apache-2.0

//go:build e2e

// Package kueue owns the proof that a real Kueue and Vernier work side by side: what Kueue admits has
// devices, and what has none gives its quota back. Its tests share one cluster, each has a namespace.
package kueue

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/kueue"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/cluster"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
	"vernier.dev/vernier/test/system"
)

// gpus are those of each of the two nodes.
const gpus = 8

// patience bounds each wait: Kueue looks at a queue about once a second, and the machine may be busy.
const patience = 10 * time.Minute

var sys *system.System

func TestMain(m *testing.M) {
	flag.Parse()
	a100 := simgpu.GPU{Model: simgpu.A100}
	more := []simgpu.GPU{a100, a100, a100, a100, a100, a100, a100}
	os.Exit(system.Main(m, system.Options{Name: "kueue", Nodes: []system.NodeOptions{
		{Name: "n1", GPUs: a100, More: more}, {Name: "n2", GPUs: a100, More: more},
	}}, func(ctx context.Context, s *system.System) error {
		sys = s
		return s.InstallGuest(ctx, "kueue")
	}))
}

// await waits until something is so.
func await(t *testing.T, what string, is func() (bool, string)) {
	t.Helper()
	last := ""
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(context.Context) (ok bool, _ error) {
		ok, last = is()
		return ok, nil
	})
	if err != nil {
		t.Fatalf("waited in vain for %s: %s", what, last)
	}
}

// apply applies manifests, and has them deleted when the test ends.
func apply(t *testing.T, text string) {
	t.Helper()
	file := t.TempDir() + "/objects.yaml"
	must.Do(t, os.WriteFile(file, []byte(text), 0o644))
	// Kueue's webhooks may not know the objects yet that these name.
	await(t, "the objects to be taken", func() (bool, string) {
		out, err := sys.Shell(t.Context(), "kubectl apply -f "+file)
		return err == nil, out
	})
	t.Cleanup(func() {
		_, err := sys.Shell(context.Background(), "kubectl delete --wait=false -f "+file)
		must.Report(t, err)
	})
}

// queue is a namespace of its own with a LocalQueue "q" of a ClusterQueue with so much of each resource.
func queue(t *testing.T, name string, core int, checks string, more ...string) {
	t.Helper()
	must.Do(t, sys.Namespaces(t.Context(), map[string]bool{name: true}))
	t.Cleanup(func() { empty(t, name) })
	apply(t, fmt.Sprintf(`
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: %[1]s}
spec:
  namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: %[1]s}}
  %[3]s
  %[4]s
  resourceGroups:
    - coveredResources: [vernier.dev/gpu-core, vernier.dev/gpu-mem, vernier.dev/gpu-mem-mib, vernier.dev/gpu]
      flavors:
        - name: any
          resources:
            - {name: vernier.dev/gpu-core, nominalQuota: %[2]d}
            - {name: vernier.dev/gpu-mem, nominalQuota: 10000}
            - {name: vernier.dev/gpu-mem-mib, nominalQuota: 1000000}
            - {name: vernier.dev/gpu, nominalQuota: 10000}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: q, namespace: %[1]s}
spec: {clusterQueue: %[1]s}
`, name, core, checks, strings.Join(more, "\n  ")))
}

// empty deletes all Jobs and pods of a namespace and waits until these are gone, with their slices.
func empty(t *testing.T, namespace string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	in := client.InNamespace(namespace)
	must.Report(t, sys.Client.DeleteAllOf(ctx, &batchv1.Job{}, in, client.PropagationPolicy(metav1.DeletePropagationBackground)))
	must.Report(t, sys.Client.DeleteAllOf(ctx, &corev1.Pod{}, in))
	// Pods of a group that are deleted stay until the group's Workload ends.
	_, err := sys.Shell(ctx, "kubectl -n "+namespace+" delete workloads --all --wait=false")
	must.Report(t, err)
	must.Report(t, wait.PollUntilContextCancel(ctx, 200*time.Millisecond, true, func(ctx context.Context) (bool, error) {
		pods, ledgers := &corev1.PodList{}, &v1alpha1.SliceLedgerList{}
		if err := sys.Client.List(ctx, pods, in); err != nil || len(pods.Items) > 0 {
			return false, err
		}
		if err := sys.Client.List(ctx, ledgers); err != nil {
			return false, err
		}
		for _, l := range ledgers.Items {
			for _, d := range l.Spec.Devices {
				for _, s := range d.Slices {
					if strings.HasPrefix(s.Owner, namespace+"/") {
						return false, nil
					}
				}
			}
		}
		return true, nil
	}))
}

// withCheck has a ClusterQueue ask Vernier.
const withCheck = `admissionChecksStrategy: {admissionChecks: [{name: placement}]}`

// placementCheck is the AdmissionCheck and the flavor that all queues name.
func placementCheck(t *testing.T) {
	t.Helper()
	model := ""
	await(t, "the node's label", func() (bool, string) {
		node, err := sys.Kube.CoreV1().Nodes().Get(t.Context(), "n1", metav1.GetOptions{})
		must.Do(t, err)
		model = node.Labels[v1alpha1.LabelGPUModel]
		return model != "", fmt.Sprint(node.Labels)
	})
	apply(t, `
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: any}
spec: {nodeLabels: {vernier.dev/gpu-model: `+model+`}}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: AdmissionCheck
metadata: {name: placement}
spec: {controllerName: `+v1alpha1.AdmissionCheckController+`}
`)
}

func limits(core, mib int) corev1.ResourceList {
	return corev1.ResourceList{
		v1alpha1.ResourceCore: *resource.NewQuantity(int64(core), resource.DecimalSI), v1alpha1.ResourceMemMiB: *resource.NewQuantity(int64(mib), resource.DecimalSI)}
}

func podSpec(of corev1.ResourceList, script string) corev1.PodSpec {
	return corev1.PodSpec{RestartPolicy: corev1.RestartPolicyNever, TerminationGracePeriodSeconds: ptr.To[int64](1), Containers: []corev1.Container{{
		Name: "main", Image: cluster.BusyboxImage, Command: []string{"/bin/sh", "-c", script}, Resources: corev1.ResourceRequirements{Limits: of}}}}
}

const forever = "trap exit TERM; while :; do sleep 3600 & wait $!; done"

// job submits a Job of so many pods to the queue of its namespace.
func job(t *testing.T, namespace, name string, pods int32, of corev1.ResourceList, edits ...func(*batchv1.Job)) *batchv1.Job {
	t.Helper()
	j := &batchv1.Job{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: map[string]string{podrequest.LabelKueueQueue: "q"}},
		Spec: batchv1.JobSpec{Parallelism: &pods, Completions: &pods, Suspend: ptr.To(true), BackoffLimit: ptr.To[int32](0), Template: corev1.PodTemplateSpec{Spec: podSpec(of, forever)}}}
	for _, edit := range edits {
		edit(j)
	}
	must.Do(t, sys.Client.Create(t.Context(), j))
	return j
}

// workloads are those of a namespace by the name of their owner.
func workloads(t *testing.T, namespace string) map[string]*unstructured.Unstructured {
	t.Helper()
	all := &unstructured.UnstructuredList{}
	all.SetGroupVersionKind(schema.GroupVersionKind{Group: kueue.Group, Version: kueue.Version, Kind: "WorkloadList"})
	must.Do(t, sys.Client.List(t.Context(), all, client.InNamespace(namespace)))
	of := map[string]*unstructured.Unstructured{}
	for i := range all.Items {
		name := all.Items[i].GetName()
		if owners := all.Items[i].GetOwnerReferences(); len(owners) == 1 {
			name = owners[0].Name
		}
		of[name] = &all.Items[i]
	}
	return of
}

// said is what the check says of a Workload, and whether that is admitted.
func said(w *unstructured.Unstructured) (state, message string, admitted bool) {
	if w == nil {
		return "", "there is no Workload", false
	}
	checks, _, _ := unstructured.NestedSlice(w.Object, "status", "admissionChecks")
	if len(checks) > 0 {
		c := checks[0].(map[string]any)
		state, _ = c["state"].(string)
		message, _ = c["message"].(string)
	}
	return state, message, is(w, "Admitted")
}

// is reports whether a condition of the Workload is true.
func is(w *unstructured.Unstructured, kind string) bool {
	if w == nil {
		return false
	}
	conditions, _, _ := unstructured.NestedSlice(w.Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == kind && c["status"] == "True" {
			return true
		}
	}
	return false
}

// awaitSaid waits for a verdict.
func awaitSaid(t *testing.T, namespace, owner, state, text string) *unstructured.Unstructured {
	t.Helper()
	var w *unstructured.Unstructured
	await(t, owner+": "+state+" "+text, func() (bool, string) {
		w = workloads(t, namespace)[owner]
		s, m, _ := said(w)
		return s == state && strings.Contains(m, text), s + " " + m
	})
	return w
}

// awaitRunning waits until so many pods of a namespace run that an owner has made; all that there are where it has no name.
func awaitRunning(t *testing.T, namespace, owner string, want int) (running []corev1.Pod) {
	t.Helper()
	await(t, fmt.Sprintf("%d pods of %s/%s to run", want, namespace, owner), func() (bool, string) {
		pods, text := &corev1.PodList{}, ""
		must.Do(t, sys.Client.List(t.Context(), pods, client.InNamespace(namespace)))
		running = nil
		for _, p := range pods.Items {
			of := metav1.GetControllerOf(&p)
			if owner != "" && p.Name != owner && (of == nil || of.Name != owner) {
				continue
			}
			text += fmt.Sprintf("%s %s gates %v; ", p.Name, p.Status.Phase, p.Spec.SchedulingGates)
			if p.Status.Phase == corev1.PodRunning && p.DeletionTimestamp == nil {
				running = append(running, p)
			}
		}
		return len(running) == want, text
	})
	return running
}

// quotaFull reports whether Kueue says that the Workload waits for quota.
func quotaFull(w *unstructured.Unstructured) bool {
	conditions, _, _ := unstructured.NestedSlice(w.Object, "status", "conditions")
	for _, c := range conditions {
		if c := c.(map[string]any); c["type"] == "QuotaReserved" && c["status"] == "False" && strings.Contains(fmt.Sprint(c["message"]), "insufficient") {
			return true
		}
	}
	return false
}
