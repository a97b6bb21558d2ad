// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	gpuA = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
	gpuB = "GPU-bbbbbbbb-0000-4000-8000-000000000002"
	gpuC = "GPU-cccccccc-0000-4000-8000-000000000003"
)

// fixture is a cluster of two nodes with a slice in every state, a device with
// an error, one that vanished, and pods that wait for each kind of reason.
func fixture() []client.Object {
	numa, since, idle := int32(1), metav1.NewTime(now.Add(-2*time.Hour)), metav1.NewTime(now.Add(-time.Hour))
	return []client.Object{
		&v1alpha1.SliceLedger{
			ObjectMeta: metav1.ObjectMeta{Name: "gpu-1"},
			Spec: v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{
				{UUID: gpuA, Core: 100, Mem: 81920, Slices: []v1alpha1.Slice{
					{Pod: "uid-train", Owner: "team-a/train", Ctr: "prepare", Core: 30, Mem: 20480, ReuseCore: 30, ReuseMem: 10240, Since: &since},
					{Pod: "uid-train", Owner: "team-a/train", Ctr: "main", Core: 30, Mem: 10240, Since: &since},
					{Pod: "uid-gone", Owner: "team-b/gone", Ctr: "main", Core: 0, Mem: 1},
				}},
				{UUID: gpuC, Core: 100, Mem: 15360, Slices: []v1alpha1.Slice{
					{Pod: "uid-lost", Owner: "team-b/lost", Ctr: "main", Core: 50, Mem: 7680},
				}},
			}},
			Status: v1alpha1.SliceLedgerStatus{
				Driver: v1alpha1.DriverStatus{Version: "570.86.15", CUDA: "12.8",
					MemoryLimitsReason: "needs driver R615 or newer", MPS: true, GDR: v1alpha1.GDRDMABuf},
				Topology: &v1alpha1.TopologyStatus{NUMA: []v1alpha1.DeviceSet{"0", "1"}, NVLink: []v1alpha1.DeviceSet{"0-1"}},
				Devices: []v1alpha1.DeviceStatus{
					{UUID: gpuB, Index: 1, Model: "NVIDIA A100-SXM4-80GB", Mem: 81920, PCI: "0000:41:00.0", NUMA: &numa, NICs: []string{"mlx5_0", "mlx5_1"},
						MIG: v1alpha1.MIGDisabled, Reason: "Xid 79: the GPU has fallen off the bus"},
					{UUID: gpuA, Index: 0, Model: "NVIDIA A100-SXM4-80GB", Mem: 81920, PCI: "0000:01:00.0",
						MIG: v1alpha1.MIGDisabled, Healthy: true},
				},
				Slices: []v1alpha1.SliceStatus{
					{Pod: "uid-train", Ctr: "main", UUID: gpuA, Container: "c1", Mode: v1alpha1.ModeLimiter,
						Memory: v1alpha1.GuaranteeCooperative, Compute: v1alpha1.GuaranteeCooperative,
						Note: "memory: needs driver R615 or newer", IdleSince: &idle},
					{Pod: "uid-gone", Ctr: "main", UUID: gpuA, Container: "c2", Mode: v1alpha1.ModeLimiter,
						Memory: v1alpha1.GuaranteeCooperative, Compute: v1alpha1.GuaranteeNone},
				},
				Released: []types.UID{"uid-gone"},
				Conditions: []metav1.Condition{
					{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Ready"},
				},
			},
		},
		&v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "gpu-2"},
			Status: v1alpha1.SliceLedgerStatus{
				Devices: []v1alpha1.DeviceStatus{{UUID: "GPU-d", Model: "Tesla T4", Mem: 15360,
					MIG: v1alpha1.MIGUnsupported, Healthy: true}},
				Conditions: []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse,
					Reason: "NRIDisconnected", Message: "containerd's NRI socket does not answer"}},
			}},
		gated("team-a", "big", 5*time.Minute,
			`{"version":"v1alpha1","containers":{"main":{"gpus":2,"core":60,"memMiB":40960},"side":{"gpus":1,"memPercent":5}}}`),
		gated("team-a", "queued", 2*time.Hour,
			`{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`, "kueue.x-k8s.io/admission"),
		gated("team-b", "new", 3*time.Second,
			`{"version":"v1alpha1","containers":{"main":{"gpus":1,"core":10,"memPercent":10}}}`),
		gated("team-b", "odd", 3*time.Second, `{"version":"v2"}`),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "not-ours", Namespace: "team-a"},
			Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.com/other"}}}},
		event("first", "big", 4*time.Minute, eventSource, "needs 60 % compute: an older reason"),
		event("latest", "big", time.Minute, eventSource,
			"needs 60 % compute and 40,960 MiB on each of 2 GPUs;\nnearest: gpu-1 GPU 0 has 70 % and 51,199 MiB free"),
		event("foreign", "big", time.Second, "default-scheduler", "Scheduling is blocked due to non-empty scheduling gates"),
	}
}

func gated(namespace, name string, age time.Duration, shares string, otherGates ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: name, Namespace: namespace, UID: types.UID("uid-" + name),
		CreationTimestamp: metav1.NewTime(now.Add(-age)),
		Annotations:       map[string]string{v1alpha1.AnnotationShares: shares},
	}}
	if doc, err := v1alpha1.ParseShares(shares); err == nil {
		for _, ctr := range slices.Sorted(maps.Keys(doc.Containers)) {
			p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: ctr})
		}
	}
	for _, g := range append(otherGates, v1alpha1.Gate) {
		p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: g})
	}
	return p
}

func event(name, pod string, age time.Duration, source, message string) *corev1.Event {
	return &corev1.Event{
		ObjectMeta:     metav1.ObjectMeta{Name: pod + "." + name, Namespace: "team-a"},
		InvolvedObject: corev1.ObjectReference{Kind: "Pod", Namespace: "team-a", Name: pod, UID: types.UID("uid-" + pod)},
		Reason:         "DoesNotFit", Message: message, Type: corev1.EventTypeWarning,
		Source:        corev1.EventSource{Component: source},
		LastTimestamp: metav1.NewTime(now.Add(-age)),
	}
}
