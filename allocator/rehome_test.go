// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
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
			told := strings.Contains(fmt.Sprint(s.told()), notify.ReasonMoved)
			if on != want || told != tt.moves {
				t.Errorf("on %s, told %v; want %s", on, told, want)
			}
		})
	}
}

// A percentage that moves is one of the new device, also where that is smaller;
// the node compares it with the pod's share.
func TestRehomeToAnotherSize(t *testing.T) {
	tests := []struct {
		name   string
		shares map[string]v1alpha1.Share
		init   int
		want   string
	}{
		{"part", map[string]v1alpha1.Share{"c": {GPUs: 1, Core: 50, MemPercent: 50}}, 0, "c 50+495 limiter;"},
		{"odd part", map[string]v1alpha1.Share{"c": {GPUs: 1, MemPercent: 33}}, 0, "c 0+326 limiter;"},
		{"whole", map[string]v1alpha1.Share{"c": {GPUs: 1, Core: 100, MemPercent: 100}}, 0, "c 100+990 exclusive;"},
		{"fixed", map[string]v1alpha1.Share{"c": {GPUs: 1, Core: 50, MemMiB: 500}}, 0, "c 50+500 limiter;"},
		{"reused", map[string]v1alpha1.Share{"a": {GPUs: 1, Core: 50, MemPercent: 50}, "c": {GPUs: 1, Core: 10, MemPercent: 10}}, 1,
			"a 50+495 limiter reuses 10+99;c 10+99 limiter;"},
		{"no room", map[string]v1alpha1.Share{"c": {GPUs: 1, Core: 50, MemMiB: 995}}, 0, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := newStage(t, 1)
			s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Devices[1].Mem, st.Devices[1].Healthy = 990, false })
			p := objects.Pod("p", tt.shares)
			p.UID = "p"
			p.Spec.InitContainers, p.Spec.Containers = p.Spec.Containers[:tt.init], p.Spec.Containers[tt.init:]
			s.must(s.api.Create(t.Context(), p))
			s.notify(p, false)
			s.work()
			s.bind()
			p = s.get("p")
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "c", State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError"}}}}
			s.must(s.api.Status().Update(t.Context(), p))
			s.notify(p, false)
			s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Devices[0].Healthy, st.Devices[1].Healthy = false, true })
			s.work()
			got := ""
			for _, d := range s.ledger("n0").Spec.Devices {
				for _, sl := range d.Slices {
					if d.UUID != "GPU-n0-1" {
						continue
					}
					got += fmt.Sprintf("%s %d+%d %s", sl.Ctr, sl.Core, sl.Mem, sl.EffectiveMode())
					if sl.ReuseCore > 0 {
						got += fmt.Sprintf(" reuses %d+%d", sl.ReuseCore, sl.ReuseMem)
					}
					got += ";"
				}
			}
			if got != tt.want {
				t.Errorf("got %q, want %q", got, tt.want)
			}
		})
	}
}

// Invariant 6: a container on devices that are well keeps them when another one of its
// pod is moved: it may be started this moment.
func TestRehomeLeavesWhatIsWell(t *testing.T) {
	s := newStage(t, 1)
	p := objects.Pod("p", map[string]v1alpha1.Share{"a": objects.Share(60, 600), "b": objects.Share(60, 600)})
	p.UID = "p"
	s.must(s.api.Create(t.Context(), p))
	s.notify(p, false)
	s.work()
	s.bind()
	on := func(ctr string) string { return slicesOf(s.ledger("n0"), container{"p", ctr})[0].uuid }
	failed, kept := on("a"), on("b")
	p = s.get("p")
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "a", State: waitingFor("CreateContainerError")}}
	s.setStatus(p)
	s.node("n0").own(hardware{uuid: "GPU-n0-2", mem: objects.DeviceMiB})
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) {
		st.Devices = append(st.Devices, v1alpha1.DeviceStatus{UUID: "GPU-n0-2", Index: 2, Minor: 2, Model: "T4", Mem: st.Devices[0].Mem, Healthy: true})
		for i := range st.Devices {
			st.Devices[i].Healthy = st.Devices[i].UUID != failed
		}
	})
	s.work()
	if on("a") != "GPU-n0-2" || on("b") != kept {
		t.Errorf("a is on %s, b on %s; want GPU-n0-2 and, as before, %s", on("a"), on("b"), kept)
	}
}
