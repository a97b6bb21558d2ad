// SPDX-License-Identifier: Apache-2.0

package eventhandlers

import (
	"maps"
	"reflect"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	resourcev1 "k8s.io/api/resource/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
)

// moves are the waiting pods that a change may help.
type moves int

const (
	// refused have devices on nodes that the scheduler refuses; or victims were looked for there.
	refused moves = 1 << iota
	// short have no devices.
	short
	// barred would have devices if pods of lower priority were evicted, which the Eviction API or
	// their gangs do not allow, in the namespace of the object.
	barred
	// elsewhere wait for something else than room.
	elsewhere
	none moves = 0
)

// hint is a row of hints. when is nil for each change.
type hint struct {
	object any
	moves  moves
	when   func(was, is any) bool
	what   string
}

// hints say which change moves which waiting pods to active, as kube-scheduler's queueing hints do:
// all that a decision reads is here, and a test compares. The newest version of a waiting pod itself
// is looked at in any case, and all that waits every queue.FlushAfter.
var hints = []hint{
	{&v1alpha1.SliceLedger{}, refused | short, byCache, "a device with more room, or out of a cordon"},
	{&v1alpha1.GPUClass{}, refused | short | elsewhere, nil, "models, unit and mode of its containers"},
	{&podgroup.Sizes{}, barred, nil, "how PodGroups of victims may be ended; members of its own are looked at in any case"},

	{&corev1.Pod{}, refused, byCache, "where pods count on nodes, with what requests and labels; nominated pods"},
	{&corev1.Pod{}, barred, update(victimChanged), "readiness, phase and labels of victims"},
	{&corev1.Node{}, refused, update(nodeChanged), "labels, taints, allocatable, declared features"},
	{&corev1.Namespace{}, refused | barred, update(func(was, is *corev1.Namespace) bool { return !maps.Equal(was.Labels, is.Labels) }), "selectors of namespaces; only in labelled ones pods may be evicted; PriorityClasses that count across namespaces"},
	{&policyv1.PodDisruptionBudget{}, barred, nil, "whom it covers, how many evictions it allows"},

	{&corev1.PersistentVolumeClaim{}, refused, nil, "volumes"},
	{&corev1.PersistentVolume{}, refused, nil, "volumes"},
	{&storagev1.StorageClass{}, refused, nil, "volumes"},
	{&storagev1.CSINode{}, refused, nil, "volumes"},
	{&storagev1.CSIDriver{}, refused, nil, "volumes"},
	{&storagev1.CSIStorageCapacity{}, refused, nil, "volumes"},
	{&storagev1.VolumeAttachment{}, refused, nil, "volumes"},
	{&resourcev1.ResourceClaim{}, refused, nil, "devices of other drivers"},
	{&resourcev1.ResourceSlice{}, refused, nil, "devices of other drivers"},
	{&resourcev1.DeviceClass{}, refused, nil, "devices of other drivers"},

	// Not read at all, nor watched.
	{&corev1.Service{}, none, nil, "only preferred spread"},
	{&corev1.ReplicationController{}, none, nil, "only preferred spread"},
	{&appsv1.ReplicaSet{}, none, nil, "only preferred spread"},
	{&appsv1.StatefulSet{}, none, nil, "only preferred spread"},
	{&schedulingv1.PriorityClass{}, none, nil, "admission copies its value and preemptionPolicy into a pod that is created, and they never change"},
	{&corev1.ResourceQuota{}, none, nil, "admission counts it when a pod is created: one that was refused comes as a new pod"},
}

// byCache is for changes of which package cache says when they help (cache.Changes.Freed).
func byCache(any, any) bool { return false }

// update is when an object was changed so; one that is new or gone always counts.
func update[T any](changed func(was, is *T) bool) func(was, is any) bool {
	return func(was, is any) bool {
		before, _ := was.(*T)
		now, _ := is.(*T)
		return before == nil || now == nil || changed(before, now)
	}
}

// nodeChanged leaves out what a heartbeat changes.
func nodeChanged(old, node *corev1.Node) bool {
	return !equality.Semantic.DeepEqual(old.Spec, node.Spec) ||
		!equality.Semantic.DeepEqual(old.Labels, node.Labels) ||
		!equality.Semantic.DeepEqual(old.Status.Allocatable, node.Status.Allocatable) ||
		!equality.Semantic.DeepEqual(old.Status.DeclaredFeatures, node.Status.DeclaredFeatures)
}

// victimChanged is what the Eviction API reads of a pod. Its end is no matter of its own: it frees
// a device.
func victimChanged(old, pod *corev1.Pod) bool {
	return !podstate.Gated(pod) && (podutil.IsPodReady(old) != podutil.IsPodReady(pod) ||
		old.Status.Phase != pod.Status.Phase || !maps.Equal(old.Labels, pod.Labels))
}

// changed moves the waiting pods that the change of an object may help. Either version may be nil.
func (h *Handlers) changed(was, is any, namespace string) {
	object := is
	if object == nil {
		object = was
	}
	for _, hint := range hints {
		if reflect.TypeOf(hint.object) != reflect.TypeOf(object) || hint.when != nil && !hint.when(was, is) {
			continue
		}
		switch {
		case hint.moves&short != 0:
			h.Queue.MoveToActive(cache.OnAll)
		case hint.moves&refused != 0:
			h.Queue.ClaimsChanged()
			h.Queue.MoveToActive(cache.OnRefused)
		}
		if hint.moves&elsewhere != 0 {
			h.Queue.MoveElsewhere()
		}
		if hint.moves&barred != 0 {
			for _, changed := range h.victims {
				changed(namespace)
			}
		}
	}
}
