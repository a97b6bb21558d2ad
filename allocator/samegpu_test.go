// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

func required(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationSameGPU] = v1alpha1.SameGPURequired }

// A pod whose containers have to be on one GPU waits until one has room for all, is told so,
// and stays on one when that fails before it is used.
func TestSameGPU(t *testing.T) {
	s := newStage(t, 1)
	s.add("x", 50, 500)
	s.work()
	s.add("y", 60, 500)
	s.work()
	s.pair("p", objects.Share(30, 300), objects.Share(30, 300), required)
	s.work()
	if got := s.on("p"); got != "" {
		t.Fatalf("on %s, where there is no room for both on one", got)
	}
	s.says("the containers need 60 % compute and 600 MiB on one GPU together, as vernier.dev/same-gpu says")
	// Pods that ask for the same and may be apart have another reason to wait, or none.
	s.pair("q", objects.Share(30, 300), objects.Share(30, 300), func(*corev1.Pod) {})
	s.work()
	if got := s.on("q"); got == "" {
		t.Error("the pod that may be on two GPUs waits too")
	}
	for _, name := range []string{"x", "q"} {
		s.must(s.api.Delete(t.Context(), s.get(name)))
		s.notify(s.get(name), true)
	}
	s.work()
	from := s.on("p")
	if from != "GPU-n0-0 GPU-n0-0" && from != "GPU-n0-1 GPU-n0-1" {
		t.Fatalf("on %q, want both on one", from)
	}
}

// A device that fails before the first start: all its containers go to one other.
func TestSameGPURehome(t *testing.T) {
	for name, free := range map[string]v1alpha1.Percent{"room": 60, "no room for both": 50} {
		s := newStage(t, 1)
		s.pair("p", objects.Share(30, 300), objects.Share(30, 300), required)
		s.work()
		s.bind()
		from := s.on("p")
		if from != "GPU-n0-0 GPU-n0-0" {
			t.Fatalf("on %q, want both on one", from)
		}
		s.add("x", 100-free, 100, onDevice("GPU-n0-1"))
		s.work()
		s.cannotStart("p", "a")
		s.node("n0").own(hardware{uuid: "GPU-n0-2", mem: objects.DeviceMiB})
		s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
			st.Devices = append(st.Devices, v1alpha1.DeviceStatus{UUID: "GPU-n0-2", Index: 2, Minor: 2, Model: "T4", Mem: 500, Healthy: true})
			st.Devices[0].Healthy = false
		})
		s.work()
		want := from
		if free == 60 {
			want = "GPU-n0-1 GPU-n0-1"
		}
		if got := s.on("p"); got != want {
			t.Errorf("%s: on %q, want %q", name, got, want)
		}
	}
}

// Without the wish, one GPU wins where it costs the node no more.
func TestOneGPUWinsTies(t *testing.T) {
	s := newStage(t, 1)
	for device, core := range map[string]v1alpha1.Percent{"GPU-n0-0": 50, "GPU-n0-1": 40} {
		s.add("x"+strings.ToLower(device), core, 100, onDevice(device))
		s.work()
	}
	s.pair("p", objects.Share(50, 100), objects.Share(10, 100), onDevice("GPU-n0-0,GPU-n0-1"))
	s.work()
	if got := s.on("p"); got != "GPU-n0-1 GPU-n0-1" {
		t.Errorf("on %q, want both on the GPU that they fill", got)
	}
}
