// SPDX-License-Identifier: Apache-2.0

// Package objects makes the nodes, ledgers and pods that tests of the allocator start from,
// and what its packages write to: an API server and a work queue in memory.
package objects

import (
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
)

// DeviceMiB is the memory of each device.
const DeviceMiB = 1000

// Node is a node with two GPUs and room for whatever tests ask beside them.
func Node(name string) *corev1.Node {
	return &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("node-" + name), Labels: map[string]string{corev1.LabelHostname: name}},
		Status: corev1.NodeStatus{Allocatable: corev1.ResourceList{
			corev1.ResourceCPU: resource.MustParse("64"), corev1.ResourceMemory: resource.MustParse("64Gi"), corev1.ResourcePods: resource.MustParse("200"),
			v1alpha1.ResourceCore: resource.MustParse("200"), v1alpha1.ResourceMemPercent: resource.MustParse("200"), v1alpha1.ResourceMemMiB: resource.MustParse("2000"),
			v1alpha1.ResourceIdleCore: resource.MustParse("200"), v1alpha1.ResourceIdleMemMiB: resource.MustParse("2000"),
		}},
	}
}

// Ledger is a node's ledger before its agent has reported.
func Ledger(name string) *v1alpha1.SliceLedger {
	return &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("ledger-" + name)}}
}

// ReadyLedger is a node's ledger with two healthy devices.
func ReadyLedger(name string) *v1alpha1.SliceLedger { return WithStatus(Ledger(name)) }

// WithStatus gives the ledger two healthy devices.
func WithStatus(l *v1alpha1.SliceLedger) *v1alpha1.SliceLedger {
	for i := range 2 {
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{
			UUID: fmt.Sprintf("GPU-%s-%d", l.Name, i), Index: int32(i), Minor: int32(i), Model: "T4", Mem: DeviceMiB, Healthy: true})
	}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now()}}
	return l
}

// Pod is a gated pod with a share for each named container. Its UID is its name.
func Pod(name string, shares map[string]v1alpha1.Share) *corev1.Pod {
	doc := v1alpha1.Shares{Version: v1alpha1.Version, Containers: shares}
	text, err := doc.Encode()
	if err != nil {
		panic(err)
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name), Annotations: map[string]string{
			v1alpha1.AnnotationShares: text, v1alpha1.AnnotationRequiredPlugins: v1alpha1.RequiredPluginsValue}},
		Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}}},
	}
	for _, c := range slices.Sorted(maps.Keys(shares)) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c, Image: "i", Resources: RequestOf(shares[c])})
	}
	return p
}

// Single is a gated pod with a share for its container c.
func Single(name string, share v1alpha1.Share, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := Pod(name, map[string]v1alpha1.Share{"c": share})
	for _, edit := range edits {
		edit(p)
	}
	return p
}

// Halves is a gated pod with half a device for each container.
func Halves(name string, containers ...string) *corev1.Pod {
	shares := map[string]v1alpha1.Share{}
	for _, c := range containers {
		shares[c] = Share(v1alpha1.WholeGPU/2, DeviceMiB/2)
	}
	return Pod(name, shares)
}

// Share is a share of one GPU.
func Share(core v1alpha1.Percent, mem v1alpha1.MiB) v1alpha1.Share {
	return v1alpha1.Share{GPUs: 1, Core: core, MemMiB: mem}
}

// IdleShare is that of an idle slice.
func IdleShare(core v1alpha1.Percent, mem v1alpha1.MiB) v1alpha1.Share {
	return v1alpha1.Share{GPUs: 1, Idle: core, MemMiB: mem}
}

// RequestOf is the share as the user wrote it: totals of the container.
func RequestOf(s v1alpha1.Share) corev1.ResourceRequirements {
	limits := corev1.ResourceList{}
	amounts := map[corev1.ResourceName]int64{
		v1alpha1.ResourceCore: int64(s.Core), v1alpha1.ResourceMemPercent: int64(s.MemPercent), v1alpha1.ResourceMemMiB: int64(s.MemMiB)}
	if s.Idle > 0 {
		amounts = map[corev1.ResourceName]int64{v1alpha1.ResourceIdleCore: int64(s.Idle), v1alpha1.ResourceIdleMemMiB: int64(s.MemMiB)}
	}
	for name, amount := range amounts {
		if amount > 0 {
			limits[name] = *resource.NewQuantity(amount*int64(s.GPUs), resource.DecimalSI)
		}
	}
	return corev1.ResourceRequirements{Limits: limits, Requests: limits}
}

// Budget is a PodDisruptionBudget of the pods of an app that allows so many evictions.
func Budget(name, app string, allowed int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed}}
}
