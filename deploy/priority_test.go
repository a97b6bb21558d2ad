// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/wait"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// The manifests of docs/concepts/priority.md say which team may use which PriorityClass, and how much of it.
func TestWhoMayUseWhichPriorityClass(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{})
	admin := apiserver.Client(t, cfg)
	page := must.Get(os.ReadFile("../docs/concepts/priority.md"))(t)
	kinds := map[string]bool{}
	for _, block := range regexp.MustCompile("(?s)```yaml\n(.*?)```").FindAllSubmatch(page, -1) {
		for doc := range bytes.SplitSeq(block[1], []byte("\n---\n")) {
			object := &unstructured.Unstructured{}
			must.Do(t, yaml.Unmarshal(doc, &object.Object))
			must.Do(t, admin.Create(t.Context(), object))
			kinds[object.GetKind()] = true
		}
	}
	for _, kind := range []string{"PriorityClass", "Namespace", "ResourceQuota", "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"} {
		if !kinds[kind] {
			t.Errorf("the page has no %s", kind)
		}
	}
	must.Do(t, admin.Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team"}}))
	must.Do(t, admin.Create(t.Context(), &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "low"}, Value: -10}))
	// No controller runs that would fill in the status.
	quota := &corev1.ResourceQuota{}
	must.Do(t, admin.Get(t.Context(), client.ObjectKey{Namespace: "production", Name: "production"}, quota))
	quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{}}
	for name := range quota.Spec.Hard {
		quota.Status.Used[name] = resource.MustParse("0")
	}
	must.Do(t, admin.Status().Update(t.Context(), quota))
	for _, c := range []struct{ namespace, class, core, err string }{
		{"team", "production", "10", "the label priority-class.vernier.dev/production=enabled of the namespace allows this class"},
		{"production", "production", "500", "exceeded quota: production"},
		{"team", "low", "10", ""},
		{"team", "", "500", ""},
		{"team", "system-cluster-critical", "", ""},
		{"production", "", "500", ""},
		{"production", "production", "400", ""},
		{"production", "production", "1", "exceeded quota: production"},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, GenerateName: "p-"},
			Spec: corev1.PodSpec{PriorityClassName: c.class, Containers: []corev1.Container{{Name: "main", Image: "none"}}}}
		if c.core != "" {
			// As admission leaves it.
			n := resource.MustParse(c.core)
			pod.Spec.Containers[0].Resources.Limits = corev1.ResourceList{v1alpha1.ResourceCore: n, v1alpha1.ResourceMemPercent: n}
		}
		var err error
		// Policies and quotas are in force a moment after they are stored.
		_ = wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
			err = admin.Create(t.Context(), pod.DeepCopy(), client.DryRunAll)
			return (err == nil) == (c.err == "") && (err == nil || strings.Contains(err.Error(), c.err)), nil
		})
		if err == nil {
			err = admin.Create(t.Context(), pod)
		}
		if (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("class %q in namespace %s, %s %%: %v, want %q", c.class, c.namespace, c.core, err, c.err)
		}
	}
}
