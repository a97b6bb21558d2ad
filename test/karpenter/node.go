// SPDX-License-Identifier: Apache-2.0

package karpenter

import (
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/util/retry"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// Nodes are the nodes that Karpenter made of an instance type and does not delete.
func (k *Karpenter) Nodes(instanceType string) (nodes []corev1.Node) {
	k.t.Helper()
	all := &corev1.NodeList{}
	must.Do(k.t, k.List(k.t.Context(), all, client.MatchingLabels{corev1.LabelInstanceTypeStable: instanceType}))
	return slices.DeleteFunc(all.Items, func(n corev1.Node) bool { return n.DeletionTimestamp != nil })
}

// StartKubelet plays a node's kubelet: the node is Ready, and its node agent has not come.
func (k *Karpenter) StartKubelet(name string) {
	k.t.Helper()
	k.edit(name, func(node *corev1.Node) {
		for _, of := range []corev1.ResourceList{node.Status.Allocatable, node.Status.Capacity} {
			maps.DeleteFunc(of, func(name corev1.ResourceName, _ resource.Quantity) bool {
				return strings.HasPrefix(string(name), v1alpha1.Prefix)
			})
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady"}}
	})
	k.removeTaint(name, corev1.TaintNodeNotReady)
}

// StartAgent plays the node agent of a node whose kubelet runs, and the allocator: the node has its instance
// type's resources, and no longer the taint.
func (k *Karpenter) StartAgent(name string) {
	k.t.Helper()
	k.ShowCapacity(name)
	k.removeTaint(name, v1alpha1.TaintAgentNotReady)
}

// ShowCapacity has the node show its instance type's resources.
func (k *Karpenter) ShowCapacity(name string) {
	k.t.Helper()
	k.Await("Karpenter to register node "+name, func() bool { return k.Node(name).Labels["karpenter.sh/registered"] == "true" })
	k.edit(name, func(node *corev1.Node) {
		i := slices.IndexFunc(k.types, func(t InstanceType) bool { return t.Name == node.Labels[corev1.LabelInstanceTypeStable] })
		its, _ := k.types[i].split()
		maps.Copy(node.Status.Allocatable, its)
		maps.Copy(node.Status.Capacity, its)
	})
}

// Node is the node as it is now.
func (k *Karpenter) Node(name string) *corev1.Node {
	k.t.Helper()
	node := &corev1.Node{}
	must.Do(k.t, k.Get(k.t.Context(), client.ObjectKey{Name: name}, node))
	return node
}

// edit changes a node's status.
func (k *Karpenter) edit(name string, change func(*corev1.Node)) {
	k.t.Helper()
	must.Do(k.t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node := k.Node(name)
		change(node)
		return k.Status().Update(k.t.Context(), node)
	}))
}

func (k *Karpenter) removeTaint(name, key string) {
	k.t.Helper()
	must.Do(k.t, retry.RetryOnConflict(retry.DefaultBackoff, func() error {
		node := k.Node(name)
		if !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key }) {
			k.t.Fatalf("node %s does not have the taint %s: %v", name, key, node.Spec.Taints)
		}
		node.Spec.Taints = slices.DeleteFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
		return k.Update(k.t.Context(), node)
	}))
}
