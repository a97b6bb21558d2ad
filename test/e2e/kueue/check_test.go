// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package kueue

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// A Job is admitted once there are devices for all of its pods, which take what was reserved. One that
// would never fit is rejected, with the reason.
func TestJob(t *testing.T) {
	placementCheck(t)
	queue(t, "jobs", 10000, withCheck)
	job(t, "jobs", "train", 3, limits(60, 1000))
	w := awaitSaid(t, "jobs", "train", "Ready", "room for 3 pods is reserved")
	for _, p := range awaitRunning(t, "jobs", "train", 3) {
		if got := podrequest.ReservedFor(&p); got != w.GetUID() {
			t.Errorf("pod %s takes the room of %q, want %q", p.Name, got, w.GetUID())
		}
	}
	job(t, "jobs", "large", 2*gpus+1, limits(100, 1000))
	await(t, "the large one to be rejected", func() (bool, string) {
		w := workloads(t, "jobs")["large"]
		if w == nil {
			return false, "it has no Workload yet"
		}
		active, found, _ := unstructured.NestedBool(w.Object, "spec", "active")
		_, message, _ := said(w)
		return found && !active, message
	})
	out, err := sys.Shell(t.Context(), "kubectl -n jobs get events | grep AdmissionCheckRejected")
	if err != nil {
		t.Errorf("%v: %s", err, out)
	}
}

// Plain pods and pod groups take what was reserved for them: Kueue adds the annotation as it takes its
// gate off.
func TestPlainPods(t *testing.T) {
	placementCheck(t)
	queue(t, "plain", 200, withCheck)
	pod := func(name, group string) {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "plain", Name: name, Labels: map[string]string{podrequest.LabelKueueQueue: "q"}}, Spec: podSpec(limits(100, 1000), forever)}
		if group != "" {
			p.Labels[podrequest.LabelKueue] = group
			p.Annotations = map[string]string{podrequest.AnnotationKueueTotal: "2"}
		}
		must.Do(t, sys.Client.Create(t.Context(), p))
	}
	uid := func(owner string, pods []corev1.Pod) {
		t.Helper()
		want := map[types.UID]bool{}
		for _, w := range workloads(t, "plain") {
			want[w.GetUID()] = true
		}
		for _, p := range pods {
			if !want[podrequest.ReservedFor(&p)] || p.Annotations[v1alpha1.AnnotationShares] == "" {
				t.Errorf("%s: pod %s has annotations %v", owner, p.Name, p.Annotations)
			}
		}
	}
	pod("alone", "")
	uid("alone", awaitRunning(t, "plain", "alone", 1))
	pod("g-0", "g")
	pod("g-1", "g")
	await(t, "the group to wait for quota", func() (bool, string) {
		w := workloads(t, "plain")["g"]
		return w != nil && !is(w, "QuotaReserved"), ""
	})
	must.Do(t, sys.Client.Delete(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "plain", Name: "alone"}}))
	uid("group", awaitRunning(t, "plain", "", 2))
}
