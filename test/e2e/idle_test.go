// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// replicate has a ReplicaSet make one pod like p.
func replicate(t *testing.T, p *pod) *appsv1.ReplicaSet {
	t.Helper()
	labels := map[string]string{"app": p.Name}
	p.Spec.RestartPolicy = corev1.RestartPolicyAlways
	sets := sys.Cluster.Client.AppsV1().ReplicaSets(p.Namespace)
	made := must.Get(sets.Create(t.Context(), &appsv1.ReplicaSet{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: appsv1.ReplicaSetSpec{
		Replicas: ptr(int32(1)), Selector: &metav1.LabelSelector{MatchLabels: labels},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: labels, Annotations: p.Annotations}, Spec: p.Spec},
	}}, metav1.CreateOptions{}))(t)
	t.Cleanup(func() {
		must.Do(t, sets.Delete(context.Background(), p.Name, metav1.DeleteOptions{PropagationPolicy: ptr(metav1.DeletePropagationBackground)}))
		list := must.Get(sys.Cluster.Client.CoreV1().Pods(p.Namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "app=" + p.Name}))(t)
		for i := range list.Items {
			remove(t, &list.Items[i])
		}
	})
	return made
}

// replica is the youngest pod of the set.
func replica(t *testing.T, set *appsv1.ReplicaSet) *corev1.Pod {
	t.Helper()
	var youngest *corev1.Pod
	await(t, "a pod of "+set.Name, func() (bool, string) {
		list, err := sys.Cluster.Client.CoreV1().Pods(set.Namespace).List(context.Background(), metav1.ListOptions{LabelSelector: "app=" + set.Name})
		if err != nil {
			return false, err.Error()
		}
		for i := range list.Items {
			if p := &list.Items[i]; p.DeletionTimestamp == nil && (youngest == nil || youngest.CreationTimestamp.Before(&p.CreationTimestamp)) {
				youngest = p
			}
		}
		return youngest != nil, ""
	})
	return youngest
}

// An idle slice runs in what others leave of a GPU, and ends at once for a pod that needs its memory, whatever
// its budget says. The pod that its controller makes again waits until there is room.
func TestIdleSlice(t *testing.T) {
	mem := int64(ledger(t, small).Status.Devices[0].Mem)
	busy := burner("owner", 60)
	delete(busy.main().Resources.Limits, v1alpha1.ResourceMemPercent)
	busy.limit(v1alpha1.ResourceMemMiB, mem/2).on(small)
	owner := awaitReady(t, create(t, busy))
	device := placement(t, owner).Containers["main"].Devices[0].UUID
	if text := refused(t, newPod("bare").limit(v1alpha1.ResourceIdleCore, 30).limit(v1alpha1.ResourceIdleMemMiB, 1000)); !strings.Contains(text, "have a controller make it") {
		t.Errorf("a bare pod is refused with %q", text)
	}
	batch := burner("batch", 0)
	batch.main().Resources = corev1.ResourceRequirements{}
	batch.limit(v1alpha1.ResourceIdleCore, 30).limit(v1alpha1.ResourceIdleMemMiB, mem/4).on(small).annotate(v1alpha1.AnnotationGPUUUID, device)
	set := replicate(t, batch)
	idle := awaitReady(t, replica(t, set))
	if s := slicesOf(ledger(t, small), idle.UID); len(s) != 1 || s[0].Idle != 30 || s[0].Core != 0 || int64(s[0].Mem) != mem/4 {
		t.Errorf("the ledger has %+v", s)
	}
	if got := seen(t, idle); got != itoa(mem/4) {
		t.Errorf("a program sees %s MiB, want %d", got, mem/4)
	}
	awaitFor(t, busyPatience, "the owner to have its 60 percent, and the idle slice most of the rest", func() (bool, string) {
		got := shares(t, owner, idle)
		return got[0] >= 60-tolerance && got[1] >= 20, fmt.Sprintf("%.1f", got)
	})
	budgets := sys.Cluster.Client.PolicyV1().PodDisruptionBudgets(namespace)
	must.Get(budgets.Create(t.Context(), &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Name: "batch"}, Spec: policyv1.PodDisruptionBudgetSpec{
		MinAvailable: ptr(intstr.FromInt32(1)), Selector: set.Spec.Selector}}, metav1.CreateOptions{}))(t)
	guarded := true
	unguard := func() {
		if guarded {
			guarded = false
			must.Do(t, budgets.Delete(context.Background(), "batch", metav1.DeleteOptions{}))
		}
	}
	t.Cleanup(unguard)
	await(t, "the budget to count its pod", func() (bool, string) {
		b, err := budgets.Get(context.Background(), "batch", metav1.GetOptions{})
		return err == nil && b.Status.CurrentHealthy == 1 && b.Status.DisruptionsAllowed == 0, ""
	})
	claim := newPod("claim").share(20, 0).limit(v1alpha1.ResourceMemMiB, mem*2/5).on(small).annotate(v1alpha1.AnnotationGPUUUID, device)
	from := time.Now()
	second := awaitReady(t, create(t, claim))
	t.Logf("the pod that needs its memory is ready after %s", time.Since(from))
	awaitEvent(t, idle, "IdleSliceReclaimed")
	if s := slicesOf(ledger(t, small), idle.UID); len(s) > 0 {
		t.Errorf("the ledger still has %+v", s)
	}
	// The budget may let it go as soon as it is not ready, or not before it allows a disruption.
	unguard()
	await(t, "the pod without a slice to be evicted", func() (bool, string) {
		p, err := sys.Cluster.Client.CoreV1().Pods(namespace).Get(context.Background(), idle.Name, metav1.GetOptions{})
		return apierrors.IsNotFound(err) || err == nil && p.DeletionTimestamp != nil, ""
	})
	next := replica(t, set)
	awaitPod(t, next, "to wait", func(p *corev1.Pod) bool {
		return slices.ContainsFunc(p.Spec.SchedulingGates, func(g corev1.PodSchedulingGate) bool { return g.Name == v1alpha1.Gate }) && len(events(context.Background(), p)) > 0
	})
	remove(t, second)
	awaitReady(t, next)
}

// Many idle slices are taken back for one pod at once. How long each took is the agent's own word.
func TestIdleSlicesTakenBack(t *testing.T) {
	const pods = 16
	mem := int64(ledger(t, small).Status.Devices[0].Mem)
	batch := burner("many", 0)
	batch.main().Resources = corev1.ResourceRequirements{}
	batch.limit(v1alpha1.ResourceIdleCore, 1).limit(v1alpha1.ResourceIdleMemMiB, mem/pods-100).on(small)
	set := replicate(t, batch)
	sets := sys.Cluster.Client.AppsV1().ReplicaSets(namespace)
	must.Get(sets.Patch(t.Context(), set.Name, types.MergePatchType, []byte(fmt.Sprintf(`{"spec":{"replicas":%d}}`, pods)), metav1.PatchOptions{}))(t)
	awaitFor(t, busyPatience, "all to run", func() (bool, string) {
		s, err := sets.Get(t.Context(), set.Name, metav1.GetOptions{})
		return err == nil && s.Status.ReadyReplicas == pods, fmt.Sprint(err)
	})
	before := reclaims(t)
	whole := awaitReady(t, create(t, newPod("takes-all").share(100, 100).on(small)))
	after := before
	await(t, "all to be taken back", func() (bool, string) {
		after = reclaims(t)
		return after["+Inf"] == before["+Inf"]+pods, fmt.Sprint(after)
	})
	for _, bound := range slices.Sorted(maps.Keys(after)) {
		t.Logf("gone within %s s: %d of %d", bound, after[bound]-before[bound], pods)
	}
	must.Get(sets.Patch(t.Context(), set.Name, types.MergePatchType, []byte(`{"spec":{"replicas":0}}`), metav1.PatchOptions{}))(t)
	remove(t, whole)
}

// reclaims is how many idle slices were taken back on the node within so many seconds.
func reclaims(t *testing.T) map[string]int {
	t.Helper()
	text := must.Get(sys.Node(small).Agent.Metrics(t.Context()))(t)
	found := map[string]int{}
	for _, m := range regexp.MustCompile(`(?m)^vernier_node_idle_slice_reclaim_seconds_bucket\{le="(.*)"\} (\d+)$`).FindAllStringSubmatch(text, -1) {
		found[m[1]] = must.Get(strconv.Atoi(m[2]))(t)
	}
	return found
}
