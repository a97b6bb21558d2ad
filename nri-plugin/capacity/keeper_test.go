// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
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

// Invariant 4: a device that is ill, or gone, counts for as long as it has slices. A
// kubelet that starts over ends running pods that ask for more than there is.
func TestCounted(t *testing.T) {
	now := &device.Snapshot{Devices: []v1alpha1.DeviceStatus{
		{UUID: "well", Mem: 10, Healthy: true}, {UUID: "well-and-free", Mem: 10, Healthy: true},
		{UUID: "ill", Mem: 10}, {UUID: "ill-and-free", Mem: 10},
	}}
	l := &v1alpha1.SliceLedger{}
	for _, uuid := range []string{"well", "ill", "gone"} {
		l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: uuid, Core: 100, Mem: 10, Slices: []v1alpha1.Slice{
			{Pod: "a", Owner: "ns/a", Ctr: "main", Core: 10, Mem: 1}, {Pod: "b", Owner: "ns/b", Ctr: "main", Core: 10, Mem: 1},
		}})
	}
	l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: "ill-and-free", Core: 100, Mem: 10})
	var got []string
	for _, d := range Counted(now, ledger.NewIndex(l)) {
		if got = append(got, d.UUID); d.Mem != 10 {
			t.Errorf("%s has %d MiB, want 10", d.UUID, d.Mem)
		}
	}
	slices.Sort(got)
	if want := []string{"gone", "ill", "well", "well-and-free"}; !slices.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
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
