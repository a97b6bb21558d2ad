// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook"
)

// workloads are one of each kind, with the template.
func workloads(namespace string, template corev1.PodTemplateSpec) map[string]client.Object {
	meta := metav1.ObjectMeta{Namespace: namespace, GenerateName: "w-"}
	labels := map[string]string{"app": "w"}
	selector := &metav1.LabelSelector{MatchLabels: labels}
	template.Labels = labels
	once := *template.DeepCopy()
	once.Spec.RestartPolicy = corev1.RestartPolicyNever
	job := batchv1.JobSpec{Template: once}
	return map[string]client.Object{
		"Deployment":  &appsv1.Deployment{ObjectMeta: meta, Spec: appsv1.DeploymentSpec{Selector: selector, Template: template}},
		"StatefulSet": &appsv1.StatefulSet{ObjectMeta: meta, Spec: appsv1.StatefulSetSpec{Selector: selector, Template: template}},
		"DaemonSet":   &appsv1.DaemonSet{ObjectMeta: meta, Spec: appsv1.DaemonSetSpec{Selector: selector, Template: template}},
		"ReplicaSet":  &appsv1.ReplicaSet{ObjectMeta: meta, Spec: appsv1.ReplicaSetSpec{Selector: selector, Template: template}},
		"Job":         &batchv1.Job{ObjectMeta: meta, Spec: job},
		"CronJob": &batchv1.CronJob{ObjectMeta: meta, Spec: batchv1.CronJobSpec{Schedule: "@yearly",
			JobTemplate: batchv1.JobTemplateSpec{Spec: job}}},
	}
}

func templateOf(pod *corev1.Pod) corev1.PodTemplateSpec {
	return corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Annotations: pod.Annotations}, Spec: pod.Spec}
}

// wrong asks for a percent that does not divide evenly over its GPUs.
func wrong(namespace string) *corev1.Pod {
	pod := asking(namespace)
	pod.Spec.Containers[0].Resources.Limits[api.ResourceCore] = resource.MustParse("101")
	return pod
}

// asked counts the requests that the API server has sent, or tried to send, to the webhook
// for workloads.
func asked(t *testing.T, cfg *rest.Config) (n int) {
	t.Helper()
	set := must.Get(kubernetes.NewForConfig(cfg))(t)
	text := must.Get(set.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context()))(t)
	sample := regexp.MustCompile(`(?m)^apiserver_admission_webhook_request_total\{.*name="workloads\.vernier\.dev".*\} (\d+)$`)
	for _, m := range sample.FindAllSubmatch(text, -1) {
		count := must.Get(strconv.Atoi(string(m[1])))(t)
		n += count
	}
	return n
}

// heeding is a client, and the warnings that it was sent.
func heeding(t *testing.T, cfg *rest.Config) (client.Client, *warnings) {
	t.Helper()
	heard := &warnings{}
	cfg = rest.CopyConfig(cfg)
	cfg.WarningHandler = heard
	return apiserver.Client(t, cfg), heard
}

// Workloads are admitted whatever their templates say, with a warning of all that their pods
// would be refused or warned for; those that ask for nothing never leave the API server.
func TestWorkloads(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/webhook.yaml", "admission/webhook-policy.yaml"}})
	for _, o := range apiserver.Manifests(t, "admission/webhook.yaml") {
		if o.GetKind() == "ValidatingWebhookConfiguration" {
			hook := o.Object["webhooks"].([]any)[0].(map[string]any)
			if fmt.Sprintf("%v %v", hook["failurePolicy"], hook["timeoutSeconds"]) != "Ignore 1" {
				t.Errorf("workloads would wait for it: %v, %v s", hook["failurePolicy"], hook["timeoutSeconds"])
			}
		}
	}
	c, heard := heeding(t, cfg)
	namespaces(t, c)
	at := address(t)
	install(t, cfg, at)

	await(t, "the webhook, which is away, is asked", func() bool {
		expect(t, c.Create(t.Context(), workloads(enabled, templateOf(wrong(enabled)))["Job"], client.DryRunAll), "")
		return asked(t, cfg) > 0
	})
	for kind, workload := range workloads(enabled, templateOf(wrong(enabled))) {
		if err := c.Create(t.Context(), workload); err != nil {
			t.Errorf("%s, with the webhook away: %v", kind, err)
		}
	}
	if len(heard.texts) > 0 {
		t.Errorf("with the webhook away: %q", heard.texts)
	}

	start(t, cfg, at, webhook.Options{})
	await(t, "a workload is warned about", func() bool {
		expect(t, c.Create(t.Context(), workloads(enabled, templateOf(wrong(enabled)))["Job"], client.DryRunAll), "")
		return len(heard.texts) > 0
	})
	t.Run("plain", func(t *testing.T) { testPlainWorkloads(t, cfg) })
	t.Run("warned", func(t *testing.T) { testWarnedWorkloads(t, cfg) })
	t.Run("annotations", func(t *testing.T) { testMisplaced(t, cfg) })
	t.Run("many", func(t *testing.T) { testManyWarnings(t, cfg) })
}

func testPlainWorkloads(t *testing.T, cfg *rest.Config) {
	c, heard := heeding(t, cfg)
	before := asked(t, cfg)
	pod := plain(enabled)
	pod.Annotations = map[string]string{"example.com/a": "vernier.dev/gpu-core"}
	pod.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "example.com/gate"}}
	pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1"), "nvidia.com/gpu": resource.MustParse("1")}
	pod.Spec.InitContainers = []corev1.Container{{Name: "init", Image: "none"}}
	for kind, workload := range workloads(enabled, templateOf(pod)) {
		workload.SetAnnotations(map[string]string{"example.com/a": "b"})
		expect(t, c.Create(t.Context(), workload), "")
		workload.SetAnnotations(map[string]string{"example.com/a": "c"})
		expect(t, c.Update(t.Context(), workload), "")
		if t.Failed() {
			t.Fatal(kind)
		}
	}
	// Nor do those of a namespace without the label, and what a controller makes of another.
	expect(t, c.Create(t.Context(), workloads(other, templateOf(wrong(other)))["Deployment"]), "")
	owned := workloads(enabled, templateOf(wrong(enabled)))["ReplicaSet"]
	owned.SetOwnerReferences([]metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "Deployment", Name: "d", UID: "u", Controller: ptr.To(true)}})
	expect(t, c.Create(t.Context(), owned), "")
	if n := asked(t, cfg) - before; n > 0 || len(heard.texts) > 0 {
		t.Errorf("the webhook was asked %d times, and warned %q", n, heard.texts)
	}
	expect(t, c.Create(t.Context(), workloads(enabled, templateOf(wrong(enabled)))["ReplicaSet"]), "")
	if n := asked(t, cfg) - before; n != 1 {
		t.Errorf("of one that asks the webhook was asked %d times", n)
	}
}

func testWarnedWorkloads(t *testing.T, cfg *rest.Config) {
	c, heard := heeding(t, cfg)
	pod := wrong(enabled)
	pod.Annotations = map[string]string{api.Prefix + "polcy": "pack"}
	pod.Spec.Containers[0].Env = []corev1.EnvVar{{Name: api.EnvVisibleDevices, Value: "all"}}
	pod.Spec.HostPID = true
	for kind, workload := range workloads(enabled, templateOf(pod)) {
		path := map[bool]string{true: "spec.jobTemplate.spec.template", false: "spec.template"}[kind == "CronJob"]
		want := []string{
			path + `.metadata.annotations[vernier.dev/polcy]: pods are refused: Unsupported value: "vernier.dev/polcy"`,
			path + ".spec.hostPID: pods are refused: Forbidden",
			path + ".spec.containers[0].resources.limits[vernier.dev/gpu-core]: pods are refused: Invalid value: 101: more than 100 is spread over several GPUs, and this does not divide evenly over 2. Ask for 100 or 102, or for 100 or less of one GPU",
			path + ".spec.containers[0].env[NVIDIA_VISIBLE_DEVICES]: removed",
		}
		for _, what := range []string{"created", "updated"} {
			heard.texts = nil
			if what == "created" {
				expect(t, c.Create(t.Context(), workload), "")
			} else {
				workload.SetLabels(map[string]string{"a": "b"})
				expect(t, c.Update(t.Context(), workload), "")
			}
			if len(heard.texts) != len(want) {
				t.Errorf("%s %s: %q", kind, what, heard.texts)
				continue
			}
			for i := range want {
				if !strings.HasPrefix(heard.texts[i], want[i]) {
					t.Errorf("%s %s: %q, want %q", kind, what, heard.texts[i], want[i])
				}
			}
		}
	}
	// An ask that is right has nothing to be warned about; requests count as well as limits.
	heard.texts = nil
	expect(t, c.Create(t.Context(), workloads(enabled, templateOf(asking(enabled)))["Deployment"]), "")
	if len(heard.texts) > 0 {
		t.Errorf("a right one: %q", heard.texts)
	}
	pod = wrong(enabled)
	pod.Spec.Containers[0].Resources.Requests = pod.Spec.Containers[0].Resources.Limits
	expect(t, c.Create(t.Context(), workloads(enabled, templateOf(pod))["Deployment"]), "")
	if len(heard.texts) != 1 {
		t.Errorf("with requests: %q", heard.texts)
	}
}

func testMisplaced(t *testing.T, cfg *rest.Config) {
	c, heard := heeding(t, cfg)
	for name, tt := range map[string]struct {
		kind      string
		on, inJob map[string]string
		in        map[string]string // the template
		want      string
	}{
		"on the workload": {kind: "Deployment", on: map[string]string{api.AnnotationMode: "mps"},
			want: "metadata.annotations[vernier.dev/mode]: has no effect here: move it to spec.template.metadata.annotations"},
		"on the job of a CronJob": {kind: "CronJob", inJob: map[string]string{api.AnnotationGPUModel: "A100"},
			want: "spec.jobTemplate.metadata.annotations[vernier.dev/gpu-model]: has no effect here: move it to spec.jobTemplate.spec.template.metadata.annotations"},
		"a limit": {kind: "StatefulSet", on: map[string]string{"vernier.dev/gpu-core": "30"},
			want: "metadata.annotations[vernier.dev/gpu-core]: a share is asked for as a limit of the container"},
		"misspelt": {kind: "DaemonSet", on: map[string]string{"vernier.dev/mod": "mps"},
			want: `metadata.annotations[vernier.dev/mod]: Unsupported value: "vernier.dev/mod": supported values: "vernier.dev/mode"`},
		"in a template that asks for nothing": {kind: "Job", in: map[string]string{api.AnnotationMode: "mps"},
			want: "spec.template.metadata.annotations[vernier.dev/mode]: has no effect, since no container asks for a share"},
	} {
		t.Run(name, func(t *testing.T) {
			pod := plain(enabled)
			pod.Annotations = tt.in
			workload := workloads(enabled, templateOf(pod))[tt.kind]
			workload.SetAnnotations(tt.on)
			if cron, ok := workload.(*batchv1.CronJob); ok {
				cron.Spec.JobTemplate.Annotations = tt.inJob
			}
			heard.texts = nil
			expect(t, c.Create(t.Context(), workload), "")
			if len(heard.texts) != 1 || !strings.HasPrefix(heard.texts[0], tt.want) {
				t.Errorf("warnings %q, want %q", heard.texts, tt.want)
			}
		})
	}
}

// Of very many warnings as many are sent as the API server passes on whole.
func testManyWarnings(t *testing.T, cfg *rest.Config) {
	c, heard := heeding(t, cfg)
	pod := plain(enabled)
	for i := range 30 {
		container := *wrong(enabled).Spec.Containers[0].DeepCopy()
		container.Name = "c" + strconv.Itoa(i)
		pod.Spec.Containers = append(pod.Spec.Containers, container)
	}
	expect(t, c.Create(t.Context(), workloads(enabled, templateOf(pod))["Deployment"]), "")
	if n := len(heard.texts); n < 10 || !strings.HasSuffix(heard.texts[n-1], fmt.Sprintf("%d more warnings: kubectl vernier explain -f FILE shows all", 30-n+1)) {
		t.Errorf("%d warnings, the last %q", n, heard.texts[n-1])
	}
	for _, text := range heard.texts[:len(heard.texts)-1] {
		if !strings.HasSuffix(text, "or for 100 or less of one GPU") {
			t.Errorf("%q is cut", text)
		}
	}
}

// A workload of each dialect is sent to the webhook, and warned about like its pods.
func testDialectsWorkloads(t *testing.T, cfg *rest.Config) {
	c, heard := heeding(t, cfg)
	fraction := plain(enabled)
	fraction.Annotations = map[string]string{"gpu-fraction": "1.5"}
	for name, pod := range map[string]*corev1.Pod{
		"gpushare":    foreign("aliyun.com/gpu-mem", "100000"),
		"hami":        foreign("nvidia.com/gpu", "17"),
		"volcano":     foreign("volcano.sh/vgpu-number", "17"),
		"koordinator": foreign("koordinator.sh/gpu-core", "150", "koordinator.sh/gpu-memory-ratio", "150"),
		"kai":         fraction,
		"gpu-manager": foreign("tencent.com/vcuda-core", "150", "tencent.com/vcuda-memory", "30"),
		"nvidia":      foreign("nvidia.com/gpu.shared", "17"),
	} {
		refused := c.Create(t.Context(), pod.DeepCopy(), client.DryRunAll)
		if refused == nil {
			t.Errorf("%s: the pod is right", name)
			continue
		}
		before := asked(t, cfg)
		heard.texts = nil
		expect(t, c.Create(t.Context(), workloads(enabled, templateOf(pod))["Deployment"]), "")
		if n := asked(t, cfg) - before; n != 1 || !slices.ContainsFunc(heard.texts, func(text string) bool {
			field, why, _ := strings.Cut(strings.TrimPrefix(text, "spec.template."), ": pods are refused: ")
			return strings.Contains(refused.Error(), field+": "+why)
		}) {
			t.Errorf("%s: asked %d times, warned %q, and the pod is refused with %v", name, n, heard.texts, refused)
		}
	}
	// The master of a job whose workers alone ask for GPUs.
	master := plain(enabled)
	master.Spec.SchedulerName = "volcano"
	for kind, workload := range workloads(enabled, templateOf(master)) {
		heard.texts = nil
		expect(t, c.Create(t.Context(), workload), "")
		if len(heard.texts) != 1 || !strings.Contains(heard.texts[0], "template.spec.schedulerName: volcano stays, since the pod asks for no GPU") {
			t.Errorf("%s of Volcano's scheduler without a GPU: %q", kind, heard.texts)
		}
	}
	before := asked(t, cfg)
	many := plain(enabled)
	many.Annotations = map[string]string{}
	for i := range 300 {
		many.Annotations["k"+strconv.Itoa(i)] = ""
	}
	expect(t, c.Create(t.Context(), workloads(enabled, templateOf(many))["Deployment"]), "")
	if n := asked(t, cfg) - before; n > 0 {
		t.Errorf("of a plain one with many annotations the webhook was asked %d times", n)
	}
}
