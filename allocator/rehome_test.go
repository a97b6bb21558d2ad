// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// A device that fails between the binding and the first start: the slices move to
// the node's other device, unless something runs on them.
func TestRehome(t *testing.T) {
	waiting := corev1.ContainerStatus{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError"}}}
	ran := waiting
	ran.ContainerID = "containerd://1"
	pulling := corev1.ContainerStatus{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}}
	tests := []struct {
		name   string
		status corev1.ContainerStatus
		ledger func(*v1alpha1.SliceLedger)
		pod    func(*corev1.Pod)
		others int
		moves  bool
	}{
		{name: "ill", status: waiting, ledger: func(l *v1alpha1.SliceLedger) { l.Status.Devices[0].Healthy = false }, moves: true},
		{name: "gone", status: waiting, ledger: func(l *v1alpha1.SliceLedger) { l.Status.Devices = l.Status.Devices[1:] }, moves: true},
		{name: "well", status: waiting, ledger: func(*v1alpha1.SliceLedger) {}},
		{name: "not tried yet", status: pulling, ledger: func(l *v1alpha1.SliceLedger) { l.Status.Devices[0].Healthy = false }},
		{name: "ran before", status: ran, ledger: func(l *v1alpha1.SliceLedger) { l.Status.Devices[0].Healthy = false }},
		{name: "attached", status: waiting, ledger: func(l *v1alpha1.SliceLedger) {
			l.Status.Devices[0].Healthy = false
			l.Status.Slices = []v1alpha1.SliceStatus{{Pod: "p", Ctr: "c", UUID: "GPU-n0-0", Container: "1", Mode: v1alpha1.ModeLimiter}}
		}},
		{name: "no room", status: waiting, others: 3, ledger: func(l *v1alpha1.SliceLedger) { l.Status.Devices[0].Healthy = false }},
		{name: "another model", status: waiting, ledger: func(l *v1alpha1.SliceLedger) { l.Status.Devices[0].Healthy = false },
			pod: func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGPUUUID] = "GPU-n0-0" }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStage(t, 1)
			edit := func(p *corev1.Pod) {
				if tt.pod != nil {
					tt.pod(p)
				}
			}
			s.add("p", 50, 500, edit)
			s.work()
			for i := range tt.others {
				s.add(fmt.Sprintf("o%d", i), 50, 500)
			}
			s.work()
			s.bind()
			for s.get("p").Spec.NodeName == "" {
				s.bind()
			}
			p := s.get("p")
			p.Status.ContainerStatuses = []corev1.ContainerStatus{tt.status}
			s.must(s.api.Status().Update(t.Context(), p))
			s.notify(p, false)
			l := s.ledger("n0")
			tt.ledger(l)
			s.must(s.api.Status().Update(t.Context(), l))
			s.notify(l, false)
			s.told()
			s.work()
			on := ""
			for _, d := range s.ledger("n0").Spec.Devices {
				for _, sl := range d.Slices {
					if sl.Pod == "p" {
						on += d.UUID
					}
				}
			}
			want := "GPU-n0-0"
			if tt.moves {
				want = "GPU-n0-1"
			}
			told := strings.Contains(fmt.Sprint(s.told()), reasonMoved)
			if on != want || told != tt.moves {
				t.Errorf("on %s, told %v; want %s", on, told, want)
			}
		})
	}
}
