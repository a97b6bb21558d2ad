// SPDX-License-Identifier: Apache-2.0

package capacity

import (
	"errors"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/classes"
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

// Invariant 4: a device that is unhealthy, or gone, counts for as long as it has slices. A
// kubelet that starts over ends running pods that ask for more than there is.
func TestCounted(t *testing.T) {
	now := &device.Snapshot{Devices: []v1alpha1.DeviceStatus{
		{UUID: "well", Mem: 10, Healthy: true}, {UUID: "well-and-free", Mem: 10, Healthy: true},
		{UUID: "unhealthy", Mem: 10}, {UUID: "unhealthy-and-free", Mem: 10},
	}}
	l := &v1alpha1.SliceLedger{}
	for _, uuid := range []string{"well", "unhealthy", "gone"} {
		l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: uuid, Core: 100, Mem: 10, Slices: []v1alpha1.Slice{
			{Pod: "a", Owner: "ns/a", Ctr: "main", Core: 10, Mem: 1}, {Pod: "b", Owner: "ns/b", Ctr: "main", Core: 10, Mem: 1},
		}})
	}
	l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: "unhealthy-and-free", Core: 100, Mem: 10})
	var got []string
	for _, d := range Counted(now, ledger.NewIndex(l)) {
		if got = append(got, d.UUID); d.Mem != 10 {
			t.Errorf("%s has %d MiB, want 10", d.UUID, d.Mem)
		}
	}
	slices.Sort(got)
	if want := []string{"gone", "unhealthy", "well", "well-and-free"}; !slices.Equal(got, want) {
		t.Errorf("counted %v, want %v", got, want)
	}
}

func TestWith(t *testing.T) {
	want := Of([]v1alpha1.DeviceStatus{{Mem: 81920}})
	full := want.DeepCopy()
	full[corev1.ResourceCPU] = resource.MustParse("8")
	if got := with(full, want); !equality.Semantic.DeepEqual(got, full) {
		t.Errorf("a full list becomes %v", got)
	}
	for name := range want {
		less, zero, more := full.DeepCopy(), full.DeepCopy(), full.DeepCopy()
		delete(less, name)
		zero[name] = resource.MustParse("0")
		more["vernier.dev/gpu-gone"] = resource.MustParse("1")
		for _, list := range []corev1.ResourceList{less, zero, more} {
			if got := with(list, want); equality.Semantic.DeepEqual(got, list) || !equality.Semantic.DeepEqual(got, full) {
				t.Errorf("%v becomes %v", list, got)
			}
		}
	}
}

func TestUnits(t *testing.T) {
	class := func(name string, unit v1alpha1.GPUUnit, models ...string) v1alpha1.GPUClass {
		return v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.GPUClassSpec{Models: models, Unit: unit}}
	}
	known := classes.Of(class("gold", v1alpha1.GPUUnit{Core: 25, MemMiB: 25000}, "H100", "H200"), class("third", v1alpha1.GPUUnit{Core: 30}, "H100"),
		class("none", v1alpha1.GPUUnit{Core: 1}, "T4")).All()
	devices := []v1alpha1.DeviceStatus{{Model: "NVIDIA H100", Mem: 81559}, {Model: "NVIDIA H200", Mem: 143771}, {Model: "NVIDIA A100", Mem: 81559}, {Mem: 81559}}
	asks := func(name, n string) corev1.Container {
		return corev1.Container{Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceName(name): resource.MustParse(n)}}}
	}
	pod := func(phase corev1.PodPhase, init []corev1.Container, containers ...corev1.Container) corev1.Pod {
		return corev1.Pod{Status: corev1.PodStatus{Phase: phase}, Spec: corev1.PodSpec{InitContainers: init, Containers: containers}}
	}
	always := corev1.ContainerRestartPolicyAlways
	sidecar := asks("vernier.dev/gpu-gone", "2")
	sidecar.RestartPolicy = &always
	for name, tt := range map[string]struct {
		pods []corev1.Pod
		want map[string]string
	}{
		"no pods": {nil, map[string]string{"gold": "7", "third": "3", "none": "0"}},
		"pods of a class": {[]corev1.Pod{pod(corev1.PodRunning, nil, asks("vernier.dev/gpu-gold", "4"), asks("vernier.dev/gpu-core", "900"))},
			map[string]string{"gold": "7", "third": "3", "none": "0"}},
		"more than there is": {[]corev1.Pod{pod(corev1.PodRunning, nil, asks("vernier.dev/gpu-third", "3")), pod(corev1.PodPending, nil, asks("vernier.dev/gpu-third", "2"))},
			map[string]string{"gold": "7", "third": "5", "none": "0"}},
		"a class that was deleted": {[]corev1.Pod{pod(corev1.PodRunning, []corev1.Container{asks("vernier.dev/gpu-gone", "9"), sidecar}, asks("vernier.dev/gpu-gone", "3"), asks("vernier.dev/gpu-gone", "3"))},
			map[string]string{"gold": "7", "third": "3", "none": "0", "gone": "9"}},
		"pods that have ended": {[]corev1.Pod{pod(corev1.PodSucceeded, nil, asks("vernier.dev/gpu-gone", "3")), pod(corev1.PodFailed, nil, asks("vernier.dev/gpu-gone", "3"))},
			map[string]string{"gold": "7", "third": "3", "none": "0"}},
	} {
		got := Units(devices, known, tt.pods)
		if len(got) != len(tt.want) {
			t.Errorf("%s: %v, want %v", name, got, tt.want)
		}
		for class, want := range tt.want {
			if n := got[v1alpha1.ClassResource(class)]; n.String() != want {
				t.Errorf("%s: %s units of %s, want %s", name, n.String(), class, want)
			}
		}
	}
}

// What waits for the classes is tried again: nothing else may change on the node for long.
func TestKeepBeforeClasses(t *testing.T) {
	for _, known := range []bool{false, true} {
		k := Keeper{Classes: &classes.Set{}, Counted: func() ([]v1alpha1.DeviceStatus, bool) { return nil, known }}
		if err := k.Keep(t.Context()); known != errors.Is(err, errClasses) {
			t.Errorf("devices known: %v: %v", known, err)
		}
	}
}
