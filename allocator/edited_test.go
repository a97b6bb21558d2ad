// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// Somebody has changed or removed a part of a pod's slices by hand. The node starts no
// container with what is left; then all are put back where the pod was placed, whether
// others of its containers run or not, unless others were granted the room.
func TestEditedSlicesArePutBack(t *testing.T) {
	const want = "a 10 20, b 30 40, b 30 40"
	for name, edit := range map[string]func(*v1alpha1.Slice) (remove bool){
		"removed":           func(sl *v1alpha1.Slice) bool { return sl.Ctr == "b" },
		"less memory":       func(sl *v1alpha1.Slice) bool { sl.Mem = 1; return false },
		"another container": func(sl *v1alpha1.Slice) bool { sl.Ctr = strings.ReplaceAll(sl.Ctr, "b", "c"); return false },
	} {
		for _, runs := range []bool{false, true} {
			s := newStage(t, 1)
			s.pair("p", objects.Share(10, 20), v1alpha1.Share{GPUs: 2, Core: 30, MemMiB: 40})
			s.work()
			s.bindNow("p")
			s.editSlices("GPU-n0-0", edit)
			if got := s.slicesOf("p"); got == want {
				t.Fatalf("%s: nothing was edited", name)
			}
			s.update("p", func(st *corev1.PodStatus) {
				st.ContainerStatuses = []corev1.ContainerStatus{{Name: "b", State: waitingFor("CreateContainerError")}}
				if runs {
					st.ContainerStatuses = append(st.ContainerStatuses, corev1.ContainerStatus{Name: "a", ContainerID: "x", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
				}
			})
			if got := s.slicesOf("p"); got != want {
				t.Errorf("%s, the other container runs: %v: granted %s, want %s", name, runs, got, want)
			}
		}
	}
	s := newStage(t, 1)
	s.add("p", 60, 600)
	s.work()
	s.bindNow("p")
	s.editSlices("GPU-n0-0", func(sl *v1alpha1.Slice) bool { sl.Mem, sl.Core = 1, 1; return false })
	s.add("next", 90, 900, onDevice("GPU-n0-0"))
	s.work()
	s.cannotStart("p", "c")
	if got := s.slicesOf("p") + " " + s.slicesOf("next"); got != "c 1 1 c 90 900" {
		t.Errorf("Invariant 1: granted %s", got)
	}
}

// So do slices go that somebody has added for a pod, and one that was put on a device on
// which its container has one already comes back.
func TestAddedSlicesAreTakenOut(t *testing.T) {
	add := func(d *v1alpha1.DeviceLedger, p types.UID, ctr string) {
		d.Slices = append(d.Slices, v1alpha1.Slice{Pod: p, Owner: "ns/" + string(p), Ctr: ctr, Core: 10, Mem: 20})
	}
	for name, edit := range map[string]func(own, other *v1alpha1.DeviceLedger){
		"on another device":    func(_, other *v1alpha1.DeviceLedger) { add(other, "p", "c") },
		"on its device":        func(own, _ *v1alpha1.DeviceLedger) { add(own, "p", "c") },
		"two":                  func(own, other *v1alpha1.DeviceLedger) { add(own, "p", "c"); add(other, "p", "c") },
		"of no container":      func(_, other *v1alpha1.DeviceLedger) { add(other, "p", "x") },
		"one of two was moved": func(own, other *v1alpha1.DeviceLedger) { other.Slices = nil; add(own, "q", "c") },
	} {
		s := newStage(t, 1)
		for uid, gpus := range map[types.UID]v1alpha1.DeviceCount{"p": 1, "q": 2} {
			s.create(objects.Single(string(uid), v1alpha1.Share{GPUs: gpus, Core: 10, MemMiB: 20}))
			s.work()
			s.bindNow(string(uid))
		}
		l := s.ledger("n0")
		own, other := &l.Spec.Devices[0], &l.Spec.Devices[1]
		if !slices.ContainsFunc(own.Slices, func(sl v1alpha1.Slice) bool { return sl.Pod == "p" }) {
			own, other = other, own
		}
		edit(own, other)
		s.put(l)
		s.work()
		s.cannotStart("p", "c")
		s.cannotStart("q", "c")
		if got := s.slicesOf("p") + "; " + s.slicesOf("q"); got != "c 10 20; c 10 20, c 10 20" {
			t.Errorf("%s: granted %s", name, got)
		}
		for _, d := range s.ledger("n0").Spec.Devices {
			if n := len(d.Slices); n > 2 {
				t.Errorf("%s: %d slices on %s", name, n, d.UUID)
			}
		}
	}
}

// editSlices is somebody who edits or removes slices of a device of n0 by hand.
func (s *stage) editSlices(device string, edit func(*v1alpha1.Slice) (remove bool)) {
	s.t.Helper()
	s.editLedger("n0", func(l *v1alpha1.SliceLedger) {
		for i := range l.Spec.Devices {
			if d := &l.Spec.Devices[i]; d.UUID == device {
				var left []v1alpha1.Slice
				for _, sl := range d.Slices {
					if !edit(&sl) {
						left = append(left, sl)
					}
				}
				d.Slices = left
			}
		}
	})
	s.work()
}

// slicesOf are what n0 has granted to a pod, in words.
func (s *stage) slicesOf(pod types.UID) string {
	var all []string
	for _, d := range s.ledger("n0").Spec.Devices {
		for _, sl := range d.Slices {
			if sl.Pod == pod {
				all = append(all, fmt.Sprintf("%s %d %d", sl.Ctr, sl.Core, sl.Mem))
			}
		}
	}
	slices.Sort(all)
	return strings.Join(all, ", ")
}
