// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// A pod with a share does not leave its namespace's quota long before it leaves its node:
// neither by a deletion that gives its kubelet more time than the pod has, nor by one after
// that which takes the pod away, nor by evictions. Kubelets, Kubernetes' controllers and who
// drains nodes delete as before, and so does everybody pods without a share.
func TestHostileDeletions(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/operator.yaml", "rbac/allocator.yaml", "admission/deletion-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	objects := []client.Object{
		&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "tenant"}, Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"*"}},
			{APIGroups: []string{""}, Resources: []string{"pods/eviction"}, Verbs: []string{"create"}},
		}},
		&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "operator"},
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "vernier-operator"}, Subjects: []rbacv1.Subject{{Kind: "User", APIGroup: rbacv1.GroupName, Name: "operator"}}},
	}
	for name, labels := range map[string]map[string]string{labelled: {v1alpha1.LabelInject: v1alpha1.LabelInjectEnabled}, unlabelled: nil} {
		objects = append(objects, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}},
			&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: name, Name: "tenant"},
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "tenant"}, Subjects: []rbacv1.Subject{{Kind: "Group", APIGroup: rbacv1.GroupName, Name: "deleters"}}})
	}
	for _, o := range objects {
		must.Do(t, admin.Create(t.Context(), o))
	}
	as := map[string]client.Client{
		"tenant":        apiserver.Client(t, apiserver.As(cfg, "tenant", "deleters", "system:serviceaccounts:"+labelled)),
		"kubelet":       apiserver.Client(t, apiserver.As(cfg, "system:node:n1", "deleters", "system:nodes")),
		"pod GC":        apiserver.Client(t, apiserver.As(cfg, "system:serviceaccount:kube-system:pod-garbage-collector", "deleters", "system:serviceaccounts:kube-system")),
		"one manager":   apiserver.Client(t, apiserver.As(cfg, "system:kube-controller-manager", "deleters")),
		"operator":      apiserver.Client(t, apiserver.As(cfg, "operator", "deleters")),
		"admin":         admin,
		"the allocator": apiserver.Client(t, apiserver.AsServiceAccount(cfg, v1alpha1.AllocatorServiceAccount)),
	}
	const years, force = 100_000_000, 0
	const beyond, cut, evicted = "at most to end", "cannot be deleted by force", "who may drain nodes"
	type shape struct {
		own       int64 // spec.terminationGracePeriodSeconds
		plain     bool  // without a share
		unbound   bool
		phase     corev1.PodPhase
		deleted   int64 // before, with that grace
		namespace string
	}
	none := int64(-1)
	for name, c := range map[string]struct {
		who   string
		pod   shape
		grace int64
		evict bool
		want  string
	}{
		"years":                              {"tenant", shape{own: 30}, years, false, beyond},
		"years, by an administrator":         {"admin", shape{own: 30}, years, false, beyond},
		"an hour, for a drain":               {"admin", shape{own: 30}, 3600, false, ""},
		"a second more":                      {"tenant", shape{own: 30}, 31, false, beyond},
		"its own":                            {"tenant", shape{own: 30}, 30, false, ""},
		"its own, not named":                 {"tenant", shape{own: years}, none, false, ""},
		"less":                               {"tenant", shape{own: years}, 1, false, ""},
		"by force, with Kubernetes' default": {"tenant", shape{own: 30, deleted: 30}, force, false, ""},
		"by force, with a longer one":        {"tenant", shape{own: 31}, force, false, cut},
		"by force, once it is being deleted": {"tenant", shape{own: 3600, deleted: 3600}, force, false, cut},
		"cut short":                          {"tenant", shape{own: 3600, deleted: 3600}, 1, false, cut},
		"cut short, with the default":        {"tenant", shape{own: 30, deleted: 30}, 1, false, ""},
		"deleted again":                      {"tenant", shape{own: 3600, deleted: 60}, 60, false, ""},
		"deleted again, not named":           {"tenant", shape{own: 3600, deleted: 3600}, none, false, ""},
		"by force, when it has ended":        {"tenant", shape{own: 3600, phase: corev1.PodFailed}, force, false, ""},
		"by force, before it is bound":       {"tenant", shape{own: 3600, unbound: true}, force, false, ""},
		"years, without a share":             {"tenant", shape{own: 30, plain: true}, years, false, ""},
		"by force, without a share":          {"tenant", shape{own: 3600, plain: true}, force, false, ""},
		"what the kubelet does at the end":   {"kubelet", shape{own: 3600, deleted: 3600}, force, false, ""},
		"what the pod GC does":               {"pod GC", shape{own: 3600}, force, false, ""},
		"all controllers in one":             {"one manager", shape{own: 3600}, force, false, ""},
		"by force, by an operator":           {"operator", shape{own: 3600, deleted: 3600}, force, false, ""},
		"by force, by an administrator":      {"admin", shape{own: 3600}, force, false, ""},

		"evicted":                         {"tenant", shape{own: 3600}, none, true, ""},
		"evicted, for years":              {"tenant", shape{own: 30}, years, true, evicted},
		"evicted, at once":                {"tenant", shape{own: 3600, deleted: 3600}, force, true, evicted},
		"evicted by an operator":          {"operator", shape{own: 30}, 600, true, ""},
		"evicted by an operator, years":   {"operator", shape{own: 30}, years, true, "at most an hour"},
		"evicted by a drain":              {"admin", shape{own: 30}, 0, true, ""},
		"evicted by the autoscaler":       {"pod GC", shape{own: 30}, 600, true, ""},
		"evicted by the allocator":        {"the allocator", shape{own: 30}, none, true, ""},
		"by the allocator, looking ahead": {"the allocator", shape{own: 24 * 3600}, 7200, true, ""},
		"cut short by the allocator":      {"the allocator", shape{own: years, deleted: years}, 3600, true, ""},
		"evicted where no shares can be":  {"tenant", shape{own: 30, plain: true, namespace: unlabelled}, years, true, ""},
	} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{GenerateName: "p-", Namespace: labelled, Annotations: map[string]string{v1alpha1.AnnotationShares: "{}"}},
			Spec:       corev1.PodSpec{NodeName: "n1", TerminationGracePeriodSeconds: &c.pod.own, Containers: []corev1.Container{{Name: "main", Image: "none"}}},
		}
		if c.pod.namespace != "" {
			pod.Namespace = c.pod.namespace
		}
		if c.pod.plain {
			pod.Annotations = nil
		}
		if c.pod.unbound {
			pod.Spec.NodeName = ""
		}
		must.Do(t, admin.Create(t.Context(), pod))
		pod.Status.Phase = corev1.PodRunning
		if c.pod.phase != "" {
			pod.Status.Phase = c.pod.phase
		}
		must.Do(t, admin.Status().Update(t.Context(), pod))
		if c.pod.deleted > 0 {
			must.Do(t, admin.Delete(t.Context(), pod.DeepCopy(), client.GracePeriodSeconds(c.pod.deleted)))
		}
		var options client.DeleteOptions
		if c.grace != none {
			options.GracePeriodSeconds = &c.grace
		}
		if c.evict {
			eviction := &policyv1.Eviction{DeleteOptions: options.AsDeleteOptions()}
			expect(t, name, as[c.who].SubResource("eviction").Create(t.Context(), pod.DeepCopy(), eviction), c.want)
			continue
		}
		expect(t, name+", of all", as[c.who].DeleteAllOf(t.Context(), &corev1.Pod{}, client.InNamespace(labelled),
			client.MatchingFields{metav1.ObjectNameField: pod.Name}, &client.DeleteAllOfOptions{DeleteOptions: client.DeleteOptions{GracePeriodSeconds: options.GracePeriodSeconds, DryRun: []string{metav1.DryRunAll}}}), c.want)
		expect(t, name, as[c.who].Delete(t.Context(), pod.DeepCopy(), &options), c.want)
	}
}
