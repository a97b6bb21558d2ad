// SPDX-License-Identifier: Apache-2.0

package view

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

func TestCountsReuse(t *testing.T) {
	ledger := v1alpha1.SliceLedger{
		Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{{
			UUID: "GPU-1", Core: 100, Mem: 1000,
			Slices: []v1alpha1.Slice{
				{Pod: "a", Owner: "ns/a", Ctr: "init", Core: 100, ReuseCore: 60, Mem: 1000, ReuseMem: 999},
				{Pod: "a", Owner: "ns/a", Ctr: "main", Core: 60, Mem: 999},
			},
		}}},
		Status: v1alpha1.SliceLedgerStatus{Devices: []v1alpha1.DeviceStatus{{UUID: "GPU-1", Mem: 1000, Healthy: true}}},
	}
	d := Devices([]v1alpha1.SliceLedger{ledger})[0]
	if d.Core != (Core{100, 100}) || d.Mem != (Memory{1000, 1000}) {
		t.Errorf("device: %+v %+v", d.Core, d.Mem)
	}
	n := Nodes([]v1alpha1.SliceLedger{ledger})[0]
	if n.Core != (Core{100, 100}) || n.Mem != (Memory{1000, 1000}) || n.Slices != 2 {
		t.Errorf("node: %+v %+v, %d slices", n.Core, n.Mem, n.Slices)
	}
	s := Slices([]v1alpha1.SliceLedger{ledger}, "ns")
	if s[0].Core != 100 || s[0].Mem != 1000 {
		t.Errorf("the init container's slice is %d %% and %d MiB, want what it may use: 100 and 1000", s[0].Core, s[0].Mem)
	}
}

func TestCapacityIsTheLedgers(t *testing.T) {
	ledger := v1alpha1.SliceLedger{
		Spec:   v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{{UUID: "GPU-1", Core: 90, Mem: 900}}},
		Status: v1alpha1.SliceLedgerStatus{Devices: []v1alpha1.DeviceStatus{{UUID: "GPU-1", Mem: 1000}, {UUID: "GPU-2", Index: 1, Mem: 1000}}},
	}
	d := Devices([]v1alpha1.SliceLedger{ledger})
	if d[0].Core.Total != 90 || d[0].Mem.Total != 900 || d[1].Core.Total != 100 || d[1].Mem.Total != 1000 {
		t.Errorf("devices: %+v", d)
	}
}

func TestMissingDevice(t *testing.T) {
	ledger := v1alpha1.SliceLedger{Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{
		{UUID: "GPU-used", Core: 100, Mem: 1000, Slices: []v1alpha1.Slice{{Pod: "a", Owner: "ns/a", Ctr: "main", Core: 10, Mem: 10}}},
		{UUID: "GPU-unused", Core: 100, Mem: 1000},
	}}}
	d := Devices([]v1alpha1.SliceLedger{ledger})
	if len(d) != 1 || d[0].UUID != "GPU-used" || d[0].Health != HealthMissing || d[0].Index != nil {
		t.Errorf("devices: %+v", d)
	}
	n := Nodes([]v1alpha1.SliceLedger{ledger})[0]
	if n.GPUs != 0 || n.Core != (Core{10, 0}) || n.Mem != (Memory{10, 0}) {
		t.Errorf("node: %+v", n)
	}
}

func TestLastEvents(t *testing.T) {
	event := func(namespace, message string, second int64) corev1.Event {
		return corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, InvolvedObject: corev1.ObjectReference{Namespace: namespace, Name: "p", UID: "uid"},
			Message: message, LastTimestamp: metav1.Unix(second, 0)}
	}
	events := []corev1.Event{event("ns", "old", 7), event("ns", "new", 9), event("ns", "older", 6), event("other", "another's", 10)}
	for first := range events {
		got := LastEvents(append(append([]corev1.Event{}, events[first:]...), events[:first]...))
		if len(got) != 2 || got[Subject{"ns", "p", "uid"}].Message != "new" {
			t.Errorf("order %d: last events are %+v", first, got)
		}
	}
}

// An event in one namespace says nothing of a pod in another, whatever UID is in it, and nothing
// of a pod of another name.
func TestHostileEventsOfAnothersPod(t *testing.T) {
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "team", Name: "train", UID: "uid"},
		Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}}}}
	event := func(namespace, name, reason, message string, second int64) corev1.Event {
		return corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: namespace}, InvolvedObject: corev1.ObjectReference{Namespace: namespace, Name: name, UID: "uid"},
			Reason: reason, Message: message, LastTimestamp: metav1.Unix(second, 0)}
	}
	said := SaidIn([]corev1.Event{event("team", "train", "VernierWaiting", "needs 90 %", 1),
		event("tenant", "train", "VernierWaiting", "pay here", 9), event("tenant", "train", ReasonReserved, "reserved on node n GPU 0, about 87600h", 9),
		event("team", "other", "VernierWaiting", "pay here", 9), event("team", "other", ReasonReserved, "reserved on node n GPU 0", 9)})
	if w := WaitingPodOf(pod, said); w.Reason == nil || w.Reason.Message != "needs 90 %" || w.Reserved != nil || said.Text(pod) != "needs 90 %\n" {
		t.Errorf("%+v is said of the pod, and reserved for it is %+v", w.Reason, w.Reserved)
	}
}

func TestDrifted(t *testing.T) {
	l := v1alpha1.SliceLedger{
		Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{{UUID: "GPU-a", Slices: []v1alpha1.Slice{{Pod: "p", Owner: "ns/p", Ctr: "c", Core: 20, Mem: 100}}}}},
		Status: v1alpha1.SliceLedgerStatus{Slices: []v1alpha1.SliceStatus{{Pod: "p", Ctr: "c", UUID: "GPU-a", Mode: v1alpha1.ModeLimiter,
			InForce: &v1alpha1.Amounts{Core: 50, Mem: 200}}}},
	}
	got := Slices([]v1alpha1.SliceLedger{l}, "ns")
	if len(got) != 1 || got[0].State != StateDrifted || got[0].Core != 20 || got[0].InForce.Core != 50 || got[0].Note != "it runs with 50 % compute and 200 MiB: the ledger was edited" {
		t.Errorf("%+v", got)
	}
	for _, edit := range []func(*v1alpha1.Slice){
		func(s *v1alpha1.Slice) { s.Core, s.Mem = 50, 200 }, // resized
		func(s *v1alpha1.Slice) { s.Resize = &v1alpha1.SliceResize{} },
	} {
		edit(&l.Spec.Devices[0].Slices[0])
		if got := SlicesOf(&l); got[0].State != StateAttached || got[0].InForce != nil {
			t.Errorf("resized: %+v", got[0])
		}
	}
}
