// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"fmt"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/objects"
)

// A node's labels say which GPUs it has, and are written where they say something else.
func TestNodeLabels(t *testing.T) {
	f := newFixture(t, objects.ReadyLedger("n"))
	must.Do(t, f.api.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{"zone": "a"}}}))
	labels := func() map[string]string {
		node := &corev1.Node{}
		must.Do(t, f.api.Get(t.Context(), client.ObjectKey{Name: "n"}, node))
		return node.Labels
	}
	known := true
	f.NodeLabels = func(string) (map[string]string, bool) { return labels(), known }
	device := func(uuid, model string, mem v1alpha1.MiB) v1alpha1.DeviceStatus {
		return v1alpha1.DeviceStatus{UUID: uuid, Model: model, Mem: mem}
	}
	for _, step := range []struct {
		name    string
		devices []v1alpha1.DeviceStatus
		known   bool
		want    map[string]string
	}{
		{"one model", []v1alpha1.DeviceStatus{device("a", "NVIDIA A100-SXM4-80GB", 81920), device("b", "NVIDIA A100-SXM4-80GB", 81920)}, true,
			map[string]string{"zone": "a", "vernier.dev/gpu-model": "NVIDIA-A100-SXM4-80GB", "vernier.dev/gpu-count": "2", "vernier.dev/gpu-mem-mib": "81920"}},
		{"two models", []v1alpha1.DeviceStatus{device("a", "NVIDIA A100-SXM4-80GB", 81920), device("c", "Tesla T4", 15360)}, true,
			map[string]string{"zone": "a", "vernier.dev/gpu-count": "2", "vernier.dev/gpu-mem-mib": "15360"}},
		{"no driver for a while", nil, true, map[string]string{"zone": "a", "vernier.dev/gpu-count": "2", "vernier.dev/gpu-mem-mib": "15360"}},
		{"a node that is gone", []v1alpha1.DeviceStatus{device("c", "(T4)", 15360)}, false, map[string]string{"zone": "a", "vernier.dev/gpu-count": "2", "vernier.dev/gpu-mem-mib": "15360"}},
		{"a name that is no label", []v1alpha1.DeviceStatus{device("c", "(T4) x", 15360)}, true,
			map[string]string{"zone": "a", "vernier.dev/gpu-model": "T4-x", "vernier.dev/gpu-count": "1", "vernier.dev/gpu-mem-mib": "15360"}},
	} {
		l := f.ledger()
		l.Status.Devices = step.devices
		f.must(f.api.Status().Update(t.Context(), l))
		f.Cache.SetLedger(l)
		known = step.known
		must.Do(t, f.setLabels(t.Context(), "n"))
		if got := labels(); fmt.Sprint(got) != fmt.Sprint(step.want) {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
	}
}
