// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/test/objects"
)

// addBudget creates a budget of pods of that app as its controller leaves it.
func (s *server) addBudget(name, app string, edit func(*policyv1.PodDisruptionBudget)) *policyv1.PodDisruptionBudget {
	s.t.Helper()
	b := &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		Spec: policyv1.PodDisruptionBudgetSpec{MinAvailable: ptr.To(intstr.FromInt32(2)), Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}
	b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: 1, ExpectedPods: 2, CurrentHealthy: 2, DesiredHealthy: 2}
	if edit != nil {
		edit(b)
	}
	status := b.Status
	s.must(s.Create(s.t.Context(), b))
	b.Status = status
	s.must(s.Status().Update(s.t.Context(), b))
	return b
}

// Budgets are counted as the API server's own Eviction counts them, whatever a pod and its budgets
// are like.
func TestBudgetsAreCountedAsEvictionDoes(t *testing.T) {
	s := start(t)
	kube := kubernetes.NewForConfigOrDie(s.cfg).CoreV1().RESTClient()
	pods := map[string]func(*corev1.Pod){
		"ready": func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		},
		"unready": func(p *corev1.Pod) {
			p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}}
		},
		"pending":   func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending },
		"succeeded": func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded },
		"failed":    func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed },
		"ending":    func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning },
	}
	always, healthy := policyv1.AlwaysAllow, policyv1.IfHealthyBudget
	budgets := map[string][]func(*policyv1.PodDisruptionBudget){
		"none":        {},
		"allows one":  {func(b *policyv1.PodDisruptionBudget) { b.Status.DisruptionsAllowed = 1 }},
		"allows none": {nil},
		"lacks one":   {func(b *policyv1.PodDisruptionBudget) { b.Status.CurrentHealthy = 1 }},
		"wants none":  {func(b *policyv1.PodDisruptionBudget) { b.Status.DesiredHealthy = 0 }},
		"not seen":    {func(b *policyv1.PodDisruptionBudget) { b.Status.ObservedGeneration, b.Status.DisruptionsAllowed = 0, 1 }},
		"always": {func(b *policyv1.PodDisruptionBudget) {
			b.Spec.UnhealthyPodEvictionPolicy, b.Status.CurrentHealthy = &always, 1
		}},
		"if healthy": {func(b *policyv1.PodDisruptionBudget) { b.Spec.UnhealthyPodEvictionPolicy = &healthy }},
		"if not healthy": {func(b *policyv1.PodDisruptionBudget) {
			b.Spec.UnhealthyPodEvictionPolicy, b.Status.CurrentHealthy = &healthy, 1
		}},
		"two":        {func(b *policyv1.PodDisruptionBudget) { b.Status.DisruptionsAllowed = 1 }, func(b *policyv1.PodDisruptionBudget) { b.Status.DisruptionsAllowed = 1 }},
		"of no pods": {func(b *policyv1.PodDisruptionBudget) { b.Spec.Selector = nil }},
		"many disrupted": {func(b *policyv1.PodDisruptionBudget) {
			b.Status.DisruptionsAllowed, b.Status.DisruptedPods = 1, map[string]metav1.Time{}
			for i := range 2001 {
				b.Status.DisruptedPods[fmt.Sprint("p", i)] = metav1.NewTime(time.Unix(0, 0))
			}
		}},
	}
	var known []runtime.Object
	var all []*corev1.Pod
	for i, kind := range slices.Sorted(maps.Keys(budgets)) {
		app := fmt.Sprint("app-", i)
		for j, edit := range budgets[kind] {
			known = append(known, s.addBudget(fmt.Sprint(app, "-", j), app, edit))
		}
		for state, edit := range pods {
			p := s.addPlain(app+"-"+state, "n0", "1", objects.Labelled(app), func(p *corev1.Pod) {
				p.Finalizers = []string{"example.com/held"}
				p.Annotations = map[string]string{"case": state + ", budget " + kind}
			})
			edit(p)
			s.must(s.Status().Update(t.Context(), p))
			if state == "ending" {
				s.must(s.Delete(t.Context(), p))
			}
			s.must(s.Get(t.Context(), client.ObjectKeyFromObject(p), p))
			all = append(all, p)
		}
	}
	counted := objects.Filters(t.Context(), t, known...).Budgets("ns")
	allowed := 0
	for _, p := range all {
		budget, ok := counted.Of(p)
		ok = ok && (budget == nil || feasible.Allowed(budget) > 0)
		eviction := &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: p.Name}, DeleteOptions: &metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}}
		// A refusal has the client ask again by itself.
		err := kube.Post().MaxRetries(0).Namespace(p.Namespace).Resource("pods").Name(p.Name).SubResource("eviction").Body(eviction).Do(t.Context()).Error()
		if refused := apierrors.IsTooManyRequests(err) || apierrors.IsForbidden(err) || apierrors.IsInternalError(err); err != nil && !refused {
			t.Fatalf("pod %s: %v", p.Annotations["case"], err)
		}
		if ok != (err == nil) {
			t.Errorf("pod %s: counted as evictable: %v; the API server says %v", p.Annotations["case"], ok, err)
		}
		if ok {
			allowed++
		}
	}
	if allowed < 20 || len(all)-allowed < 10 {
		t.Errorf("%d of %d evictions are allowed: the test shows nothing", allowed, len(all))
	}
	for _, p := range all {
		p.Finalizers = nil
		s.must(s.Update(t.Context(), p))
	}
}

// Against the API server: two pods under a budget that allows no eviction, a third of higher priority
// waits and says for which; the budget opens, in its spec or as a replica becomes ready, and nothing
// else happens.
func TestPreemptionWaitsForABudget(t *testing.T) {
	s := startWith(t, nil)
	s.addClasses()
	s.addNode("n0")
	s.run()
	for _, name := range []string{"low0", "low1"} {
		s.addPod(name, objects.Share(60, 600), objects.Labelled("x"))
		s.awaitPlaced(name)
		p := s.pod(name)
		s.must(s.SubResource("binding").Create(t.Context(), p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: "n0"}}))
		s.must(s.Get(t.Context(), client.ObjectKeyFromObject(p), p))
		p.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
		s.must(s.Status().Update(t.Context(), p))
	}
	b := s.addBudget("keep", "x", nil)
	s.addPod("high", objects.Share(60, 600), ofClass("urgent"))
	s.awaitEvent("high", notify.ReasonWaiting, "PodDisruptionBudget keep allows 0 evictions now, needs 2 healthy pods and has 2")
	// What its controller writes.
	b.Spec.MinAvailable = ptr.To(intstr.FromInt32(1))
	s.must(s.Update(t.Context(), b))
	b.Status = policyv1.PodDisruptionBudgetStatus{ObservedGeneration: b.Generation, ExpectedPods: 2, CurrentHealthy: 2, DesiredHealthy: 1, DisruptionsAllowed: 1}
	s.must(s.Status().Update(t.Context(), b))
	s.awaitEvent("high", notify.ReasonPreempting, "ends pods of lower priority")
}
