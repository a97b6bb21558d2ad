// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package cli

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

// makeTrains has the API server know a kind that nobody else does, which view shows.
func makeTrains(t *testing.T, c client.Client) {
	t.Helper()
	crd := &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "trains.example.com"},
		"spec": map[string]any{"group": "example.com", "scope": "Namespaced",
			"names": map[string]any{"plural": "trains", "kind": "Train"},
			"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
				"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}}}
	create(t, c, crd)
	create(t, c, &rbacv1.ClusterRole{
		ObjectMeta: metav1.ObjectMeta{Name: "trains", Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
		Rules:      []rbacv1.PolicyRule{{APIGroups: []string{"example.com"}, Resources: []string{"trains"}, Verbs: []string{"get", "list"}}},
	})
}

// testWorkloads: `why` finds the pods of workloads of any kind, and says why they wait, do not
// start, or are refused. ann is a user with view in the namespace team-a.
func testWorkloads(t *testing.T, cfg *rest.Config, admin client.Client) {
	const shares = `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":90,"memPercent":50}}}`
	in := func(name string, owner client.Object, kind schema.GroupVersionKind) metav1.ObjectMeta {
		m := metav1.ObjectMeta{Namespace: "team-a", Name: name, Labels: map[string]string{"app": "server"}}
		if owner != nil {
			m.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(owner, kind)}
		}
		return m
	}
	template := corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{"app": "server"}},
		Spec: corev1.PodSpec{RestartPolicy: corev1.RestartPolicyAlways, Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
	selector := &metav1.LabelSelector{MatchLabels: template.Labels}
	once := *template.DeepCopy()
	once.Labels, once.Spec.RestartPolicy = nil, corev1.RestartPolicyNever
	sets, jobs := appsv1.SchemeGroupVersion.WithKind("ReplicaSet"), batchv1.SchemeGroupVersion.WithKind("Job")

	deploy := &appsv1.Deployment{ObjectMeta: in("server", nil, sets), Spec: appsv1.DeploymentSpec{Replicas: ptr.To[int32](5), Selector: selector, Template: template}}
	create(t, admin, deploy)
	var last *appsv1.ReplicaSet
	for _, revision := range []string{"1", "2"} {
		last = &appsv1.ReplicaSet{ObjectMeta: in("server-"+revision, deploy, appsv1.SchemeGroupVersion.WithKind("Deployment")),
			Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}}
		last.Annotations = map[string]string{"deployment.kubernetes.io/revision": revision}
		create(t, admin, last)
		says(t, admin, "ReplicaSet", "apps/v1", last, "FailedCreate", "replicaset-controller",
			"Error creating: admission webhook \"pods.vernier.dev\" denied the request: revision "+revision)
	}
	for _, name := range []string{"server-a", "server-b"} {
		waits := pod("", shares)
		waits.ObjectMeta = in(name, last, sets)
		waits.Annotations = map[string]string{v1alpha1.AnnotationShares: shares}
		create(t, admin, waits)
		says(t, admin, "Pod", "v1", waits, "VernierWaiting", eventSource, "needs 90 % compute")
	}
	for name, phase := range map[string]corev1.PodPhase{"server-c": corev1.PodPending, "server-d": corev1.PodRunning} {
		bound := pod("", "")
		bound.ObjectMeta = in(name, last, sets)
		bound.Annotations = map[string]string{v1alpha1.AnnotationShares: shares,
			v1alpha1.AnnotationPlacement: `{"version":"v1alpha1","node":"gpu-1","containers":{"main":{"mode":"limiter","devices":[{"uuid":"` + gpuA + `","core":90,"memMiB":20480}]}}}`}
		bound.Spec.SchedulingGates, bound.Spec.NodeName = nil, "gpu-1"
		create(t, admin, bound)
		bound.Status.Phase = phase
		if err := admin.Status().Update(t.Context(), bound); err != nil {
			t.Fatal(err)
		}
		says(t, admin, "Pod", "v1", bound, "FailedCreatePodSandBox", "kubelet", "Failed to create pod sandbox: no network")
	}

	cron := &batchv1.CronJob{ObjectMeta: in("nightly", nil, jobs), Spec: batchv1.CronJobSpec{Schedule: "0 0 * * *",
		JobTemplate: batchv1.JobTemplateSpec{Spec: batchv1.JobSpec{Template: once}}}}
	create(t, admin, cron)
	train := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "example.com/v1", "kind": "Train",
		"metadata": map[string]any{"namespace": "team-a", "name": "express"}}}
	await(t, func() bool { return client.IgnoreAlreadyExists(admin.Create(t.Context(), train)) == nil }, func() any { return "the kind Train is not served" })
	for owner, kind := range map[client.Object]schema.GroupVersionKind{cron: batchv1.SchemeGroupVersion.WithKind("CronJob"), train: train.GroupVersionKind()} {
		job := &batchv1.Job{ObjectMeta: in(owner.GetName()+"-1", owner, kind), Spec: batchv1.JobSpec{Template: once}}
		create(t, admin, job)
		waits := pod("", shares)
		waits.ObjectMeta = in(owner.GetName()+"-1-x", job, jobs)
		waits.Labels, waits.Annotations = job.Spec.Selector.MatchLabels, map[string]string{v1alpha1.AnnotationShares: shares}
		create(t, admin, waits)
	}

	config := kubeconfig(t, cfg)
	why := func(of string, parts ...string) string {
		t.Helper()
		out, _, err := vernier(t, config, "ann", "-n team-a why "+of)
		if err != nil {
			t.Errorf("why %s: %v", of, err)
		}
		for _, part := range parts {
			if !strings.Contains(out, part) {
				t.Errorf("why %s does not print %q:\n%s", of, part, out)
			}
		}
		return out
	}
	text := why("deploy/server", "Deployment/server in namespace team-a: 4 pods: 2 wait for a place, 1 not started, 1 running",
		"ReplicaSet/server-2 cannot create pods: Error creating: admission webhook \"pods.vernier.dev\" denied the request: revision 2",
		"2 pods, such as team-a/server-a: it waits for a place", "The allocator's last event: needs 90 % compute",
		"Pod team-a/server-c: it is on node gpu-1, pending; the kubelet's last message: FailedCreatePodSandBox: Failed to create pod sandbox: no network")
	if strings.Contains(text, "revision 1") {
		t.Errorf("a ReplicaSet that the Deployment has replaced is blamed:\n%s", text)
	}
	why("rs/server-2", "ReplicaSet/server-2 in namespace team-a: 4 pods", "revision 2")
	why("deployments.apps/server", "4 pods")
	why("cj/nightly", "CronJob/nightly in namespace team-a: 1 pod: 1 wait for a place", "Pod team-a/nightly-1-x: it waits for a place")
	why("job/nightly-1", "Job/nightly-1 in namespace team-a: 1 pod")
	why("train/express", "Train/express in namespace team-a: 1 pod", "Pod team-a/express-1-x: it waits for a place")
	why("pod/server-a", "Pod team-a/server-a: it waits for a place")
	why("server-a", "Pod team-a/server-a: it waits for a place")
}

// testFit: `fit` asks the scheduler's filters where the user may read what they look at, and
// says where it does not. The only node with room has a taint.
func testFit(t *testing.T, cfg *rest.Config, admin client.Client) {
	create(t, admin, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"},
		Spec: corev1.NodeSpec{Taints: []corev1.Taint{{Key: "team", Value: "b", Effect: corev1.TaintEffectNoSchedule}}}})
	l := &v1alpha1.SliceLedger{}
	if err := admin.Get(t.Context(), client.ObjectKey{Name: "gpu-1"}, l); err != nil {
		t.Fatal(err)
	}
	l.Status.Devices = []v1alpha1.DeviceStatus{{UUID: gpuA, Model: "NVIDIA A100-SXM4-80GB", Mem: 81920, MIG: v1alpha1.MIGDisabled, Healthy: true}}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.Now()}}
	if err := admin.Status().Update(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	config := kubeconfig(t, cfg)
	const fit = "fit -f testdata/pod.yaml"

	grant(t, admin, "bob", "vernier-viewer")
	var out, errOut string
	var err error
	await(t, func() bool { out, errOut, err = vernier(t, config, "bob", fit); return err == nil }, func() any { return err })
	if !strings.Contains(out, "fits now, on 1 node") || !strings.Contains(errOut, "were not asked: you may not list and watch") || !strings.Contains(errOut, "vernier-fit") {
		t.Errorf("without the role: stderr %q, stdout\n%s", errOut, out)
	}
	grant(t, admin, "bob", "vernier-fit")
	await(t, func() bool { out, errOut, err = vernier(t, config, "bob", fit); return errOut == "" }, func() any { return errOut })
	if errorText(err) != "1 of 1 pods would wait or be refused" || !strings.Contains(out, "the scheduler refuses 1 node(s) with room, such as gpu-1: node(s) had untolerated taint(s)") {
		t.Errorf("with the role: error %v, stdout\n%s", err, out)
	}
}

// vernier runs the plugin as a user would.
func vernier(t *testing.T, config, user, args string) (stdout, stderr string, err error) {
	t.Helper()
	var out, errOut bytes.Buffer
	root := New(&out, &errOut)
	root.SetArgs(append([]string{"--kubeconfig", config, "--cache-dir", t.TempDir(), "--as", user}, strings.Fields(args)...))
	err = root.ExecuteContext(t.Context())
	return out.String(), errOut.String(), err
}

// says has somebody say something of an object, a minute from now.
func says(t *testing.T, c client.Client, kind, version string, of client.Object, reason, source, message string) {
	t.Helper()
	create(t, c, &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Namespace: of.GetNamespace(), Name: of.GetName() + "." + strings.ToLower(reason)},
		InvolvedObject: corev1.ObjectReference{APIVersion: version, Kind: kind, Namespace: of.GetNamespace(), Name: of.GetName(), UID: of.GetUID()},
		Reason:         reason, Message: message, Type: corev1.EventTypeWarning,
		Source: corev1.EventSource{Component: source}, LastTimestamp: metav1.NewTime(time.Now().Add(time.Minute)),
	})
}

// kubeconfig is a file with which a user may impersonate others.
func kubeconfig(t *testing.T, cfg *rest.Config) string {
	t.Helper()
	c := clientcmdapi.NewConfig()
	c.Clusters["test"] = &clientcmdapi.Cluster{Server: cfg.Host, CertificateAuthorityData: cfg.CAData}
	c.AuthInfos["test"] = &clientcmdapi.AuthInfo{ClientCertificateData: cfg.CertData, ClientKeyData: cfg.KeyData}
	c.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	c.CurrentContext = "test"
	file := filepath.Join(t.TempDir(), "config")
	if err := clientcmd.WriteToFile(*c, file); err != nil {
		t.Fatal(err)
	}
	return file
}
