// SPDX-License-Identifier: Apache-2.0

// The race detector would take minutes, and there is nothing for it: one request at a time.
//go:build envtest && !race

package webhook_test

import (
	"encoding/json"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/admission"
	"k8s.io/apiserver/pkg/admission/plugin/cel"
	"k8s.io/apiserver/pkg/admission/plugin/webhook/matchconditions"
	celconfig "k8s.io/apiserver/pkg/apis/cel"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/cel/environment"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/webhook/dialect"
)

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
		"a long resize": func(p *corev1.Pod) { annotate(p, api.AnnotationResize, strings.Repeat("x", 250<<10)) },
		"a long list of shares, of many containers": func(p *corev1.Pod) {
			annotate(p, api.AnnotationShares, `{"version":"v1alpha1","containers":{"`+strings.Repeat("x", 250<<10)+`}}}`)
			containers(511, func(_ int, c *corev1.Container) {
				c.Resources.Limits = corev1.ResourceList{api.ResourceCore: one, api.ResourceMemMiB: one}
			})(p)
		},
		"containers":                    containers(20_000, func(int, *corev1.Container) {}),
		"512 containers":                containers(511, func(int, *corev1.Container) {}),
		"512 containers with shares":    containers(511, limits("vernier.dev/gpu", 4)),
		"512 containers with limits":    containers(511, limits("example.com/a", 64)),
		"512 containers with 4 limits":  containers(511, limits("example.com/a", 4)),
		"128 containers with 2 limits":  containers(127, limits("example.com/a", 2)),
		"128 containers with 64 limits": containers(127, limits("example.com/a", 64)),
		"one container with limits":     containers(1, limits("example.com/a", 10000)),
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

// work does the same for every pod, 4,500 steps, and is false: its cost is the yardstick.
var work = func() string {
	fifteen, twenty := "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14]", "[0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19]"
	return "!" + fifteen + ".all(i, " + fifteen + ".all(j, " + twenty + ".all(k, i + j + k >= 0)))"
}()

// yardsticks are what the condition of a policy or webhook may cost at the most: one where
// nothing else is said. CEL prices what it does with texts by their lengths, and a pattern by
// its length as well, which is many times what that takes: vernier-pods matches 32 host paths of
// 256 characters with long patterns. With all dialects there are many more names to look for.
var yardsticks = map[string]int64{"vernier-pods": 5, "pods.vernier.dev with all dialects": 2}

// conditions are the match conditions of policies and webhooks, by their names.
func conditions(t testing.TB, objects []*unstructured.Unstructured) map[string]cel.ConditionEvaluator {
	t.Helper()
	found := map[string]cel.ConditionEvaluator{}
	add := func(name any, list any) {
		for _, c := range list.([]any) {
			if found[name.(string)] != nil {
				t.Fatalf("%s has several match conditions", name)
			}
			found[name.(string)] = compile(t, c.(map[string]any)["expression"].(string))
		}
	}
	for _, o := range objects {
		switch o.GetKind() {
		case "ValidatingAdmissionPolicy":
			add(o.GetName(), o.Object["spec"].(map[string]any)["matchConditions"])
		case "MutatingWebhookConfiguration", "ValidatingWebhookConfiguration":
			for _, hook := range o.Object["webhooks"].([]any) {
				add(hook.(map[string]any)["name"], hook.(map[string]any)["matchConditions"])
			}
		}
	}
	return found
}

// compile does what the API server does with a match condition that it has stored.
func compile(t testing.TB, expression string) cel.ConditionEvaluator {
	t.Helper()
	c := cel.NewConditionCompiler(environment.MustBaseEnvSet(environment.DefaultCompatibilityVersion())).CompileCondition(
		[]cel.ExpressionAccessor{&matchconditions.MatchCondition{Expression: expression}},
		cel.OptionalVariableDeclarations{HasAuthorizer: true}, environment.StoredExpressions)
	if errs := c.CompilationErrors(); len(errs) > 0 {
		t.Fatalf("%v: %s", errs, expression)
	}
	return c
}

// request is what a condition reads: a creation, or an update where there is an old object.
type request struct {
	object, old       runtime.Object
	subresource, user string
}

// evaluate reports whether a condition holds, and its cost in CEL's units.
func evaluate(t testing.TB, condition cel.ConditionEvaluator, r request) (holds bool, cost int64, err error) {
	t.Helper()
	const budget = celconfig.RuntimeCELCostBudgetMatchConditions
	operation := admission.Create
	if r.old != nil {
		operation = admission.Update
	}
	kind := r.object.GetObjectKind().GroupVersionKind()
	resource := kind.GroupVersion().WithResource(strings.ToLower(kind.Kind) + "s")
	attributes := admission.NewAttributesRecord(r.object, r.old, kind, enabled, "p", resource, r.subresource, operation, nil, false,
		&user.DefaultInfo{Name: r.user, Groups: []string{user.AllAuthenticated}})
	results, left, err := condition.ForInput(t.Context(),
		&admission.VersionedAttributes{Attributes: attributes, VersionedKind: kind, VersionedObject: r.object, VersionedOldObject: r.old},
		cel.CreateAdmissionRequest(attributes, metav1.GroupVersionResource(resource), metav1.GroupVersionKind(kind)),
		cel.OptionalVariableBindings{}, nil, budget)
	if err != nil {
		return false, 0, err
	}
	if err := results[0].Error; err != nil {
		return false, 0, err
	}
	return results[0].EvalResult.Value() == true, budget - left, nil
}

// The conditions of the policies and of the webhook are evaluated for every creation and
// update of a pod: the worst pod that a tenant can write costs no more than a bound, and what
// is beyond a bound is refused. The costs are CEL's, which are the same on any machine.
func TestHostileCosts(t *testing.T) {
	manifests := slices.Concat(apiserver.Manifests(t, "admission/policy.yaml"), apiserver.Manifests(t, "admission/limit-policy.yaml"), apiserver.Manifests(t, "admission/webhook.yaml"))
	found := conditions(t, manifests)
	dialects := conditions(t, charted(t, "admission/webhook.yaml", "dialects.enabled={"+strings.Join(dialect.Names(), ",")+
		"},dialects.nvidiaReplicas=4,dialects.nvidiaTimeSlicing=true,dialects.gpushareUnit=MiB"))
	_, yardstick, err := evaluate(t, compile(t, work), request{object: typed(plain(enabled))})
	must.Do(t, err)
	const tenant, allocator = "tenant", "system:serviceaccount:" + api.SystemNamespace + ":" + api.AllocatorServiceAccount
	most := map[string]int64{}
	check := func(name, what string, r request) (holds bool) {
		for set, found := range map[string]map[string]cel.ConditionEvaluator{"": found, " with all dialects": dialects} {
			if found[name] == nil {
				continue
			}
			held, cost, err := evaluate(t, found[name], r)
			if err != nil {
				t.Errorf("%s: the condition of %s%s: %v", what, name, set, err)
			}
			if bound := max(1, yardsticks[name+set]) * yardstick; cost > bound {
				t.Errorf("%s: the condition of %s%s costs %d, want at most %d", what, name, set, cost, bound)
			}
			most[name+set] = max(most[name+set], cost)
			holds = holds || held
		}
		return holds
	}
	bodies := worst()
	for name, base := range map[string]func(string) *corev1.Pod{"a plain": plain, "a shared": admitted} {
		for body, change := range bodies {
			what, pod, before := name+" pod with "+body, base(enabled), typed(base(enabled))
			change(pod)
			typed(pod)
			refused := check("vernier-pods", what, request{object: pod, user: tenant})
			check("vernier-pods-elsewhere", what, request{object: pod, user: tenant})
			check("vernier-rdma", what, request{object: pod, user: tenant})
			check("vernier-priority", what, request{object: pod, user: tenant})
			check("vernier-limits", what, request{object: pod, user: tenant})
			check("vernier-namespaces", "a namespace labelled like "+what, request{object: &corev1.Namespace{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"}, ObjectMeta: metav1.ObjectMeta{Labels: pod.Annotations}}, user: tenant})
			check("pods.vernier.dev", what, request{object: pod, user: tenant})
			check("workloads.vernier.dev", "a Deployment of "+what, request{object: deployment(pod), user: tenant})
			check("vernier-workloads-elsewhere", "a Deployment of "+what, request{object: deployment(pod), user: tenant})
			check("vernier-bindings", "a binding like "+what, request{object: &corev1.Binding{
				TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Binding"}, ObjectMeta: metav1.ObjectMeta{Annotations: pod.Annotations}}, user: tenant})
			check("vernier-pod-changes", what+" as before", request{object: pod, old: pod.DeepCopy(), user: tenant})
			check("vernier-pod-changes", "a change to "+what, request{object: pod, old: before, user: tenant})
			check("resizes.vernier.dev", "a change to "+what, request{object: pod, old: before, user: tenant})
			if !refused {
				for _, sub := range []string{"", "status"} {
					check("vernier-pod-changes", what+" by the allocator/"+sub, request{object: pod, old: pod.DeepCopy(), subresource: sub, user: allocator})
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(most)) {
		t.Logf("%s: at most %d, %.2f of the yardstick", name, most[name], float64(most[name])/float64(yardstick))
	}
	if len(most) != len(found)+len(dialects) {
		t.Errorf("evaluated the conditions of %v only", most)
	}
}

// Conditions cost what they read, once the API server has made the pod ready: "false" is that.
func BenchmarkConditions(b *testing.B) {
	found := conditions(b, slices.Concat(apiserver.Manifests(b, "admission/policy.yaml"), apiserver.Manifests(b, "admission/webhook.yaml")))
	found["false"], found["yardstick"] = compile(b, "false"), compile(b, work)
	for body, change := range worst() {
		pod := admitted(enabled)
		change(pod)
		typed(pod)
		for _, name := range []string{"false", "yardstick", "vernier-pods", "vernier-pods-elsewhere", "pods.vernier.dev"} {
			b.Run(name+"/"+body, func(b *testing.B) {
				for b.Loop() {
					if _, _, err := evaluate(b, found[name], request{object: pod}); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
	}
}

// typed is a pod as conditions read it: it says what it is, and requests what it is limited to.
func typed(pod *corev1.Pod) *corev1.Pod {
	pod.APIVersion, pod.Kind = "v1", "Pod"
	for i := range pod.Spec.Containers {
		if r := &pod.Spec.Containers[i].Resources; r.Requests == nil {
			r.Requests = r.Limits
		}
	}
	return pod
}

// deployment has the pod as its template, and its annotations as far as a Deployment may have
// them beside a pod without any.
func deployment(pod *corev1.Pod) *appsv1.Deployment {
	d := workloads(enabled, templateOf(pod))["Deployment"].(*appsv1.Deployment)
	d.APIVersion, d.Kind = "apps/v1", "Deployment"
	for key, value := range pod.Annotations {
		if !strings.HasPrefix(key, api.Prefix) {
			metav1.SetMetaDataAnnotation(&d.ObjectMeta, key, value)
		}
	}
	return d
}

// falses counts, by the name of the webhook or policy, how often the API server has found a
// match condition false.
func falses(t *testing.T, c rest.Interface) map[string]int {
	t.Helper()
	text := must.Get(c.Get().AbsPath("/metrics").DoRaw(t.Context()))(t)
	found := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^apiserver_admission_match_condition_evaluation_seconds_count\{.*name="([^"]+)".*\} (\d+)$`).FindAllSubmatch(text, -1) {
		n := must.Get(strconv.Atoi(string(m[2])))(t)
		found[string(m[1])] += n
	}
	return found
}

// The API server evaluates the conditions, and then the rules, of the worst pods: none is
// refused for what that costs, and most are over with the condition.
func TestHostileConditions(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "admission/policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	namespaces(t, admin)
	set := must.Get(kubernetes.NewForConfig(cfg))(t)
	c := set.CoreV1().RESTClient()
	send := func(what string, to *rest.Request, object any) {
		t.Helper()
		raw := must.Get(json.Marshal(object))(t)
		if len(raw) > 3<<20 {
			t.Fatalf("%s: %d bytes are more than the API server takes", what, len(raw))
		}
		if err := to.Param("dryRun", "All").Body(raw).Do(t.Context()).Error(); err != nil && strings.Contains(err.Error(), "cost budget") {
			t.Errorf("%s: refused for its costs, not by a rule: %v", what, err)
		}
	}
	bodies := worst()
	create := func(base, body string, pod *corev1.Pod) {
		bodies[body](pod)
		pod.APIVersion, pod.Kind = "v1", "Pod"
		send(base+" pod in namespace "+pod.Namespace+" with "+body, c.Post().AbsPath("/api/v1/namespaces/"+pod.Namespace+"/pods"), pod)
	}
	for body := range bodies {
		create("a plain", body, plain(enabled))
		create("a shared", body, admitted(enabled))
		create("a plain", body, plain(other))
	}
	for base, pod := range map[string]*corev1.Pod{"a plain": plain(enabled), "a shared": admitted(enabled)} {
		must.Do(t, admin.Create(t.Context(), pod))
		pod.APIVersion, pod.Kind, pod.ResourceVersion = "v1", "Pod", ""
		more := pod.DeepCopy()
		bodies[map[string]string{"a plain": "annotations", "a shared": "annotations, 256"}[base]](more)
		for _, sub := range []string{"", "/status"} {
			for what, pod := range map[string]*corev1.Pod{"the same": pod, "more annotations": more} {
				send("an update of "+base+" pod"+sub+" to "+what, c.Put().AbsPath("/api/v1/namespaces/"+pod.Namespace+"/pods/"+pod.Name+sub), pod)
			}
		}
	}
	// Where the webhook would be asked, nobody answers: the policies are not asked then.
	install(t, cfg, address(t))
	awaitWebhook(t, admin)
	for body := range bodies {
		create("a plain", body, plain(enabled))
	}
	await(t, "the webhook is asked for workloads", func() bool {
		expect(t, admin.Create(t.Context(), workloads(enabled, templateOf(asking(enabled)))["Deployment"], client.DryRunAll), "")
		return asked(t, cfg) > 0
	})
	// The others are cut off by a bound as one of these, after Kubernetes has looked at them for long.
	for _, body := range []string{"nothing", "annotations", "annotations, 256", "512 containers with 4 limits", "one container with limits",
		"128 containers with 2 limits", "128 containers with 64 limits"} {
		pod := plain(enabled)
		bodies[body](pod)
		send("a Deployment with "+body, c.Post().AbsPath("/apis/apps/v1/namespaces/"+enabled+"/deployments"), deployment(pod))
	}
	found := falses(t, c)
	for name, least := range map[string]int{"vernier-pods": 20, "vernier-pods-elsewhere": 12, "vernier-pod-changes": 6,
		"pods.vernier.dev": 15, "workloads.vernier.dev": 6} {
		t.Logf("the condition of %s was false %d times", name, found[name])
		if found[name] < least {
			t.Errorf("the condition of %s was false %d times only, want %d: the others were true", name, found[name], least)
		}
	}
}

// awaitWebhook waits until the webhook, which nobody answers for, is asked.
func awaitWebhook(t *testing.T, c client.Client) {
	t.Helper()
	await(t, "the webhook is in force", func() bool {
		err := c.Create(t.Context(), asking(enabled), client.DryRunAll)
		return err != nil && strings.Contains(err.Error(), "failed calling webhook")
	})
}
