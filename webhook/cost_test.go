// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package webhook_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
)

// costs are the seconds that the API server has spent on match conditions, by the name
// of the webhook or policy.
func costs(t *testing.T, c rest.Interface) map[string]float64 {
	t.Helper()
	text, err := c.Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	sum := regexp.MustCompile(`^apiserver_admission_match_condition_evaluation_seconds_sum\{.*name="([^"]+)".*\} (\S+)$`)
	found := map[string]float64{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		if m := sum.FindStringSubmatch(lines.Text()); m != nil {
			seconds, err := strconv.ParseFloat(m[2], 64)
			if err != nil {
				t.Fatal(err)
			}
			found[m[1]] += seconds
		}
	}
	return found
}

// bodySize is how large the worst bodies are: a little less than the API server takes.
const bodySize = 3<<20 - 1<<18

// worst are pods that cost as much to read as a pod can, by what they have much of. Each is
// a change of a pod as the webhook leaves it, of one that asks for a share, or of one that
// asks for nothing.
func worst() map[string]func(*corev1.Pod) {
	fill := func(n int, each func(i int)) {
		for i := range n {
			each(i)
		}
	}
	annotate := func(p *corev1.Pod, key, value string) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	}
	keys := func(prefix, value string, n int) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			fill(n, func(i int) { annotate(p, prefix+strconv.Itoa(i), value) })
		}
	}
	containers := func(n int, each func(i int, c *corev1.Container)) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			fill(n, func(i int) {
				c := corev1.Container{Name: "c" + strconv.Itoa(i), Image: "i", ImagePullPolicy: "Always", TerminationMessagePath: "/x", TerminationMessagePolicy: "File"}
				each(i, &c)
				p.Spec.Containers = append(p.Spec.Containers, c)
			})
		}
	}
	one := resource.MustParse("1")
	limits := func(prefix string, n int) func(int, *corev1.Container) {
		return func(_ int, c *corev1.Container) {
			c.Resources.Limits = corev1.ResourceList{}
			for i := range n {
				c.Resources.Limits[corev1.ResourceName(prefix+strconv.Itoa(i))] = one
			}
			c.Resources.Requests = c.Resources.Limits
		}
	}
	return map[string]func(*corev1.Pod){
		"nothing":             func(*corev1.Pod) {},
		"annotations":         keys("k", "", 20_000),
		"annotations, 256":    keys("k", strings.Repeat("x", 230<<10/256), 256-8),
		"annotations of ours": keys("vernier.dev/k", "", 10_000),
		"a long list of NRI plugins": func(p *corev1.Pod) {
			annotate(p, "required-plugins.noderesource.dev/pod", `["vernier"`+strings.Repeat(`,"a"`, 230<<10/4)+`]`)
		},
		"NRI plugins for each container": keys("required-plugins.noderesource.dev/container.k",
			`["vernier"`+strings.Repeat(`,"a"`, 230<<10/240/4)+`]`, 240),
		"a long list of shares": func(p *corev1.Pod) {
			annotate(p, api.AnnotationShares, `{"version":"v1alpha1","containers":{"`+strings.Repeat("x", 250<<10)+`}}}`)
		},
		"a long list of shares, of many containers": func(p *corev1.Pod) {
			annotate(p, api.AnnotationShares, `{"version":"v1alpha1","containers":{"`+strings.Repeat("x", 250<<10)+`}}}`)
			containers(511, func(_ int, c *corev1.Container) {
				c.Resources.Limits = corev1.ResourceList{api.ResourceCore: one, api.ResourceMemMiB: one}
			})(p)
		},
		"containers":                   containers(20_000, func(int, *corev1.Container) {}),
		"512 containers":               containers(511, func(int, *corev1.Container) {}),
		"512 containers with shares":   containers(511, limits("vernier.dev/gpu", 4)),
		"512 containers with limits":   containers(511, limits("example.com/a", 64)),
		"512 containers with 4 limits": containers(511, limits("example.com/a", 4)),
		"one container with limits":    containers(1, limits("example.com/a", 10000)),
		"gates": func(p *corev1.Pod) {
			fill(20000, func(i int) {
				p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: strconv.Itoa(i)})
			})
		},
		"capabilities": containers(511, func(_ int, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{}}
			for range bodySize / 511 / 5 {
				c.SecurityContext.Capabilities.Add = append(c.SecurityContext.Capabilities.Add, "A")
			}
		}),
		"a long capability": containers(1, func(_ int, c *corev1.Container) {
			c.SecurityContext = &corev1.SecurityContext{Capabilities: &corev1.Capabilities{Add: []corev1.Capability{corev1.Capability(strings.Repeat("A", bodySize))}}}
		}),
		"volumes": func(p *corev1.Pod) {
			fill(20000, func(i int) {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: strconv.Itoa(i), VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/d"}}})
			})
		},
		"32 host paths": func(p *corev1.Pod) {
			fill(32, func(i int) {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: strconv.Itoa(i), VolumeSource: corev1.VolumeSource{
					HostPath: &corev1.HostPathVolumeSource{Path: strings.Repeat("/v", 128)}}})
			})
		},
		"a long host path": func(p *corev1.Pod) {
			p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: "v", VolumeSource: corev1.VolumeSource{
				HostPath: &corev1.HostPathVolumeSource{Path: strings.Repeat("/v", bodySize/2)}}})
		},
	}
}

// controls are names before and after ours: the API server evaluates conditions in the order
// of names, and the same one takes longer after others have left it garbage.
var controls = []string{"a-control", "z-control"}

// yardstick is a condition that does the same work for every pod, work, and is false: as much
// as a condition may cost, on whatever machine. It is 4,500 steps.
const yardstick = "m-yardstick"

var work = func() string {
	fifteen, twenty := "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14]", "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19]"
	return "!" + fifteen + ".all(i, " + fifteen + ".all(j, " + twenty + ".all(k, i + j + k >= 0)))"
}()

// control makes policies and webhooks whose conditions are false: what is left is the API
// server's own work, and that of the yardstick.
func control(t *testing.T, c client.Client) {
	t.Helper()
	fail, none, url := admissionv1.Fail, admissionv1.SideEffectClassNone, "https://127.0.0.1:1/"
	deployments := admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Create},
		Rule: admissionv1.Rule{APIGroups: []string{"apps"}, APIVersions: []string{"v1"}, Resources: []string{"deployments"}}}
	rule := admissionv1.RuleWithOperations{Operations: []admissionv1.OperationType{admissionv1.Create, admissionv1.Update},
		Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods", "pods/status", "pods/ephemeralcontainers"}}}
	for name, expression := range map[string]string{controls[0]: "false", controls[1]: "false", yardstick: work} {
		never := []admissionv1.MatchCondition{{Name: "never", Expression: expression}}
		meta := metav1.ObjectMeta{Name: name}
		for _, obj := range []client.Object{
			&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicySpec{
				FailurePolicy: &fail, MatchConditions: never, Validations: []admissionv1.Validation{{Expression: "true"}},
				MatchConstraints: &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: rule}}}}},
			&admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: meta, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
				PolicyName: name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny}}},
			&admissionv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionv1.MutatingWebhook{{
				Name: name + webhooks, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}, MatchConditions: never,
				Rules: []admissionv1.RuleWithOperations{rule}, ClientConfig: admissionv1.WebhookClientConfig{URL: &url}}}},
			&admissionv1.ValidatingWebhookConfiguration{ObjectMeta: meta, Webhooks: []admissionv1.ValidatingWebhook{{
				Name: name + webhooks, SideEffects: &none, AdmissionReviewVersions: []string{"v1"}, MatchConditions: never,
				Rules: []admissionv1.RuleWithOperations{deployments}, ClientConfig: admissionv1.WebhookClientConfig{URL: &url}}}},
		} {
			if err := c.Create(t.Context(), obj); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// policies and webhooks end the names of the controls of either.
const (
	policies = ""
	webhooks = ".example.com"
)

// tries bounds how often a request is repeated: a machine with other work to do makes any one
// of them slow, and nothing makes one fast.
const tries = 60

// meter sends requests and reads what their conditions cost.
type meter struct {
	c rest.Interface
	// measured are how often each condition was, and worst what it cost at the most, in
	// parts of what the yardstick does.
	measured map[string]int
	worst    map[string]float64
}

// measure sends a request until every condition that was false is known to be cheap enough,
// or never is. It returns the last answer.
func (m *meter) measure(t *testing.T, what, against string, raw []byte, send func() *rest.Request) (answer error) {
	t.Helper()
	if len(raw) > 3<<20 {
		t.Fatalf("%s: %d bytes are more than the API server takes", what, len(raw))
	}
	least := map[string]float64{}
	for range tries {
		before := costs(t, m.c)
		answer = send().Param("dryRun", "All").Body(raw).Do(t.Context()).Error()
		for name, spent := range costs(t, m.c) {
			if cost := spent - before[name]; cost > 0 && (least[name] == 0 || cost < least[name]) {
				least[name] = cost
			}
		}
		if expensive(least, against) == "" {
			break
		}
	}
	for name, cost := range least {
		if !isControl(name) {
			m.measured[name]++
			m.worst[name] = max(m.worst[name], cost/least[yardstick+against])
		}
	}
	if name := expensive(least, against); name != "" {
		t.Errorf("%s: the condition of %s costs %.1f ms, false %.1f ms, in the fastest of %d requests: want at most the yardstick's %.1f ms",
			what, name, 1e3*least[name], 1e3*ofFalse(least, against), tries, 1e3*least[yardstick+against])
	}
	return answer
}

// ofFalse is what a condition "false" costs.
func ofFalse(costs map[string]float64, against string) (most float64) {
	for _, name := range controls {
		most = max(most, costs[name+against])
	}
	return most
}

func isControl(name string) bool {
	return strings.HasPrefix(name, yardstick) || slices.ContainsFunc(controls, func(c string) bool { return strings.HasPrefix(name, c) })
}

// expensive is a condition that costs too much; empty where there is none.
func expensive(costs map[string]float64, against string) string {
	for name, cost := range costs {
		if !isControl(name) && cost > costs[yardstick+against] {
			return name
		}
	}
	return ""
}

// The conditions of the policies and of the webhook are evaluated for every creation and
// update of a pod: the worst pod that a tenant can write costs little more than it
// does the API server anyway, and what is beyond a bound is refused.
func TestHostileCosts(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "admission/policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	namespaces(t, admin)
	control(t, admin)
	set, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := &meter{c: set.CoreV1().RESTClient(), measured: map[string]int{}, worst: map[string]float64{}}
	bodies := worst()
	create := func(base, name, against string, pod *corev1.Pod) {
		bodies[name](pod)
		pod.APIVersion, pod.Kind = "v1", "Pod"
		what := base + " pod in namespace " + pod.Namespace + " with " + name
		answer := m.measure(t, what, against, encode(t, pod), func() *rest.Request {
			return m.c.Post().AbsPath("/api/v1/namespaces/" + pod.Namespace + "/pods")
		})
		if answer != nil && strings.Contains(answer.Error(), "cost budget") {
			t.Errorf("%s: refused for its costs, not by a rule: %v", what, answer)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(bodies)) {
		create("a plain", name, policies, plain(enabled))
		create("a shared", name, policies, admitted(enabled))
		create("a plain", name, policies, plain(other))
	}
	m.changes(t, admin)
	// Where the webhook would be asked, nobody answers: the policies are not asked then.
	install(t, cfg, address(t))
	awaitWebhook(t, admin)
	for _, name := range slices.Sorted(maps.Keys(bodies)) {
		create("a plain", name, webhooks, plain(enabled))
	}
	for name, least := range map[string]int{"vernier-pods": 20, "vernier-pods-elsewhere": 12, "vernier-pod-changes": 6, "pods.vernier.dev": 15} {
		t.Logf("%s: measured %d times, %.2f of the yardstick at the most", name, m.measured[name], m.worst[name])
		if m.measured[name] < least {
			t.Errorf("the condition of %s was measured %d times only, want %d: the others were true", name, m.measured[name], least)
		}
	}
}

// changes measures updates, of pods that are as large as the API server keeps.
func (m *meter) changes(t *testing.T, admin client.Client) {
	t.Helper()
	annotations := func(n int) map[string]string {
		list := map[string]string{}
		for i := range n {
			list["k"+strconv.Itoa(i)] = ""
		}
		return list
	}
	for name, change := range map[string]struct {
		pod *corev1.Pod
		add map[string]string
	}{
		"a plain pod":  {plain(enabled), annotations(20_000)},
		"a shared pod": {admitted(enabled), annotations(200)},
	} {
		if err := admin.Create(t.Context(), change.pod); err != nil {
			t.Fatal(err)
		}
		same, more := change.pod.DeepCopy(), change.pod.DeepCopy()
		for _, pod := range []*corev1.Pod{same, more} {
			pod.APIVersion, pod.Kind, pod.ResourceVersion = "v1", "Pod", ""
		}
		if more.Annotations == nil {
			more.Annotations = map[string]string{}
		}
		maps.Copy(more.Annotations, change.add)
		for _, sub := range []string{"", "/status"} {
			for what, pod := range map[string]*corev1.Pod{"the same": same, "more annotations": more} {
				m.measure(t, "an update of "+name+sub+" to "+what, policies, encode(t, pod), func() *rest.Request {
					return m.c.Put().AbsPath("/api/v1/namespaces/" + pod.Namespace + "/pods/" + pod.Name + sub)
				})
			}
		}
	}
}

// So is the condition for workloads.
func TestHostileWorkloadCosts(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{})
	admin := apiserver.Client(t, cfg)
	namespaces(t, admin)
	control(t, admin)
	set, err := kubernetes.NewForConfig(cfg)
	if err != nil {
		t.Fatal(err)
	}
	m := &meter{c: set.CoreV1().RESTClient(), measured: map[string]int{}, worst: map[string]float64{}}
	install(t, cfg, address(t))
	await(t, "the webhook is asked", func() bool {
		expect(t, admin.Create(t.Context(), workloads(enabled, templateOf(asking(enabled)))["Deployment"], client.DryRunAll), "")
		return asked(t, cfg) > 0
	})
	bodies := worst()
	// As many containers and names as the condition looks at, and more of the latter.
	for name, limits := range map[string]int{"128 containers with 2 limits": 2, "128 containers with 64 limits": 64} {
		bodies[name] = func(p *corev1.Pod) {
			c := p.Spec.Containers[0]
			c.Resources.Limits = corev1.ResourceList{}
			for i := range limits {
				c.Resources.Limits[corev1.ResourceName("example.com/a"+strconv.Itoa(i))] = resource.MustParse("1")
			}
			c.Resources.Requests = c.Resources.Limits
			p.Spec.Containers = slices.Repeat([]corev1.Container{c}, 128)
			for i := range p.Spec.Containers {
				p.Spec.Containers[i].Name = "c" + strconv.Itoa(i)
			}
		}
	}
	// The others are cut off by a bound as one of these, after Kubernetes has looked at them for long.
	for _, name := range []string{"nothing", "annotations", "annotations, 256", "512 containers with 4 limits", "one container with limits",
		"128 containers with 2 limits", "128 containers with 64 limits"} {
		m.workload(t, name, bodies[name])
	}
	const name, least = "workloads.vernier.dev", 6
	t.Logf("%s: measured %d times, %.2f of the yardstick at the most", name, m.measured[name], m.worst[name])
	if m.measured[name] < least {
		t.Errorf("the condition of %s was measured %d times only, want %d: the others were true", name, m.measured[name], least)
	}
}

// workload measures a Deployment with the worst template and annotations. The API server
// validates it before it asks, so that some never come so far.
func (m *meter) workload(t *testing.T, name string, body func(*corev1.Pod)) {
	t.Helper()
	pod := plain(enabled)
	body(pod)
	deployment := workloads(enabled, templateOf(pod))["Deployment"].(*appsv1.Deployment)
	deployment.APIVersion, deployment.Kind = "apps/v1", "Deployment"
	for key, value := range pod.Annotations {
		if !strings.HasPrefix(key, api.Prefix) {
			metav1.SetMetaDataAnnotation(&deployment.ObjectMeta, key, value)
		}
	}
	raw := encode(t, deployment)
	if len(raw) > 3<<20 {
		deployment.Annotations = nil
		raw = encode(t, deployment)
	}
	m.measure(t, "a Deployment with "+name, webhooks, raw, func() *rest.Request {
		return m.c.Post().AbsPath("/apis/apps/v1/namespaces/" + enabled + "/deployments")
	})
}

func encode(t *testing.T, object any) []byte {
	t.Helper()
	raw, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}

// awaitWebhook waits until the webhook, which nobody answers for, is asked.
func awaitWebhook(t *testing.T, c client.Client) {
	t.Helper()
	await(t, "the webhook is in force", func() bool {
		err := c.Create(t.Context(), asking(enabled), client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "failed calling webhook")
	})
}
