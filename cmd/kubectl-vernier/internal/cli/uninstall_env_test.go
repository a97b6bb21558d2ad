// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package cli

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// On an API server whose policies keep the gate: it comes off, and no other; what nodes advertise goes, those of
// classes included, and no other; the definitions go, and a second run finds nothing to do.
func TestUninstallOnAPIServer(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "admission/policy.yaml", "admission/node-policy.yaml", "rbac/viewer.yaml"}})
	admin := apiserver.Client(t, cfg)
	create(t, admin, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}}})
	waits := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "waiting", Namespace: "team", Annotations: map[string]string{
			v1alpha1.AnnotationShares:          `{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":30,"memPercent":30}}}`,
			v1alpha1.AnnotationRequiredPlugins: v1alpha1.RequiredPluginsValue,
		}},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/other"}, {Name: v1alpha1.Gate}},
			Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{v1alpha1.ResourceCore: resource.MustParse("30")}}}},
		},
	}
	for _, ns := range []string{"team", v1alpha1.SystemNamespace} {
		create(t, admin, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default", Namespace: ns}})
	}
	create(t, admin, waits)
	for _, object := range apiserver.Manifests(t, "admission/webhook.yaml") {
		create(t, admin, object)
	}
	one := resource.MustParse("1")
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "gpus"}}
	create(t, admin, node)
	node.Status.Capacity = corev1.ResourceList{"cpu": one, v1alpha1.ResourceCore: one, v1alpha1.ClassResource("gold"): one, "vernier.example.com/gpu-gold": one}
	must.Do(t, admin.Status().Update(t.Context(), node))

	// No controller empties a namespace here.
	emptied := make(chan error, 1)
	go func() {
		set, err := kubernetes.NewForConfig(cfg)
		if err != nil {
			emptied <- err
			return
		}
		ns := &corev1.Namespace{}
		err = wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, time.Minute, true, func(ctx context.Context) (bool, error) {
			return ns.DeletionTimestamp != nil, admin.Get(ctx, client.ObjectKey{Name: v1alpha1.SystemNamespace}, ns)
		})
		if err == nil {
			ns.Spec.Finalizers = nil
			_, err = set.CoreV1().Namespaces().Finalize(t.Context(), ns, metav1.UpdateOptions{})
		}
		emptied <- err
	}()
	r := reader(t, cfg)
	if out, errOut, err := run(t, r, "uninstall --yes --timeout 90s"); err != nil {
		t.Fatalf("%v\n%s%s", err, out, errOut)
	}
	must.Do(t, <-emptied)
	must.Do(t, admin.Get(t.Context(), client.ObjectKeyFromObject(waits), waits))
	if gates := waits.Spec.SchedulingGates; len(gates) != 1 || gates[0].Name != "example.com/other" {
		t.Errorf("the pod's gates are %v, want the other one alone", gates)
	}
	must.Do(t, admin.Get(t.Context(), client.ObjectKeyFromObject(node), node))
	if len(node.Status.Capacity) != 2 || len(v1alpha1.Ours(node.Status.Capacity)) > 0 {
		t.Errorf("the node has %v", node.Status.Capacity)
	}
	await(t, func() bool { return apierrors.IsNotFound(admin.List(t.Context(), &v1alpha1.SliceLedgerList{})) }, func() any { return "there are ledgers still" })
	if out, _, err := run(t, r, "uninstall --yes"); err != nil || out != isLeft+"\n" {
		t.Errorf("the second time: %v\n%s", err, out)
	}
}
