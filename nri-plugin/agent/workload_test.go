// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
)

// Of a pod in the cache the workload is known, and of another one of its name not.
func TestWorkloadOf(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "team", Name: "web-abc-x", UID: "u", Labels: map[string]string{"pod-template-hash": "abc", "app": "web"},
		OwnerReferences: []metav1.OwnerReference{{Kind: "Other"}, {APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "web-abc", UID: "r", Controller: ptr.To(true)}},
	}}
	slim := must.Get(slimPod(pod))(t).(*corev1.Pod)
	if len(slim.Labels) != 1 || len(slim.OwnerReferences) != 1 {
		t.Errorf("the cache keeps %v, %v", slim.Labels, slim.OwnerReferences)
	}
	quiet := pod.DeepCopy()
	quiet.Name, quiet.Annotations = "quiet", map[string]string{"vernier.dev/advice": "off"}
	of := workloadOf(fake.NewClientBuilder().WithObjects(slim, must.Get(slimPod(quiet))(t).(*corev1.Pod)).Build())
	for name, tt := range map[string]struct {
		of   mode.Container
		want string
	}{
		"its container":  {mode.Container{Pod: "u", Owner: "team/web-abc-x"}, "Deployment/web"},
		"another UID":    {mode.Container{Pod: "v", Owner: "team/web-abc-x"}, ""},
		"without advice": {mode.Container{Pod: "u", Owner: "team/quiet"}, ""},
		"no pod":         {mode.Container{Pod: "u", Owner: "team/p"}, ""},
	} {
		if got := of(tt.of); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
