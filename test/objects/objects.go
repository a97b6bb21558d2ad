// SPDX-License-Identifier: Apache-2.0

// Package objects makes the nodes, ledgers and pods that tests of the allocator start from,
// and what its packages write to: an API server and a work queue in memory.
package objects

import (
	"fmt"
	"maps"
	"slices"

	"k8s.io/utils/ptr"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/podrequest"
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
		}},
	}
}

// Ledger is a node's ledger before its agent has reported.
func Ledger(name string) *v1alpha1.SliceLedger {
	return &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID("ledger-" + name)}}
}

// WithStatus gives the ledger two healthy devices.
func WithStatus(l *v1alpha1.SliceLedger) *v1alpha1.SliceLedger {
	for i := range 2 {
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{
			UUID: fmt.Sprintf("GPU-%s-%d", l.Name, i), Index: int32(i), Minor: int32(i), Model: "T4", Mem: DeviceMiB, Healthy: true})
	}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: "Test", LastTransitionTime: metav1.Now()}}
	return l
}

// Pod is a gated pod with a share for each named container.
func Pod(name string, shares map[string]v1alpha1.Share) *corev1.Pod {
	doc := v1alpha1.Shares{Version: v1alpha1.Version, Containers: shares}
	text, err := doc.Encode()
	if err != nil {
		panic(err)
	}
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{
			v1alpha1.AnnotationShares: text, v1alpha1.AnnotationRequiredPlugins: v1alpha1.RequiredPluginsValue}},
		Spec: corev1.PodSpec{SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}}},
	}
	for _, c := range slices.Sorted(maps.Keys(shares)) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: c, Image: "i", Resources: RequestOf(shares[c])})
	}
	return p
}

// Share is a share of one GPU.
func Share(core v1alpha1.Percent, mem v1alpha1.MiB) v1alpha1.Share {
	return v1alpha1.Share{GPUs: 1, Core: core, MemMiB: mem}
}

// RequestOf is the share as the user wrote it: totals of the container.
func RequestOf(s v1alpha1.Share) corev1.ResourceRequirements {
	limits := corev1.ResourceList{}
	for name, amount := range map[corev1.ResourceName]int64{
		v1alpha1.ResourceCore: int64(s.Core), v1alpha1.ResourceMemPercent: int64(s.MemPercent), v1alpha1.ResourceMemMiB: int64(s.MemMiB)} {
		if amount > 0 {
			limits[name] = *resource.NewQuantity(amount*int64(s.GPUs), resource.DecimalSI)
		}
	}
	return corev1.ResourceRequirements{Limits: limits, Requests: limits}
}

// InGang makes the pod one of a gang of so many.
func InGang(name string, total int) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Labels = map[string]string{podrequest.LabelKueue: name}
		p.Annotations[podrequest.AnnotationKueueTotal] = fmt.Sprint(total)
	}
}

// Labelled labels the pod with an app.
func Labelled(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { metav1.SetMetaDataLabel(&p.ObjectMeta, "app", app) }
}

// Near has the pod go to the node of a pod of the app, or be the first of it.
func Near(app string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Affinity = &corev1.Affinity{PodAffinity: &corev1.PodAffinity{
			RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
				TopologyKey: corev1.LabelHostname, LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}}}}}
	}
}

// SpreadFrom spreads the pod from those of app x, such that no node is refused.
func SpreadFrom(p *corev1.Pod) {
	p.Spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 10000, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		NodeAffinityPolicy: ptr.To(corev1.NodeInclusionPolicyIgnore),
		LabelSelector:      &metav1.LabelSelector{MatchLabels: map[string]string{"app": "x"}}}}
}
