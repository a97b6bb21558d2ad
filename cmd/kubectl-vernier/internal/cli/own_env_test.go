// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package cli

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// TestNamespaceUser: a user with a RoleBinding to view in one namespace, and nothing else,
// sees the namespace's slices and waiting pods, and is told what is left out.
func TestNamespaceUser(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"rbac/viewer.yaml"}})
	admin := apiserver.Client(t, cfg)
	makeKinds(t, admin)
	aggregateView(t, admin)
	create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team-a"}})
	create(t, admin, &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Namespace: "team-a", Name: "ann"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "ann"}},
	})
	for _, ns := range []string{"team-a", "default"} {
		create(t, admin, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: ns}})
		train := pod("train", "")
		train.Namespace, train.Spec.SchedulingGates = ns, nil
		train.Annotations = map[string]string{v1alpha1.AnnotationPlacement: `{"version":"v1alpha1","node":"gpu-1","containers":{` +
			`"main":{"mode":"limiter","devices":[{"uuid":"` + gpuA + `","core":30,"memMiB":20480}]},` +
			`"prepare":{"mode":"limiter","devices":[{"uuid":"` + gpuA + `","core":30,"memMiB":20480}]}}}`}
		train.Spec.InitContainers = []corev1.Container{{Name: "prepare", Image: "none"}}
		create(t, admin, train)
		train.Status = corev1.PodStatus{Phase: corev1.PodRunning,
			InitContainerStatuses: []corev1.ContainerStatus{{Name: "prepare", State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: "Completed", ContainerID: "containerd://a"}}}},
			ContainerStatuses:     []corev1.ContainerStatus{{Name: "main", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}}}
		must.Do(t, admin.Status().Update(t.Context(), train))
		waits := pod("waits", `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":90,"memPercent":50}}}`)
		waits.Namespace = ns
		create(t, admin, waits)
		create(t, admin, &corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "waits"}, Reason: "VernierWaiting", Type: corev1.EventTypeWarning,
			InvolvedObject: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: ns, Name: waits.Name, UID: waits.UID},
			Source:         corev1.EventSource{Component: eventSource}, LastTimestamp: metav1.Now(), Message: "needs 90 % compute"})
	}
	create(t, admin, &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"},
		Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{{UUID: gpuA, Core: 100, Mem: 81920}}}})

	ann := reader(t, apiserver.As(cfg, "ann", "system:authenticated"))
	shows := func(args, note string, parts ...string) {
		t.Helper()
		expect(t, ann, args, parts...)
		out, errOut, err := run(t, ann, args)
		if err != nil || strings.Contains(out, "default") || !strings.Contains(errOut, note) || (note == "") != (errOut == "") {
			t.Errorf("%s: error %v, stderr %q, stdout\n%s", args, err, errOut, out)
		}
	}
	shows("-n team-a", "left out: nodes, devices, guarantees", "SLICES in namespace team-a", "20480", "attached", "finished", "needs 90 % compute")
	shows("slices -n team-a", "--clusterrole=vernier-viewer", "20480", "attached", "finished")
	shows("waiting -n team-a", "", "needs 90 % compute")
	shows("why waits -n team-a", "left out: what nodes have for the pod", "Pod team-a/waits: it waits for a place", "needs 90 % compute")
	expectError(t, ann, "fit -f testdata/pod.yaml -n team-a", "ledgers are cluster-wide", "vernier-viewer")
	if out, _, _ := run(t, ann, "fit -f testdata/pod.yaml -n team-a"); out != "Pod/small: would be admitted; whether there is room is not known\n" {
		t.Errorf("fit without ledgers prints %q", out)
	}
	expectError(t, ann, "devices", "a RoleBinding in a namespace does not", "vernier-viewer")
	expectError(t, ann, "slices -A", "list pods in all namespaces", "-n NAME")
	expectError(t, ann, "waiting -n default", "list pods in namespace default")
	t.Run("workloads", func(t *testing.T) { testWorkloads(t, cfg, admin) })
	t.Run("fit", func(t *testing.T) { testFit(t, cfg, admin) })
}

// aggregateView gives the cluster role view its rules, as the controller that does not run
// here would.
func aggregateView(t *testing.T, c client.Client) {
	t.Helper()
	view := &rbacv1.ClusterRole{}
	must.Do(t, c.Get(t.Context(), types.NamespacedName{Name: "view"}, view))
	var parts rbacv1.ClusterRoleList
	must.Do(t, c.List(t.Context(), &parts, client.MatchingLabels{"rbac.authorization.k8s.io/aggregate-to-view": "true"}))
	for _, part := range parts.Items {
		view.Rules = append(view.Rules, part.Rules...)
	}
	if len(parts.Items) < 2 {
		t.Fatalf("%d roles go into view", len(parts.Items))
	}
	must.Do(t, c.Update(t.Context(), view))
}
