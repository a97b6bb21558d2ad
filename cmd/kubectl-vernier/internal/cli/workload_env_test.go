// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// makeKinds has the API server know two kinds that view shows: one that nobody else does, and
// the coscheduling plugin's PodGroup.
func makeKinds(t *testing.T, c client.Client) {
	t.Helper()
	for kind, group := range map[string]string{"Train": "example.com", "PodGroup": "scheduling.x-k8s.io"} {
		plural := strings.ToLower(kind) + "s"
		// The API server wants a proposal for groups of Kubernetes' own.
		create(t, c, &unstructured.Unstructured{Object: map[string]any{
			"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
			"metadata": map[string]any{"name": plural + "." + group, "annotations": map[string]any{"api-approved.kubernetes.io": "unapproved, a test's"}},
			"spec": map[string]any{"group": group, "scope": "Namespaced",
				"names": map[string]any{"plural": plural, "kind": kind},
				"versions": []any{map[string]any{"name": "v1", "served": true, "storage": true,
					"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}}}})
		create(t, c, &rbacv1.ClusterRole{
			ObjectMeta: metav1.ObjectMeta{Name: plural, Labels: map[string]string{"rbac.authorization.k8s.io/aggregate-to-view": "true"}},
			Rules:      []rbacv1.PolicyRule{{APIGroups: []string{group}, Resources: []string{plural}, Verbs: []string{"get", "list"}}},
		})
	}
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
		must.Do(t, admin.Status().Update(t.Context(), bound))
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

	group := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "scheduling.x-k8s.io/v1", "kind": "PodGroup",
		"metadata": map[string]any{"namespace": "team-a", "name": "gang"}, "spec": map[string]any{"minMember": int64(3)}}}
	await(t, func() bool { return client.IgnoreAlreadyExists(admin.Create(t.Context(), group)) == nil }, func() any { return "the kind PodGroup is not served" })
	class := "fast"
	claim := &corev1.PersistentVolumeClaim{ObjectMeta: in("data", nil, sets), Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class,
		AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
		Resources:   corev1.VolumeResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}}}}
	create(t, admin, claim)
	says(t, admin, "PersistentVolumeClaim", "v1", claim, "ProvisioningFailed", "persistentvolume-controller", "storageclass \"fast\" not found")
	member := pod("", shares)
	member.ObjectMeta = in("gang-a", nil, sets)
	member.Labels, member.Annotations = map[string]string{"scheduling.x-k8s.io/pod-group": "gang"}, map[string]string{v1alpha1.AnnotationShares: shares,
		v1alpha1.AnnotationPlacement: `{"version":"v1alpha1","node":"gpu-1","containers":{"main":{"mode":"limiter","devices":[{"uuid":"` + gpuA + `","core":90,"memMiB":20480}]}}}`}
	member.Spec.SchedulingGates, member.Spec.Volumes = nil, []corev1.Volume{{Name: "data", VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: "data"}}}}
	create(t, admin, member)
	database := &appsv1.StatefulSet{ObjectMeta: in("db", nil, sets), Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template}}
	create(t, admin, database)
	database.Status.UpdateRevision = "db-2"
	must.Do(t, admin.Status().Update(t.Context(), database))
	first := pod("", shares)
	first.ObjectMeta = in("db-0", database, appsv1.SchemeGroupVersion.WithKind("StatefulSet"))
	first.Labels, first.Annotations = map[string]string{appsv1.ControllerRevisionHashLabelKey: "db-1"}, map[string]string{v1alpha1.AnnotationShares: shares}
	create(t, admin, first)

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
		"2 pods, such as team-a/server-a: it waits for a place", "The allocator's last event, ", " ago: needs 90 % compute",
		"Pod team-a/server-c: it is on node gpu-1, pending; the kubelet says: FailedCreatePodSandBox: Failed to create pod sandbox: no network")
	if strings.Contains(text, "revision 1") {
		t.Errorf("a ReplicaSet that the Deployment has replaced is blamed:\n%s", text)
	}
	why("gang-a", "PodGroup team-a/gang has fallen below its minimum: 1 of the 3 pods that start together (spec.minMember) are left; create 2 more",
		"PersistentVolumeClaim data is not bound: its storage class fast has made no PersistentVolume; its last event: ProvisioningFailed: storageclass \"fast\" not found")
	if _, errOut, _ := vernier(t, config, "ann", "-n team-a why gang-a"); !strings.Contains(errOut, `left out: what else may keep it from starting: storageclasses.storage.k8s.io "fast" is forbidden`) {
		t.Errorf("that storage classes may not be read: %q", errOut)
	}
	why("db-0", "it has an earlier template of StatefulSet/db (db-1, now db-2), which replaces no pod before all are ready")
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
	must.Do(t, admin.Get(t.Context(), client.ObjectKey{Name: "gpu-1"}, l))
	l.Status.Devices = []v1alpha1.DeviceStatus{{UUID: gpuA, Model: "NVIDIA A100-SXM4-80GB", Mem: 81920, MIG: v1alpha1.MIGDisabled, Healthy: true}}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.Now()}}
	must.Do(t, admin.Status().Update(t.Context(), l))
	config := kubeconfig(t, cfg)
	const fit = "fit -f testdata/pod.yaml"

	grant(t, admin, "bob", "vernier-viewer")
	var out, errOut string
	var err error
	await(t, func() bool { out, errOut, err = vernier(t, config, "bob", fit); return err == nil }, func() any { return err })
	if !strings.Contains(out, "fits now, on 1 node") || !strings.Contains(errOut, "were not asked: you may not list and watch") || !strings.Contains(errOut, "vernier-fit") ||
		!strings.Contains(errOut, "Room that is reserved for others is not counted: you may not list events and pods in all namespaces") {
		t.Errorf("without the role: stderr %q, stdout\n%s", errOut, out)
	}
	if !strings.Contains(errOut, "Quotas, LimitRanges and policies were not asked: you may not create pods in namespace default.") {
		t.Errorf("without the right to create pods: stderr %q", errOut)
	}
	create(t, admin, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "creator"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"create"}}}})
	grant(t, admin, "bob", "creator")
	grant(t, admin, "bob", "vernier-fit")
	await(t, func() bool { out, errOut, err = vernier(t, config, "bob", fit); return errOut == "" }, func() any { return errOut })
	if errorText(err) != "1 of 1 pods would wait or be refused" || !strings.Contains(out, "the scheduler refuses 1 node(s) with room, such as gpu-1: node(s) had untolerated taint ") {
		t.Errorf("with the role: error %v, stdout\n%s", err, out)
	}
	file := filepath.Join(t.TempDir(), "x.yaml")
	must.Do(t, os.WriteFile(file, []byte(asking("Deployment", "a", "replicas: 3, ", "30")), 0o600))
	if _, errOut, _ = vernier(t, config, "bob", "fit -f "+file); !strings.Contains(errOut, "one pod of each object: you may not list those of namespace default.") {
		t.Errorf("without the right to list quotas: stderr %q", errOut)
	}
	create(t, admin, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "quotas"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"resourcequotas"}, Verbs: []string{"list"}}}})
	grant(t, admin, "bob", "quotas")
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "two"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"requests.vernier.dev/gpu-core": resource.MustParse("70")}}}
	create(t, admin, quota)
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{"requests.vernier.dev/gpu-core": resource.MustParse("0")}}
	must.Do(t, admin.Status().Update(t.Context(), quota))
	await(t, func() bool {
		out, errOut, err = vernier(t, config, "bob", "fit -f "+file)
		return errOut == "" && strings.Contains(out, "; ResourceQuota two has room for 2 of 3 pods (requests.vernier.dev/gpu-core)")
	}, func() any { return out + errOut })
	must.Do(t, admin.Delete(t.Context(), quota))
	create(t, admin, &corev1.LimitRange{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "small"}, Spec: corev1.LimitRangeSpec{Limits: []corev1.LimitRangeItem{
		{Type: corev1.LimitTypeContainer, Max: corev1.ResourceList{v1alpha1.ResourceCore: resource.MustParse("5")}}}}})
	await(t, func() bool {
		out, errOut, err = vernier(t, config, "bob", fit)
		return strings.Contains(out, "Pod/small: would be refused: pods \"fit-")
	}, func() any { return out + errOut })
	if errorText(err) != "1 of 1 pods would wait or be refused" || !strings.Contains(out, "maximum vernier.dev/gpu-core usage per Container is 5, but limit is 30") {
		t.Errorf("with a LimitRange: error %v, stdout\n%s", err, out)
	}
	var pods corev1.PodList
	must.Do(t, admin.List(t.Context(), &pods, client.InNamespace("default")))
	if slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return strings.HasPrefix(p.Name, "fit-") }) {
		t.Error("fit has created a pod")
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
	must.Do(t, clientcmd.WriteToFile(*c, file))
	return file
}
