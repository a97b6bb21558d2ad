// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"maps"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/webhook"
	"vernier.dev/vernier/webhook/podtemplate"
)

// units asks for units of a class.
func units(class, n string) *corev1.Pod {
	pod := plain(enabled)
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{api.ClassResource(class): resource.MustParse(n)}
	return pod
}

// A class that has just been made is known within moments, and one that is gone is refused. A
// quota counts its units by their name, and what they amount to.
func testClasses(t *testing.T, c client.Client) {
	expect(t, c.Create(t.Context(), units("gold", "2")), `Unsupported value: "vernier.dev/gpu-gold"`)
	class := &api.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "gold"}, Spec: api.GPUClassSpec{
		Models: []string{"NVIDIA H100 80GB HBM3"}, Unit: api.GPUUnit{Core: 25, MemMiB: 20480}}}
	expect(t, c.Create(t.Context(), class), "")
	await(t, "the class is known", func() bool { return c.Create(t.Context(), units("gold", "2"), client.DryRunAll) == nil })

	// No controller runs that would fill in the status.
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: enabled, Name: "gold"}, Spec: corev1.ResourceQuotaSpec{
		Hard: corev1.ResourceList{"requests.vernier.dev/gpu-gold": resource.MustParse("3"), "requests.vernier.dev/gpu-core": resource.MustParse("75")}}}
	expect(t, c.Create(t.Context(), quota), "")
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{}}
	for name := range quota.Spec.Hard {
		quota.Status.Used[name] = resource.MustParse("0")
	}
	expect(t, c.Status().Update(t.Context(), quota), "")
	await(t, "the quota is in force", func() bool { return c.Create(t.Context(), units("gold", "4"), client.DryRunAll) != nil })

	pod := units("gold", "2")
	expect(t, c.Create(t.Context(), pod), "")
	want := corev1.ResourceList{api.ClassResource("gold"): resource.MustParse("2"), api.ResourceCore: resource.MustParse("50"),
		api.ResourceMemMiB: resource.MustParse("40960"), api.ResourceGPUs: resource.MustParse("1")}
	same := func(a, b resource.Quantity) bool { return a.Cmp(b) == 0 }
	if got := pod.Spec.Containers[0].Resources; !maps.EqualFunc(got.Limits, want, same) || !maps.EqualFunc(got.Requests, want, same) {
		t.Errorf("resources %v, want %v", got, want)
	}
	expect(t, c.Get(t.Context(), client.ObjectKeyFromObject(quota), quota), "")
	for name, used := range map[corev1.ResourceName]string{"requests.vernier.dev/gpu-gold": "2", "requests.vernier.dev/gpu-core": "50"} {
		if got := quota.Status.Used[name]; got.String() != used {
			t.Errorf("the quota counts %s of %s, want %s", got.String(), name, used)
		}
	}
	expect(t, c.Create(t.Context(), units("gold", "2")), "exceeded quota: gold")
	expect(t, c.Create(t.Context(), units("gold", "5")), "ask for 4 or 8")
	elsewhere := units("gold", "1")
	elsewhere.Namespace = other
	expect(t, c.Create(t.Context(), elsewhere), "is not enabled for Vernier")

	expect(t, c.Delete(t.Context(), class), "")
	expect(t, c.Delete(t.Context(), quota), "")
	await(t, "the class is gone", func() bool { return c.Create(t.Context(), units("gold", "1"), client.DryRunAll) != nil })
}

// A dry run is answered how much room there is by the ledgers of the moment, and which classes there are, for who
// may create pods in a namespace and nothing else. A second round of a pod that waits is answered likewise.
func testRoom(t *testing.T, cfg *rest.Config) {
	admin := apiserver.Client(t, cfg)
	expect(t, admin.Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: enabled, Name: "ann"},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "system:aggregate-to-edit"}, Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: "User", Name: "ann"}}}), "")
	class := &api.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "tin"}, Spec: api.GPUClassSpec{Models: []string{"A100"}, Unit: api.GPUUnit{Core: 50}}}
	expect(t, admin.Create(t.Context(), class), "")
	expect(t, client.IgnoreNotFound(admin.Delete(t.Context(), &api.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}})), "")
	ledger := &api.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "room"}}
	expect(t, admin.Create(t.Context(), ledger), "")
	ledger.Status.Devices = []api.DeviceStatus{{UUID: "GPU-2", Model: "A100", Mem: 81920, Healthy: true, MIG: api.MIGDisabled}}
	ledger.Status.Conditions = []metav1.Condition{{Type: api.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready", LastTransitionTime: metav1.Now()}}
	expect(t, admin.Status().Update(t.Context(), ledger), "")

	ann, heard := heeding(t, apiserver.As(cfg, "ann", "system:authenticated"))
	answers := func(pod *corev1.Pod, want string) {
		t.Helper()
		await(t, want, func() bool {
			heard.rooms = nil
			_ = ann.Create(t.Context(), pod.DeepCopy(), client.DryRunAll) // which may be refused, with warnings
			return slices.Contains(heard.rooms, want)
		})
	}
	answers(asking(enabled), "vernier.dev: room now for 3 pods like this one")
	answers(units("tin", "1"), "vernier.dev: room now for 2 pods like this one")
	answers(units("nit", "1"), "vernier.dev: room now for 2 units of GPUClass tin")
	ledger.Spec.Devices = []api.DeviceLedger{{UUID: "GPU-2", Core: api.WholeGPU, Mem: 81920, Slices: []api.Slice{{Pod: "uid", Owner: "secret/name", Ctr: "c", Core: 75, Mem: 1024}}}}
	expect(t, admin.Update(t.Context(), ledger), "")
	const full = "vernier.dev: room now for no pods like this one: InsufficientGPU: container train needs 30 % compute and 24,576 MiB on one GPU; nearest: room GPU 0 has 25 % and 80,896 MiB free"
	answers(asking(enabled), full)
	heard.rooms = nil
	waits := asking(enabled)
	expect(t, ann.Create(t.Context(), waits), "")
	if len(heard.rooms) > 0 {
		t.Errorf("what is no dry run is answered %q", heard.rooms)
	}
	again := plain(enabled)
	again.Annotations, again.Spec = waits.Annotations, *waits.Spec.DeepCopy()
	answers(again, full)
	expect(t, admin.Delete(t.Context(), class), "")
	ledger.Spec.Devices = nil
	expect(t, admin.Update(t.Context(), ledger), "")
	expect(t, admin.Delete(t.Context(), ledger), "")
}

// What a namespace gives to a container that asks for memory only is in the pod as the API
// server keeps it, and the policies agree; a namespace that requires compute has the pod refused.
func TestComputeShares(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/webhook.yaml", "admission/policy.yaml", "admission/webhook-policy.yaml"}})
	c := apiserver.Client(t, cfg)
	namespaces(t, c)
	const strict = "strict"
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: strict, Labels: map[string]string{api.LabelInject: api.LabelInjectEnabled}}}
	expect(t, c.Create(t.Context(), ns), "")
	at := address(t)
	install(t, cfg, at)
	start(t, cfg, at, webhook.Options{Settings: podtemplate.Settings{ComputeShares: "enabled=20,strict=required"}})
	await(t, "a pod is admitted", func() bool { return c.Create(t.Context(), asking(enabled), client.DryRunAll) == nil })

	memory := func(namespace string) *corev1.Pod {
		pod := asking(namespace)
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{api.ResourceMemPercent: resource.MustParse("150"), api.ResourceGPUs: resource.MustParse("2")}
		return pod
	}
	pod := memory(enabled)
	expect(t, c.Create(t.Context(), pod), "")
	for what, list := range map[string]corev1.ResourceList{"limits": pod.Spec.Containers[0].Resources.Limits, "requests": pod.Spec.Containers[0].Resources.Requests} {
		if q := list[api.ResourceCore]; q.Value() != 40 {
			t.Errorf("%s %v, want 40 %s", what, list, api.ResourceCore)
		}
	}
	if got, want := pod.Annotations[api.AnnotationShares], `{"version":"v1alpha1","containers":{"train":{"gpus":2,"core":20,"memPercent":75}}}`; got != want {
		t.Errorf("shares %s, want %s", got, want)
	}
	expect(t, c.Create(t.Context(), asking(strict)), "")
	expect(t, c.Create(t.Context(), memory(strict)), "container train asks for memory only, and namespace strict requires compute")
}
