// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	admission "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook"
	"vernier.dev/vernier/webhook/fleet"
)

func TestAdmission(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{
		"namespace.yaml", "rbac/webhook.yaml", "admission/policy.yaml", "admission/webhook-policy.yaml"}})
	c := apiserver.Client(t, cfg)
	namespaces(t, c)
	at := address(t)
	install(t, cfg, at)

	t.Run("down", func(t *testing.T) { testDown(t, c, kubelet(t, cfg)) })

	start(t, cfg, at, webhook.Options{})
	await(t, "a pod is admitted", func() bool { return c.Create(t.Context(), asking(enabled), client.DryRunAll) == nil })
	t.Run("admitted", func(t *testing.T) { testAdmitted(t, c) })
	t.Run("managed fields", func(t *testing.T) { testManagedFields(t, c) })
	t.Run("refused", func(t *testing.T) { testRefused(t, c) })
	t.Run("warnings", func(t *testing.T) { testWarnings(t, cfg) })
	t.Run("classes", func(t *testing.T) { testClasses(t, c) })
	t.Run("room", func(t *testing.T) { testRoom(t, cfg) })
	t.Run("limits", func(t *testing.T) { testLimits(t, c) })
	t.Run("idle slice", func(t *testing.T) { testIdleSlice(t, c) })
	t.Run("limit ranges", func(t *testing.T) { testLimitRanges(t, cfg) })
	t.Run("reinvocation", func(t *testing.T) { testReinvocation(t, c) })
}

// Invariant 5: with the webhook down, pods that ask for nothing are created at
// once, in every namespace; one that asks is refused rather than created without
// its share. A static pod that asks runs already: its kubelet may show it.
func testDown(t *testing.T, c, kubelet client.Client) {
	// The API server takes up the configuration from its watch.
	await(t, "the configuration is in force", func() bool {
		err := c.Create(t.Context(), asking(enabled), client.DryRunAll)
		return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "pods.vernier.dev")
	})
	full := plain(enabled)
	full.Annotations = map[string]string{"example.com/a": "b", api.AnnotationMode: "auto", api.AnnotationPolicy: "", api.AnnotationTopology: "",
		api.AnnotationQoS: "", api.AnnotationBurst: "", api.AnnotationGPUModel: "", api.AnnotationGPUUUID: "", api.AnnotationSameGPU: ""}
	full.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/gate"}}
	full.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "none", Resources: corev1.ResourceRequirements{
		Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}}
	none, noneElsewhere := plain(enabled), plain(other)
	for _, pod := range []*corev1.Pod{none, noneElsewhere} {
		pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{api.ResourceCore: resource.MustParse("0"), api.ResourceMemMiB: resource.MustParse("0Gi")}
	}
	for name, pod := range map[string]*corev1.Pod{"enabled": plain(enabled), "not enabled": plain(other), "with all of it": full,
		"for 0": none, "for 0 where it is not enabled": noneElsewhere} {
		expect(t, c.Create(t.Context(), pod), "")
		if t.Failed() {
			t.Fatal(name)
		}
	}
	expect(t, kubelet.Create(t.Context(), static(asking(enabled), nil)), "")
	faked := static(asking(enabled), nil)
	init := plain(enabled)
	init.Spec.InitContainers = asking(enabled).Spec.Containers
	forged := plain(enabled)
	forged.Annotations = map[string]string{api.AnnotationShares: shares}
	gated := plain(enabled)
	gated.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: api.Gate}}
	misspelt := plain(enabled)
	misspelt.Annotations = map[string]string{api.Prefix + "gpu-cor": "30"}
	for name, pod := range map[string]*corev1.Pod{"misspelt": misspelt, "asks": asking(enabled), "asks in an init container": init, "forged": forged, "gated": gated, "static, by somebody else": faked} {
		if err := c.Create(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func testAdmitted(t *testing.T, c client.Client) {
	pod := asking(enabled)
	expect(t, c.Create(t.Context(), pod), "")
	if got := pod.Annotations[api.AnnotationShares]; got != shares {
		t.Errorf("shares %s, want %s", got, shares)
	}
	if got := pod.Annotations[api.AnnotationRequiredPlugins]; got != api.RequiredPluginsValue {
		t.Errorf("required plugins %s", got)
	}
	if !slices.Equal(pod.Spec.SchedulingGates, []corev1.PodSchedulingGate{{Name: api.Gate}}) {
		t.Errorf("gates %v", pod.Spec.SchedulingGates)
	}
	// The request stays: quotas count it.
	if q := pod.Spec.Containers[0].Resources.Requests[api.ResourceCore]; q.Value() != 30 {
		t.Errorf("requests %v", pod.Spec.Containers[0].Resources.Requests)
	}
	untouched := plain(enabled)
	expect(t, c.Create(t.Context(), untouched), "")
	if len(untouched.Annotations) > 0 || len(untouched.Spec.SchedulingGates) > 0 {
		t.Errorf("a pod that asks for nothing was changed: %v", untouched)
	}
}

// The API server records who wrote which field of a pod, whether it is created or applied.
// A pod that was created can be applied later, and an applied one again.
func testManagedFields(t *testing.T, c client.Client) {
	check := func(pod *corev1.Pod, manager, label string) {
		t.Helper()
		if !slices.ContainsFunc(pod.ManagedFields, func(e metav1.ManagedFieldsEntry) bool { return e.Manager == manager }) || pod.Labels["a"] != label ||
			pod.Annotations[api.AnnotationShares] == "" {
			t.Errorf("managed fields %v, want some of %s; labels %v, annotations %v", pod.ManagedFields, manager, pod.Labels, pod.Annotations)
		}
	}
	created := asking(enabled)
	expect(t, c.Create(t.Context(), created, client.FieldOwner("creator")), "")
	expect(t, patch(t, c, created, `{"metadata":{"labels":{"a":"b"}}}`), "")
	expect(t, c.Get(t.Context(), client.ObjectKeyFromObject(created), created), "")
	check(created, "creator", "b")
	for _, name := range []string{"applied", created.Name} {
		for _, label := range []string{"b", "c"} {
			pod := &corev1.Pod{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
				ObjectMeta: metav1.ObjectMeta{Namespace: enabled, Name: name, Labels: map[string]string{"a": label}}, Spec: asking(enabled).Spec}
			text, err := json.Marshal(pod)
			expect(t, err, "")
			expect(t, c.Patch(t.Context(), pod, client.RawPatch(types.ApplyPatchType, text), client.FieldOwner("owner"), client.ForceOwnership), "")
			check(pod, "owner", label)
		}
	}
}

func testRefused(t *testing.T, c client.Client) {
	pod := asking(enabled)
	pod.Annotations = map[string]string{api.AnnotationPlacement: "{}"}
	pod.Spec.HostPID = true
	err := c.Create(t.Context(), pod)
	if !apierrors.IsInvalid(err) {
		t.Fatalf("got %v, want it invalid", err)
	}
	expect(t, err, `admission webhook "pods.vernier.dev" denied the request`)
	expect(t, err, "metadata.annotations[vernier.dev/placement]: Forbidden: only Vernier writes it")
	expect(t, err, "spec.hostPID: Forbidden")
	status := err.(apierrors.APIStatus).Status()
	if len(status.Details.Causes) != 2 {
		t.Errorf("causes %v", status.Details.Causes)
	}
	apart := asking(enabled)
	apart.Annotations = map[string]string{api.AnnotationSameGPU: api.SameGPURequired}
	apart.Spec.Containers = append(apart.Spec.Containers, *apart.Spec.Containers[0].DeepCopy())
	apart.Spec.Containers[1].Name = "second"
	apart.Spec.Containers[1].Resources.Limits = corev1.ResourceList{api.ResourceCore: resource.MustParse("71")}
	expect(t, c.Create(t.Context(), apart), "annotations[vernier.dev/same-gpu]: Invalid value")
	expect(t, c.Create(t.Context(), asking(other)), `run "kubectl label namespace other vernier.dev/inject=enabled"`)
}

// warnings collects what the API server tells a client.
// warnings are those that came, and apart from them what dry runs are answered of room.
type warnings struct{ texts, rooms []string }

func (w *warnings) HandleWarningHeader(_ int, _ string, text string) {
	if _, is := fleet.ParseRoom(text); is {
		w.rooms = append(w.rooms, text)
		return
	}
	w.texts = append(w.texts, text)
}

func testWarnings(t *testing.T, cfg *rest.Config) {
	heard := &warnings{}
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler = heard
	c := apiserver.Client(t, cfg)
	ledger := &api.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"}}
	must.Do(t, c.Create(t.Context(), ledger))
	ledger.Status.Devices = []api.DeviceStatus{{UUID: "GPU-1", Model: "A100", Mem: 81920}}
	must.Do(t, c.Status().Update(t.Context(), ledger))
	pod := asking(enabled)
	pod.Spec.Containers[0].Resources.Limits[api.ResourceGPUs] = resource.MustParse("2")
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: api.EnvVisibleDevices, Value: "all"}}
	const absent = "GPU-00000000-0000-0000-0000-000000000000"
	pod.Annotations = map[string]string{api.AnnotationTopology: "numa:required", api.AnnotationGPUModel: "H1000", api.AnnotationGPUUUID: absent}
	await(t, "the ledger is known", func() bool {
		heard.texts = nil
		expect(t, c.Create(t.Context(), pod.DeepCopy(), client.DryRunAll), "")
		return strings.Contains(strings.Join(heard.texts, "\n"), "no node has more than 1")
	})
	all := strings.Join(heard.texts, "\n")
	for _, want := range []string{"spec.containers[0].env[NVIDIA_VISIBLE_DEVICES]: removed", "metadata.annotations[vernier.dev/topology]: needs GPUs of one NUMA node, and no node's driver reports any: the pod waits until one does",
		"metadata.annotations[vernier.dev/gpu-model]: no GPU is H1000, there are 1 x A100: the pod waits until there is one that it may use",
		"metadata.annotations[vernier.dev/gpu-uuid]: no GPU is " + absent + ": the pod waits"} {
		if !strings.Contains(all, want) {
			t.Errorf("warnings %q do not say %q", all, want)
		}
	}
}

// A webhook that runs after ours changes the request: ours is called again, and
// the pod is created with the shares of the request that it has.
func testReinvocation(t *testing.T, c client.Client) {
	const limits = "/spec/containers/0/resources/limits/vernier.dev~1gpu-core"
	const requests = "/spec/containers/0/resources/requests/vernier.dev~1gpu-core"
	changer(t, c, "raise", `[{"op":"replace","path":"`+limits+`","value":"60"},{"op":"replace","path":"`+requests+`","value":"60"}]`, `"vernier.dev/gpu-core":"60"`)
	changer(t, c, "strip", `[{"op":"remove","path":"`+limits+`"},{"op":"remove","path":"`+requests+`"}]`, `"vernier.dev/gpu-core":"60"`)
	var raised *corev1.Pod
	await(t, "the other webhook is in force", func() bool {
		raised = asking(enabled)
		raised.Labels = map[string]string{"change": "raise"}
		expect(t, c.Create(t.Context(), raised), "")
		q := raised.Spec.Containers[0].Resources.Limits[api.ResourceCore]
		return q.Value() == 60
	})
	doc, err := api.ParseShares(raised.Annotations[api.AnnotationShares])
	if err != nil || doc.Containers["train"] != (api.Share{GPUs: 1, Core: 60, MemPercent: 60}) {
		t.Errorf("shares %s after a change to 60: %v", raised.Annotations[api.AnnotationShares], err)
	}
	if len(raised.Spec.SchedulingGates) != 1 {
		t.Errorf("gates %v", raised.Spec.SchedulingGates)
	}
	await(t, "a pod whose request is taken away is refused", func() bool {
		stripped := asking(enabled)
		stripped.Labels = map[string]string{"change": "strip"}
		err := c.Create(t.Context(), stripped)
		return err != nil && strings.Contains(err.Error(), "vernier.dev/gpu only says over how many GPUs a share is spread: add vernier.dev/gpu-core")
	})
}

// changer installs a webhook that patches pods labelled change=name once, after
// ours: not those that have the text done in them.
func changer(t *testing.T, c client.Client, name, patch, done string) {
	t.Helper()
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		review := &admission.AdmissionReview{}
		if err := json.NewDecoder(r.Body).Decode(review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		review.Response = &admission.AdmissionResponse{UID: review.Request.UID, Allowed: true}
		if !bytes.Contains(review.Request.Object.Raw, []byte(done)) {
			kind := admission.PatchTypeJSONPatch
			review.Response.Patch, review.Response.PatchType = []byte(patch), &kind
		}
		review.Request = nil
		// A client that went away is told by its own error.
		_ = json.NewEncoder(w).Encode(review)
	}))
	t.Cleanup(server.Close)
	url, none, patience := server.URL, admissionv1.SideEffectClassNone, int32(longest)
	config := &admissionv1.MutatingWebhookConfiguration{
		// Webhooks run in the order of their configurations' names.
		ObjectMeta: metav1.ObjectMeta{Name: "zz-" + name},
		Webhooks: []admissionv1.MutatingWebhook{{
			Name: name + ".example.com", SideEffects: &none, AdmissionReviewVersions: []string{"v1"}, TimeoutSeconds: &patience,
			ObjectSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"change": name}},
			Rules: []admissionv1.RuleWithOperations{{Operations: []admissionv1.OperationType{admissionv1.Create},
				Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}}}},
			ClientConfig: admissionv1.WebhookClientConfig{URL: &url,
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})},
		}},
	}
	must.Do(t, c.Create(t.Context(), config))
}
