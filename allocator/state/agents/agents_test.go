// SPDX-License-Identifier: Apache-2.0

package agents

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// Who has a kubelet's credentials can write the address of its node's agent: it sends the allocator,
// and its token, to no port but the agent's, not to its own machine and not to a cloud's metadata.
func TestHostileAgentAddresses(t *testing.T) {
	for address, want := range map[string]string{
		"10.0.0.7":         "10.0.0.7:9555",
		"192.168.1.1":      "192.168.1.1:9555",
		"fd00::7":          "[fd00::7]:9555",
		"":                 "",
		"127.0.0.1":        "",
		"127.8.8.8":        "",
		"::1":              "",
		"::ffff:127.0.0.1": "",
		"0.0.0.0":          "",
		"::":               "",
		"169.254.169.254":  "",
		"::ffff:a9fe:a9fe": "",
		"fe80::1":          "",
		"fe80::1%eth0":     "",
		"fd00::7%eth0":     "",
		"224.0.0.1":        "",
		"ff02::1":          "",
		"255.255.255.255":  "",
		"10.0.0.7:443":     "",
		"10.0.0.7/x?":      "",
		"evil.example.com": "",
		"u:p@10.0.0.7":     "",
		"[fd00::7]":        "",
	} {
		a := &Agents{}
		a.Set(&corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "p", UID: "p"},
			Spec: corev1.PodSpec{NodeName: "n", ServiceAccountName: v1alpha1.NodeServiceAccount,
				Containers: []corev1.Container{{Ports: []corev1.ContainerPort{{Name: "metrics", ContainerPort: 9555}}}}},
			Status: corev1.PodStatus{PodIP: address, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
		if got := a.Metrics("n"); got != want {
			t.Errorf("%q: asks %q, want %q", address, got, want)
		}
	}
}
