// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"vernier.dev/vernier/api/v1alpha1"
)

func TestOf(t *testing.T) {
	for name, c := range map[string]struct {
		devices                []v1alpha1.DeviceStatus
		core, mem, mib, slices string
	}{
		"none": {nil, "0", "0", "0", "0"},
		"two":  {[]v1alpha1.DeviceStatus{{Mem: 81920}, {Mem: 15360}}, "200", "200", "97280", "512"},
	} {
		got := Of(c.devices)
		for name2, want := range map[corev1.ResourceName]string{
			v1alpha1.ResourceCore: c.core, v1alpha1.ResourceMemPercent: c.mem,
			v1alpha1.ResourceMemMiB: c.mib, v1alpha1.ResourceGPUs: c.slices,
		} {
			q, found := got[name2]
			if !found || q.String() != want {
				t.Errorf("%s: %s is %s (there: %t), want %s", name, name2, q.String(), found, want)
			}
		}
		if len(got) != len(v1alpha1.Resources) {
			t.Errorf("%s: %d resources, want %d", name, len(got), len(v1alpha1.Resources))
		}
	}
}

func TestHas(t *testing.T) {
	want := Of([]v1alpha1.DeviceStatus{{Mem: 81920}})
	if full := want.DeepCopy(); !has(full, want) {
		t.Error("a full list lacks something")
	}
	for name := range want {
		less, zero := want.DeepCopy(), want.DeepCopy()
		delete(less, name)
		zero[name] = resource.MustParse("0")
		if has(less, want) || has(zero, want) {
			t.Errorf("a list without %s lacks nothing", name)
		}
	}
}
