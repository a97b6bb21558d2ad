// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package cli

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// TestOnAPIServer: the field selectors, the viewer's role and the errors are
// those of a real API server.
func TestOnAPIServer(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"rbac/viewer.yaml", "rbac/operator.yaml"}})
	admin := apiserver.Client(t, cfg)
	create(t, admin, &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"},
		Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{{UUID: gpuA, Core: 100, Mem: 81920,
			Slices: []v1alpha1.Slice{{Pod: "uid", Owner: "default/train", Ctr: "main", Core: 30, Mem: 20480}}}}}})
	create(t, admin, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: "default"}})
	waiting := pod("waiting", `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":90,"memPercent":50}}}`)
	create(t, admin, waiting)
	for name, e := range map[string]corev1.Event{
		"by-source":     {Source: corev1.EventSource{Component: eventSource}, LastTimestamp: metav1.NewTime(time.Now().Add(-time.Minute)), Message: "an older verdict"},
		"by-controller": {ReportingController: eventSource, ReportingInstance: "a", Action: "Place", EventTime: metav1.NowMicro(), Message: "needs 90 % compute"},
		"foreign":       {Source: corev1.EventSource{Component: "other"}, LastTimestamp: metav1.NewTime(time.Now().Add(time.Hour)), Message: "foreign"},
	} {
		e.Name, e.Namespace, e.Reason, e.Type = name, "default", "DoesNotFit", corev1.EventTypeWarning
		e.InvolvedObject = corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: "default", Name: waiting.Name, UID: waiting.UID}
		create(t, admin, &e)
	}
	// No controller runs here that would aggregate these into view.
	grant(t, admin, "ann", "vernier-viewer", "system:aggregate-to-view")
	grant(t, admin, "eve", "system:aggregate-to-view")

	ann := reader(t, apiserver.As(cfg, "ann", "system:authenticated"))
	expect(t, ann, "slices -A", "train", "20480", "granted")
	// What is true now is shown, and the event beside it.
	expect(t, ann, "waiting -n default", "90% core + 50% mem", "the node agent has not reported yet")
	expect(t, ann, "waiting -n default -o json", "needs 90 % compute")
	expect(t, ann, "waiting -n kube-system -o json", `"items": []`)
	expect(t, ann, "", "NODES", "DEVICES", "SLICES in namespace default", "the node agent has not reported yet")
	expect(t, ann, "-o json", "needs 90 % compute")

	eve := reader(t, apiserver.As(cfg, "eve", "system:authenticated"))
	expectError(t, eve, "devices", `User "eve" cannot list resource "sliceledgers"`, "--clusterrole=vernier-viewer")
	nobody := reader(t, apiserver.As(cfg, "nobody", "system:authenticated"))
	expectError(t, nobody, "waiting -A", `cannot list resource "pods"`, "list pods in all namespaces")

	// With the viewer's role alone the chart's prices are read, and no other ConfigMap there.
	create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: v1alpha1.SystemNamespace}})
	prices := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: pricesName}, Data: map[string]string{pricesKey: "A100=cheap"}}
	create(t, admin, prices)
	grant(t, admin, "bea", "vernier-viewer")
	bea := reader(t, apiserver.As(cfg, "bea", "system:authenticated"))
	expectError(t, bea, "usage -A", "configmap/"+pricesName+` "A100=cheap"`)
	if err := bea.Get(t.Context(), client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: "kube-root-ca.crt"}, prices); !apierrors.IsForbidden(err) {
		t.Errorf("another ConfigMap: %v", err)
	}

	// With the operator's role a device is cordoned under one's own name, and drained.
	grant(t, admin, "ops", "vernier-operator")
	train := pod("train", "")
	train.Annotations, train.Spec.SchedulingGates = nil, nil
	create(t, admin, train)
	ops := reader(t, apiserver.As(cfg, "ops", "system:authenticated"))
	expect(t, ops, "cordon gpu-1/"+gpuA+" --reason fans", gpuA+") cordoned")
	l := &v1alpha1.SliceLedger{}
	must.Do(t, admin.Get(t.Context(), client.ObjectKey{Name: "gpu-1"}, l))
	if c := l.Spec.Cordon(gpuA); c == nil || c.By != "ops" || c.Reason != "fans" || c.Since.IsZero() || len(l.Spec.Devices[0].Slices) != 1 {
		t.Errorf("the ledger says %+v", l.Spec)
	}
	l.Spec.Devices[0].Slices[0].Pod = train.UID
	must.Do(t, admin.Update(t.Context(), l))
	expectError(t, ops, "drain gpu-1/"+gpuA, "--force to override): default/train")
	expect(t, ops, "drain --force --dry-run=server gpu-1/"+gpuA, "evicting pod default/train (server dry run)")
	expect(t, ops, "uncordon gpu-1/"+gpuA, ") uncordoned")
	expectError(t, ann, "cordon gpu-1/"+gpuA, `User "ann" cannot patch resource "sliceledgers"`, "--clusterrole=vernier-operator")
	guard(t, admin, train)
	expectError(t, ops, "drain --force --dry-run=server gpu-1/"+gpuA, "pod default/train: Cannot evict pod as it would violate the pod's disruption budget")
	// A second may be too short for the first try.
	var said string
	await(t, func() bool {
		var err error
		_, said, err = run(t, ops, "drain --force --timeout 1s gpu-1/"+gpuA)
		return strings.Contains(said, "disruption budget") && strings.Contains(errorText(err), "stays cordoned and is not empty")
	}, func() any { return "what a PodDisruptionBudget is against is not said: " + said })

	crd := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "sliceledgers." + v1alpha1.Group}}
	crd.SetGroupVersionKind(schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"})
	must.Do(t, admin.Delete(t.Context(), crd))
	expectError(t, ann, "nodes", "is Vernier installed?")
}

func pod(name, shares string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default",
			Annotations: map[string]string{v1alpha1.AnnotationShares: shares}},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}},
			Containers:      []corev1.Container{{Name: "main", Image: "none"}},
		},
	}
}

// guard makes the pod one that runs, with a PodDisruptionBudget that lets nobody evict
// it. The controller that would count does not run here.
func guard(t *testing.T, c client.Client, p *corev1.Pod) {
	t.Helper()
	binding := &corev1.Binding{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}, Target: corev1.ObjectReference{Kind: "Node", Name: "gpu-1"}}
	p.Status.Phase, p.Status.Conditions = corev1.PodRunning, []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	budget := &policyv1.PodDisruptionBudget{
		ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name},
		Spec:       policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(1)), Selector: &metav1.LabelSelector{}},
	}
	must.Do(t, errors.Join(
		c.SubResource("binding").Create(t.Context(), p.DeepCopy(), binding),
		c.Create(t.Context(), budget),
	))
	p.ResourceVersion = ""
	budget.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: budget.Generation, CurrentHealthy: 1, DesiredHealthy: 1, ExpectedPods: 1}
	must.Do(t, errors.Join(c.Status().Update(t.Context(), p), c.Status().Update(t.Context(), budget)))
}

func create(t *testing.T, c client.Client, o client.Object) {
	t.Helper()
	must.Do(t, client.IgnoreAlreadyExists(c.Create(t.Context(), o)))
}

func grant(t *testing.T, c client.Client, user string, roles ...string) {
	t.Helper()
	for _, role := range roles {
		create(t, c, &rbacv1.ClusterRoleBinding{
			ObjectMeta: metav1.ObjectMeta{Name: user + "-" + role},
			RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role},
			Subjects:   []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: user}},
		})
	}
}

func reader(t *testing.T, cfg *rest.Config) client.Client {
	t.Helper()
	r := must.Get(newClient(cfg))(t)
	return onServer{r, cfg}
}

// onServer evicts pods at the same API server.
type onServer struct {
	client.Client
	cfg *rest.Config
}

func (s onServer) clientset() (kubernetes.Interface, error) { return kubernetes.NewForConfig(s.cfg) }

// expect waits for the output: RBAC rules take effect from the API server's
// watch, a moment after they are stored.
func expect(t *testing.T, r client.Client, args string, parts ...string) {
	t.Helper()
	var out string
	var err error
	await(t, func() bool {
		out, _, err = run(t, r, args)
		return err == nil
	}, func() any { return err })
	for _, part := range parts {
		if !strings.Contains(out, part) {
			t.Errorf("kubectl vernier %s does not print %q:\n%s", args, part, out)
		}
	}
}

func expectError(t *testing.T, r client.Client, args string, parts ...string) {
	t.Helper()
	var last error
	await(t, func() bool {
		_, _, last = run(t, r, args)
		for _, part := range parts {
			if last == nil || !strings.Contains(last.Error(), part) {
				return false
			}
		}
		return true
	}, func() any { return last })
}

func await(t *testing.T, ok func() bool, last func() any) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, 90*time.Second, true,
		func(context.Context) (bool, error) { return ok(), nil })
	if err != nil {
		t.Fatalf("not within 90 s; last: %v", last())
	}
}
