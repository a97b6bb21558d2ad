// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// Namespaces of the test beside kube-system.
const (
	labelled   = "labelled"
	unlabelled = "unlabelled"
)

// With a stolen token of the allocator nobody changes of a pod what is not the allocator's to
// change; what the allocator writes passes.
func TestHostileAllocatorToken(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml", "rbac/metrics.yaml"}})
	admin := apiserver.Client(t, cfg)
	for name, labels := range map[string]map[string]string{labelled: {v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}, unlabelled: nil} {
		must.Do(t, admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}))
	}
	// Pods come with shares only from the webhook, once the policies are in force.
	pods := hostilePods(t, admin)
	apiserver.Apply(t, cfg, "admission/policy.yaml", "admission/allocator-policy.yaml")
	clients := map[bool]client.Client{
		false: apiserver.Client(t, stolen(t, cfg, v1alpha1.AllocatorServiceAccount, nil)),
		true:  apiserver.Client(t, unbounded(cfg, v1alpha1.AllocatorServiceAccount)),
	}
	t.Run("patch", func(t *testing.T) { hostilePodPatches(t, clients, pods) })
	t.Run("pin", func(t *testing.T) { hostilePins(t, clients[false], pods["affine"]) })
	t.Run("ungate", func(t *testing.T) { honestUngating(t, clients[false], pods) })
	t.Run("delete", func(t *testing.T) { hostileDeletions(t, clients, pods) })
	t.Run("evict", func(t *testing.T) { hostileEvictions(t, clients[false], pods) })
	t.Run("token", func(t *testing.T) { hostileTokens(t, clients) })
	expect(t, "a class", clients[false].Create(t.Context(), gold()), "forbidden")
	pod := pods["victim"]
	expect(t, "an administrator", admin.Patch(t.Context(), pod.DeepCopy(), mergePatch(`{"spec":{"containers":[{"name":"main","image":"other"}]}}`), client.DryRunAll), "")
}

// hostilePods are a privileged pod of the system, without a share, and pods with shares.
func hostilePods(t *testing.T, admin client.Client) map[string]*corev1.Pod {
	t.Helper()
	privileged := true
	pod := func(namespace string, edit func(*corev1.Pod)) *corev1.Pod {
		p := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Namespace: namespace, Annotations: map[string]string{v1alpha1.AnnotationShares: "{}", "example.com/a": "b"}},
			Spec: corev1.PodSpec{
				Containers: []corev1.Container{{Name: "main", Image: "none", Resources: corev1.ResourceRequirements{
					Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}}}},
				SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}},
			},
		}
		edit(p)
		must.Do(t, admin.Create(t.Context(), p))
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: corev1.PodReady, Status: corev1.ConditionTrue})
		must.Do(t, admin.Status().Update(t.Context(), p))
		return p
	}
	in := func(key string, values ...string) corev1.NodeSelectorRequirement {
		return corev1.NodeSelectorRequirement{Key: key, Operator: corev1.NodeSelectorOpIn, Values: values}
	}
	return map[string]*corev1.Pod{
		"victim": pod(metav1.NamespaceSystem, func(p *corev1.Pod) {
			p.Annotations, p.Spec.SchedulingGates = nil, nil
			p.Spec.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: &privileged}
		}),
		"elsewhere": pod(unlabelled, func(p *corev1.Pod) { p.Annotations, p.Spec.SchedulingGates = nil, nil }),
		"gated":     pod(labelled, func(*corev1.Pod) {}),
		"twice": pod(labelled, func(p *corev1.Pod) {
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/gate"})
		}),
		"large": pod(labelled, func(p *corev1.Pod) {
			p.Annotations["example.com/large"] = strings.Repeat("x", 200<<10)
			var terms []corev1.NodeSelectorTerm
			for i := range 5000 {
				terms = append(terms, corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone", fmt.Sprint("a", i), "b")}})
			}
			p.Spec.Affinity = &corev1.Affinity{NodeAffinity: &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: terms}}}
			for i := range 500 {
				p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprint("c", i), Image: "none", Env: []corev1.EnvVar{{Name: "A", Value: strings.Repeat("x", 200)}}})
			}
		}),
		"affine": pod(labelled, func(p *corev1.Pod) {
			p.Spec.Affinity = &corev1.Affinity{
				NodeAffinity: &corev1.NodeAffinity{
					RequiredDuringSchedulingIgnoredDuringExecution: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{
						{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone", "a", "b")}},
						{MatchFields: []corev1.NodeSelectorRequirement{in(metav1.ObjectNameField, "n")}},
						{},
					}},
					PreferredDuringSchedulingIgnoredDuringExecution: []corev1.PreferredSchedulingTerm{{Weight: 1,
						Preference: corev1.NodeSelectorTerm{MatchExpressions: []corev1.NodeSelectorRequirement{in("zone", "a")}}}},
				},
				PodAntiAffinity: &corev1.PodAntiAffinity{RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{TopologyKey: "zone"}}},
			}
		}),
	}
}

func hostilePodPatches(t *testing.T, clients map[bool]client.Client, pods map[string]*corev1.Pod) {
	for name, tt := range map[string]struct {
		pod   string
		sub   string // a subresource
		rbac  bool   // RBAC is out of the way
		patch string
		want  string
	}{
		"image of a privileged pod of the system": {"victim", "", false, `{"spec":{"containers":[{"name":"main","image":"evil"}]}}`, "may change and delete only pods that carry it"},
		"shares for a pod of the system":          {"victim", "", false, `{"metadata":{"annotations":{"vernier.dev/shares":"{}"}}}`, "metadata.annotations[vernier.dev/shares]: cannot change"},
		"label of a pod of the system":            {"victim", "", false, `{"metadata":{"labels":{"a":"b"}}}`, "may change and delete only pods that carry it"},
		"status of a pod of the system":           {"victim", "status", false, `{"status":{"phase":"Failed"}}`, "may change and delete only pods that carry it"},
		"condition of a pod of the system":        {"victim", "status", false, `{"status":{"conditions":[{"type":"vernier.dev/gpu-healthy","status":"False"}]}}`, "may change and delete only pods that carry it"},
		"idleness of a pod of the system":         {"victim", "status", false, `{"status":{"conditions":[{"type":"vernier.dev/GPUIdle","status":"True"}]}}`, "may change and delete only pods that carry it"},
		"image":                                   {"gated", "", false, `{"spec":{"containers":[{"name":"main","image":"evil"}]}}`, "spec: the allocator may pin a pod and remove the scheduling gate"},
		"a toleration":                            {"gated", "", false, `{"spec":{"tolerations":[{"key":"a","operator":"Exists"}]}}`, "spec: the allocator may pin"},
		"a deadline":                              {"gated", "", false, `{"spec":{"activeDeadlineSeconds":1}}`, "spec: the allocator may pin"},
		"a node selector":                         {"gated", "", false, `{"spec":{"nodeSelector":{"a":"b"}}}`, "spec: the allocator may pin"},
		"another's gate":                          {"twice", "", false, `{"spec":{"schedulingGates":[{"$patch":"delete","name":"example.com/gate"}]}}`, "spec: the allocator may pin"},
		"all gates":                               {"twice", "", false, `{"spec":{"schedulingGates":null}}`, "spec: the allocator may pin"},
		"our gate of two":                         {"twice", "", false, `{"spec":{"schedulingGates":[{"$patch":"delete","name":"vernier.dev/placement"}]}}`, ""},
		"a label":                                 {"gated", "", false, `{"metadata":{"labels":{"a":"b"}}}`, "metadata: the allocator may change the annotation vernier.dev/placement only"},
		"a finalizer":                             {"gated", "", false, `{"metadata":{"finalizers":["example.com/f"]}}`, "metadata: the allocator may change"},
		"an owner":                                {"gated", "", false, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"u"}]}}`, "metadata: the allocator may change"},
		"an annotation":                           {"gated", "", false, `{"metadata":{"annotations":{"example.com/a":"c"}}}`, "metadata: the allocator may change"},
		"an annotation gone":                      {"gated", "", false, `{"metadata":{"annotations":{"example.com/a":null}}}`, "metadata: the allocator may change"},
		"a CDI device":                            {"gated", "", false, `{"metadata":{"annotations":{"cdi.k8s.io/x":"nvidia.com/gpu=all"}}}`, "name NRI plugins or CDI devices"},
		"shares":                                  {"gated", "", false, `{"metadata":{"annotations":{"vernier.dev/shares":"[]"}}}`, "metadata.annotations[vernier.dev/shares]: cannot change"},
		"a label, with the status":                {"gated", "status", false, `{"metadata":{"labels":{"a":"b"}}}`, "metadata: the allocator may change"},
		"placement":                               {"gated", "", false, `{"metadata":{"annotations":{"vernier.dev/placement":"{}"}}}`, ""},
		"phase":                                   {"gated", "status", false, `{"status":{"phase":"Failed"}}`, "status: the allocator may change conditions of type vernier.dev/* and nominatedNodeName only"},
		"address":                                 {"gated", "status", false, `{"status":{"podIPs":[{"ip":"192.0.2.1"}],"podIP":"192.0.2.1"}}`, "status: the allocator may change"},
		"readiness":                               {"gated", "status", false, `{"status":{"conditions":[{"type":"Ready","status":"False"}]}}`, "status: the allocator may change"},
		"readiness gone":                          {"gated", "status", false, `{"status":{"conditions":[{"$patch":"delete","type":"Ready"}]}}`, "status: the allocator may change"},
		"disruption":                              {"gated", "status", false, `{"status":{"conditions":[{"type":"DisruptionTarget","status":"True"}]}}`, "status: the allocator may change"},
		"our condition":                           {"gated", "status", false, `{"status":{"conditions":[{"type":"vernier.dev/gpu-healthy","status":"False"}]}}`, ""},
		"idleness":                                {"gated", "status", false, `{"status":{"conditions":[{"type":"vernier.dev/GPUIdle","status":"True"}]}}`, ""},
		"nominated node":                          {"gated", "status", false, `{"status":{"nominatedNodeName":"n"}}`, ""},
		"a debug container":                       {"gated", "ephemeralcontainers", true, `{"spec":{"ephemeralContainers":[{"name":"debug","image":"evil"}]}}`, "may write pods and pods/status only"},
		"a size":                                  {"gated", "resize", true, `{"spec":{"containers":[{"name":"main","resources":{"requests":{"cpu":"2"}}}]}}`, "may write pods and pods/status only"},
	} {
		t.Run(name, func(t *testing.T) {
			pod, patch := pods[tt.pod].DeepCopy(), client.RawPatch(types.StrategicMergePatchType, []byte(tt.patch))
			c := clients[tt.rbac]
			if tt.sub == "" {
				expect(t, name, c.Patch(t.Context(), pod, patch, client.DryRunAll), tt.want)
				return
			}
			dry := &client.SubResourcePatchOptions{PatchOptions: client.PatchOptions{DryRun: []string{metav1.DryRunAll}}}
			expect(t, name, c.SubResource(tt.sub).Patch(t.Context(), pod, patch, dry), tt.want)
		})
	}
}

// The API server lets node affinity of gated pods be narrowed, in any way.
func hostilePins(t *testing.T, c client.Client, pod *corev1.Pod) {
	narrow := func(edit func(*corev1.NodeAffinity)) *corev1.Affinity {
		a := podstate.PinTo(pod.Spec.Affinity, "n")
		edit(a.NodeAffinity)
		return a
	}
	terms := func(n *corev1.NodeAffinity) []corev1.NodeSelectorTerm {
		return n.RequiredDuringSchedulingIgnoredDuringExecution.NodeSelectorTerms
	}
	const refused = "spec.affinity: the allocator may add matchFields metadata.name In [NODE]"
	for name, tt := range map[string]struct {
		affinity *corev1.Affinity
		want     string
	}{
		"as the allocator pins": {narrow(func(*corev1.NodeAffinity) {}), ""},
		"other preferences":     {narrow(func(n *corev1.NodeAffinity) { n.PreferredDuringSchedulingIgnoredDuringExecution[0].Weight = 2 }), refused},
		"an expression": {narrow(func(n *corev1.NodeAffinity) {
			terms(n)[0].MatchExpressions = append(terms(n)[0].MatchExpressions, corev1.NodeSelectorRequirement{Key: "a", Operator: corev1.NodeSelectorOpExists})
		}), refused},
		"two fields": {narrow(func(n *corev1.NodeAffinity) {
			terms(n)[1].MatchFields = append(terms(n)[1].MatchFields, terms(n)[1].MatchFields[1])
		}), refused},
		"not in": {narrow(func(n *corev1.NodeAffinity) { terms(n)[1].MatchFields[1].Operator = corev1.NodeSelectorOpNotIn }), refused},
	} {
		t.Run(name, func(t *testing.T) {
			patch := must.Get(json.Marshal(map[string]any{"spec": map[string]any{"affinity": tt.affinity}}))(t)
			expect(t, name, c.Patch(t.Context(), pod.DeepCopy(), client.RawPatch(types.StrategicMergePatchType, patch), client.DryRunAll), tt.want)
		})
	}
}

// As allocator/ungate.go does it. What the policy compares of a pod as large as a pod can be is
// within the API server's budget.
func honestUngating(t *testing.T, c client.Client, pods map[string]*corev1.Pod) {
	for _, name := range []string{"gated", "affine", "large"} {
		pod, required := pods[name], corev1.Affinity{}
		if a := pod.Spec.Affinity; a != nil {
			required.NodeAffinity = &corev1.NodeAffinity{RequiredDuringSchedulingIgnoredDuringExecution: a.NodeAffinity.RequiredDuringSchedulingIgnoredDuringExecution}
		}
		patch := must.Get(json.Marshal(map[string]any{
			"metadata": map[string]any{"uid": pod.UID, "resourceVersion": pod.ResourceVersion, "annotations": map[string]any{v1alpha1.AnnotationPlacement: "{}"}},
			"spec":     map[string]any{"affinity": podstate.PinTo(&required, "n"), "schedulingGates": nil},
		}))(t)
		written := pod.DeepCopy()
		expect(t, name, c.Patch(t.Context(), written, client.RawPatch(types.StrategicMergePatchType, patch), client.DryRunAll), "")
		if len(written.Spec.SchedulingGates) > 0 {
			t.Errorf("%s is gated still", name)
		}
	}
}

func hostileDeletions(t *testing.T, clients map[bool]client.Client, pods map[string]*corev1.Pod) {
	c := clients[false]
	expect(t, "a pod of the system", c.Delete(t.Context(), pods["victim"], client.DryRunAll), "may change and delete only pods that carry it")
	expect(t, "a pod with a share", c.Delete(t.Context(), pods["gated"], client.DryRunAll, client.Preconditions{UID: &pods["gated"].UID}), "")
	expect(t, "all pods of the system", clients[true].DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(metav1.NamespaceSystem),
		&client.DeleteAllOfOptions{DeleteOptions: client.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}), "may change and delete only pods that carry it")
}

// A policy sees the Eviction and not the pod.
func hostileEvictions(t *testing.T, c client.Client, pods map[string]*corev1.Pod) {
	for name, tt := range map[string]struct {
		pod  string
		uid  bool
		want string
	}{
		"a pod of the system":             {"victim", true, "in namespaces with the label vernier.dev/inject=enabled only"},
		"in a namespace without label":    {"elsewhere", true, "in namespaces with the label vernier.dev/inject=enabled only"},
		"whatever has the name":           {"gated", false, "deleteOptions.preconditions.uid"},
		"in a labelled namespace, by UID": {"gated", true, ""},
	} {
		pod := pods[tt.pod]
		eviction := &policyv1.Eviction{DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
		if tt.uid {
			eviction.DeleteOptions.Preconditions = &metav1.Preconditions{UID: &pod.UID}
		}
		expect(t, name, c.SubResource("eviction").Create(t.Context(), pod.DeepCopy(), eviction), tt.want)
	}
}

// The tokens that it makes are for metrics, and short-lived.
func hostileTokens(t *testing.T, clients map[bool]client.Client) {
	for name, tt := range map[string]struct {
		unbounded bool
		account   string
		seconds   int64
		want      string
	}{
		"its own, for longer":               {true, v1alpha1.AllocatorServiceAccount, 600, "of the service account vernier-system/vernier-metrics only"},
		"its own, and RBAC":                 {false, v1alpha1.AllocatorServiceAccount, 600, "forbidden"},
		"for metrics, for a day":            {false, v1alpha1.MetricsServiceAccount, 86400, "spec.expirationSeconds"},
		"for metrics, as long as is usual":  {false, v1alpha1.MetricsServiceAccount, 0, "spec.expirationSeconds"},
		"for metrics, for ten minutes only": {false, v1alpha1.MetricsServiceAccount, 600, ""},
	} {
		request := &authenticationv1.TokenRequest{}
		if tt.seconds > 0 {
			request.Spec.ExpirationSeconds = &tt.seconds
		}
		of := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: tt.account}}
		expect(t, name, clients[tt.unbounded].SubResource("token").Create(t.Context(), of, request), tt.want)
	}
}

func mergePatch(text string) client.Patch {
	return client.RawPatch(types.StrategicMergePatchType, []byte(text))
}
