// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook"
	"vernier.dev/vernier/webhook/dialect"
	"vernier.dev/vernier/webhook/podtemplate"
)

// With dialects switched on in the chart, the API server sends the webhook the
// pods of other systems, and creates them as pods of ours.
func TestDialects(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/webhook.yaml", "admission/policy.yaml", "admission/webhook-policy.yaml"}})
	c := apiserver.Client(t, cfg)
	namespaces(t, c)
	at := address(t)
	configure(t, cfg, at, charted(t, "admission/webhook.yaml", "dialects.enabled={"+strings.Join(dialect.Names(), ",")+"},dialects.nvidiaReplicas=4"))

	t.Run("down", func(t *testing.T) { testDialectsDown(t, c) })

	start(t, cfg, at, webhook.Options{Settings: podtemplate.Settings{Dialects: dialect.Settings{Dialects: "all", NVIDIAReplicas: 4}}})
	await(t, "a pod is admitted", func() bool { return c.Create(t.Context(), foreign("nvidia.com/gpu", "1"), client.DryRunAll) == nil })
	t.Run("created", func(t *testing.T) { testDialectsCreated(t, c) })
	t.Run("refused and warned", func(t *testing.T) { testDialectsRefused(t, cfg) })
	t.Run("workloads", func(t *testing.T) { testDialectsWorkloads(t, cfg) })
	t.Run("quota", func(t *testing.T) { testDialectsQuota(t, c) })
	t.Run("reinvocation", func(t *testing.T) { testDialectsReinvocation(t, c) })
}

// A dialect that only the flags name is noticed, with the rights of the webhook's own
// identity.
func TestHalfEnabledDialect(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/webhook.yaml", "admission/webhook-policy.yaml"}})
	at := address(t)
	install(t, cfg, at)
	start(t, cfg, at, webhook.Options{Settings: podtemplate.Settings{Dialects: dialect.Settings{Dialects: "gpu-manager"}}})
	await(t, "the metric counts the names that are not sent", func() bool {
		families := must.Get(metrics.Registry.Gather())(t)
		for _, f := range families {
			for _, m := range f.GetMetric() {
				if f.GetName() == "vernier_webhook_dialect_half_enabled" && m.GetLabel()[0].GetValue() == "match-condition" {
					return m.GetGauge().GetValue() == 2
				}
			}
		}
		return false
	})
}

// charted is a file of the chart, rendered with values.
func charted(t *testing.T, file, values string) []*unstructured.Unstructured {
	t.Helper()
	root := must.Get(manifests.Root())(t)
	cmd := exec.CommandContext(t.Context(), filepath.Join(root, "deploy/tools/helm"), "template", "vernier", filepath.Join(root, "deploy/chart"),
		"--namespace=vernier-system", "--show-only=templates/"+file, "--set="+values)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return must.Get(manifests.Parse(out))(t)
}

// foreign asks by limits of another system, in names and amounts.
func foreign(limits ...string) *corev1.Pod {
	pod := plain(enabled)
	list := corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}
	for i := 0; i < len(limits); i += 2 {
		list[corev1.ResourceName(limits[i])] = resource.MustParse(limits[i+1])
	}
	pod.Spec.Containers[0].Resources.Limits = list
	return pod
}

// Invariant 5: only pods of the dialects, in enabled namespaces, wait for the
// webhook.
func testDialectsDown(t *testing.T, c client.Client) {
	await(t, "the configuration is in force", func() bool {
		err := c.Create(t.Context(), asking(enabled), client.DryRunAll)
		return apierrors.IsInternalError(err) && strings.Contains(err.Error(), "pods.vernier.dev")
	})
	elsewhere := foreign("nvidia.com/gpu", "1")
	elsewhere.Namespace = other
	tolerant := plain(enabled)
	tolerant.Spec.Tolerations = []corev1.Toleration{{Key: "nvidia.com/gpu", Operator: "Exists"}}
	tolerant.Annotations = map[string]string{"example.com/gpu-fraction": "0.5"}
	for name, pod := range map[string]*corev1.Pod{"asks for nothing": tolerant, "in a namespace that is not enabled": elsewhere,
		"no dialect's resource": foreign("nvidia.com/mig-1g.5gb", "1"), "none of it": foreign("nvidia.com/gpu", "0", "nvidia.com/gpumem", "0")} {
		if err := c.Create(t.Context(), pod); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	fraction := plain(enabled)
	fraction.Annotations = map[string]string{"gpu-fraction": "0.5"}
	for name, pod := range map[string]*corev1.Pod{"hami": foreign("nvidia.com/gpu", "1"), "gpushare": foreign("aliyun.com/gpu-mem", "1"), "kai": fraction} {
		if err := c.Create(t.Context(), pod); err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func testDialectsCreated(t *testing.T, c client.Client) {
	fraction := plain(enabled)
	fraction.Annotations = map[string]string{"gpu-fraction": "0.5"}
	for mark, tt := range map[string]struct {
		pod       *corev1.Pod
		scheduler string
		share     string
	}{
		"gpushare/GiB": {foreign("aliyun.com/gpu-mem", "3"), "gpushare-scheduler", `{"gpus":1,"memMiB":3072}`},
		"hami":         {foreign("nvidia.com/gpu", "2", "nvidia.com/gpumem", "3000", "nvidia.com/gpucores", "30"), "hami-scheduler", `{"gpus":2,"core":30,"memMiB":3000}`},
		"volcano":      {foreign("volcano.sh/vgpu-number", "1", "volcano.sh/vgpu-memory", "1024"), "volcano", `{"gpus":1,"memMiB":1024}`},
		"koordinator":  {foreign("koordinator.sh/gpu-core", "50", "koordinator.sh/gpu-memory-ratio", "50"), "koord-scheduler", `{"gpus":1,"core":50,"memPercent":50}`},
		"kai":          {fraction, "kai-scheduler", `{"gpus":1,"memPercent":50}`},
		"gpu-manager":  {foreign("tencent.com/vcuda-core", "30", "tencent.com/vcuda-memory", "30"), "", `{"gpus":1,"core":30,"memMiB":7680}`},
		"nvidia":       {foreign("nvidia.com/gpu.shared", "1"), "", `{"gpus":1,"memPercent":25}`},
	} {
		pod := tt.pod.DeepCopy()
		pod.Spec.SchedulerName = tt.scheduler
		if err := c.Create(t.Context(), pod); err != nil {
			t.Errorf("%s: %v", mark, err)
			continue
		}
		if want := `{"version":"v1alpha1","containers":{"main":` + tt.share + `}}`; pod.Annotations[api.AnnotationShares] != want || pod.Annotations[api.AnnotationDialect] != mark {
			t.Errorf("%s: annotations %v, want shares %s", mark, pod.Annotations, want)
		}
		if pod.Spec.SchedulerName != corev1.DefaultSchedulerName || !slices.Equal(pod.Spec.SchedulingGates, []corev1.PodSchedulingGate{{Name: api.Gate}}) {
			t.Errorf("%s: scheduler %s, gates %v", mark, pod.Spec.SchedulerName, pod.Spec.SchedulingGates)
		}
		r := pod.Spec.Containers[0].Resources
		for _, list := range []corev1.ResourceList{r.Limits, r.Requests} {
			for name := range list {
				if name != corev1.ResourceCPU && !strings.HasPrefix(string(name), api.Prefix) {
					t.Errorf("%s: %s is left, and no node has it", mark, name)
				}
			}
		}
		// The policy keeps the mark as it is.
		expect(t, patch(t, c, pod, `{"metadata":{"annotations":{"vernier.dev/dialect":"hami2"}}}`, client.DryRunAll), "read at creation only")
	}
}

func testDialectsRefused(t *testing.T, cfg *rest.Config) {
	heard := &warnings{}
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler = heard
	c := apiserver.Client(t, cfg)
	wrong := foreign("nvidia.com/gpu", "17")
	expect(t, c.Create(t.Context(), wrong), "spec.containers[0].resources.limits[nvidia.com/gpu]: Invalid value")
	forged := foreign("nvidia.com/gpu", "1")
	forged.Annotations = map[string]string{api.AnnotationDialect: "hami"}
	expect(t, c.Create(t.Context(), forged), "annotations[vernier.dev/dialect]: Forbidden: only Vernier writes it")
	if len(heard.texts) > 0 {
		t.Errorf("warnings %q", heard.texts)
	}
	pod := foreign("nvidia.com/gpu", "1", "nvidia.com/priority", "1")
	pod.Spec.SchedulerName = "hami-scheduler"
	expect(t, c.Create(t.Context(), pod), "")
	if all := strings.Join(heard.texts, "\n"); !strings.Contains(all, "nvidia.com/priority]: removed and not honoured") || !strings.Contains(all, "hami-scheduler is replaced") {
		t.Errorf("warnings %q", all)
	}
}

// A quota of what the pods of ours ask for counts those of the dialects too.
func testDialectsQuota(t *testing.T, c client.Client) {
	const name = "requests.vernier.dev/gpu-mem-mib"
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "limited", Labels: map[string]string{api.LabelInject: api.LabelInjectEnabled}}}
	hard := corev1.ResourceList{name: resource.MustParse("5000")}
	quota := &corev1.ResourceQuota{ObjectMeta: metav1.ObjectMeta{Namespace: ns.Name, Name: "gpu"}, Spec: corev1.ResourceQuotaSpec{Hard: hard}}
	for _, obj := range []client.Object{ns, quota} {
		must.Do(t, c.Create(t.Context(), obj))
	}
	// No controller of quotas runs here.
	quota.Status = corev1.ResourceQuotaStatus{Hard: hard, Used: corev1.ResourceList{name: resource.MustParse("0")}}
	must.Do(t, c.Status().Update(t.Context(), quota))
	await(t, "the quota is counted", func() bool {
		pod := foreign("aliyun.com/gpu-mem", "6")
		pod.Namespace = ns.Name
		err := c.Create(t.Context(), pod, client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "exceeded quota")
	})
	fits := foreign("aliyun.com/gpu-mem", "4")
	fits.Namespace = ns.Name
	expect(t, c.Create(t.Context(), fits), "")
}

// A sidecar that another webhook adds after ours, in the same dialect, is
// translated in the second round, and what was translated is left alone.
func testDialectsReinvocation(t *testing.T, c client.Client) {
	changer(t, c, "late", `[{"op":"add","path":"/spec/containers/-","value":{"name":"late","image":"none","terminationMessagePath":"/x",`+
		`"terminationMessagePolicy":"File","imagePullPolicy":"Always","resources":{"limits":{"nvidia.com/gpu":"1","nvidia.com/gpumem":"512"}}}}]`, `"late","image"`)
	var pod *corev1.Pod
	await(t, "the other webhook is in force", func() bool {
		pod = foreign("nvidia.com/gpu", "1", "nvidia.com/gpucores", "20")
		pod.Labels = map[string]string{"change": "late"}
		pod.Annotations = map[string]string{"hami.io/gpu-scheduler-policy": "spread"}
		expect(t, c.Create(t.Context(), pod), "")
		return len(pod.Spec.Containers) == 2
	})
	want := `{"version":"v1alpha1","containers":{"late":{"gpus":1,"memMiB":512},"main":{"gpus":1,"core":20,"memPercent":100}}}`
	if pod.Annotations[api.AnnotationShares] != want || pod.Annotations[api.AnnotationPolicy] != "spread" {
		t.Errorf("annotations %v, want shares %s", pod.Annotations, want)
	}
}
