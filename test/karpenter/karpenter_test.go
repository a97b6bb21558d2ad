// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package karpenter_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/karpenter"
	"vernier.dev/vernier/test/must"
)

// A buffer is a CapacityBuffer whose pods each ask for a whole GPU, and stay away from hostnames.
type buffer struct {
	*karpenter.Karpenter
	t *testing.T
}

// ask changes what the buffer asks for: the number or the hostnames, since Karpenter may see one object first.
func (b buffer) ask(replicas int, not ...string) {
	b.t.Helper()
	b.Apply(fmt.Sprintf(`
apiVersion: v1
kind: PodTemplate
metadata: {name: gpus, namespace: vernier-system}
template:
  spec:
    containers:
    - name: gpu
      image: none
      resources:
        requests: {cpu: 1, vernier.dev/gpu-core: 100, vernier.dev/gpu-mem: 100, vernier.dev/gpu: 1}
        limits: {vernier.dev/gpu-core: 100, vernier.dev/gpu-mem: 100, vernier.dev/gpu: 1}
    affinity:
      nodeAffinity:
        requiredDuringSchedulingIgnoredDuringExecution:
          nodeSelectorTerms: [{matchExpressions: [{key: kubernetes.io/hostname, operator: NotIn, values: [%s]}]}]
---
apiVersion: autoscaling.x-k8s.io/v1beta1
kind: CapacityBuffer
metadata: {name: gpus, namespace: vernier-system}
spec: {podTemplateRef: {name: gpus}, replicas: %d}
`, strings.Join(not, ", "), replicas))
}

// provisioned returns when Karpenter has scheduled so many pods of the buffer to nodes that are there
// or start.
func (b buffer) provisioned(replicas int) {
	b.t.Helper()
	b.await("FitsExistingCapacity", fmt.Sprintf("All %d virtual pods", replicas))
}

func (b buffer) await(reason, message string) {
	b.t.Helper()
	b.Await(reason+": "+message, func() bool {
		c := karpenter.Condition(b.get(), "Provisioning")
		return c.Reason == reason && strings.HasPrefix(c.Message, message)
	})
}

func (b buffer) get() *unstructured.Unstructured {
	b.t.Helper()
	obj := &unstructured.Unstructured{}
	obj.SetGroupVersionKind(schema.GroupVersionKind{Group: "autoscaling.x-k8s.io", Version: "v1beta1", Kind: "CapacityBuffer"})
	must.Do(b.t, b.Get(b.t.Context(), client.ObjectKey{Namespace: v1alpha1.SystemNamespace, Name: "gpus"}, obj))
	return obj
}

// node returns the only node of an instance type, when Karpenter has created it.
func (b buffer) node(instanceType string) *corev1.Node {
	b.t.Helper()
	var nodes []corev1.Node
	b.Await("a node "+instanceType, func() bool { nodes = b.Nodes(instanceType); return len(nodes) == 1 })
	return &nodes[0]
}

// claims checks the NodeClaims that are there.
func (b buffer) claims(want ...string) {
	b.t.Helper()
	if got := b.NodeClaims(); !slices.Equal(got, want) {
		b.t.Fatalf("NodeClaims %v, want %v", got, want)
	}
}

// hostname is the label that the scheduler's node affinity compares, which is not the node's name.
func (b buffer) hostname(node string) string {
	b.t.Helper()
	return b.Node(node).Labels[corev1.LabelHostname]
}

// initialized returns when Karpenter counts what the node has, and no longer what its NodeClaim promises.
func (b buffer) initialized(node string) {
	b.t.Helper()
	b.Await(node+" to be initialized", func() bool { return b.Node(node).Labels["karpenter.sh/initialized"] == "true" })
}

// kept returns when Karpenter has kept the empty node for the buffer.
func (b buffer) kept(node string) {
	b.t.Helper()
	events := &corev1.EventList{}
	b.Await(node+" to be kept", func() bool {
		must.Do(b.t, b.List(b.t.Context(), events))
		return slices.ContainsFunc(events.Items, func(e corev1.Event) bool {
			return e.InvolvedObject.Name == node && strings.Contains(e.Message, "has buffer pods")
		})
	})
}

// start runs Karpenter, which may remove empty nodes at once, beside a node of another owner.
func start(t *testing.T, overlays bool) buffer {
	t.Parallel()
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml"}})
	own := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "own", Labels: map[string]string{corev1.LabelHostname: "host"}},
		Status: corev1.NodeStatus{Allocatable: karpenter.GPUs(16).Resources, Capacity: karpenter.GPUs(16).Resources}}
	c := apiserver.Client(t, cfg)
	must.Do(t, c.Create(t.Context(), own))
	own.Spec.Taints = nil // admission adds "not ready"
	must.Do(t, c.Update(t.Context(), own))
	sizes := []karpenter.InstanceType{karpenter.GPUs(1), karpenter.GPUs(2), karpenter.GPUs(8)}
	pool := strings.Replace(karpenter.NodePool, "consolidateAfter: 1m", "consolidateAfter: 0s", 1)
	return buffer{karpenter.Start(t, cfg, sizes, pool, overlays), t}
}

// What Vernier's CapacityBuffers build on, where the provider knows of its resources.
func TestCapacityBuffer(t *testing.T) { capacityBuffer(t, false) }

// The same where NodeOverlays add them.
func TestNodeOverlay(t *testing.T) { capacityBuffer(t, true) }

func capacityBuffer(t *testing.T, overlays bool) {
	b := start(t, overlays)
	// The node that is there has room. Only the affinity keeps the pods off it.
	b.ask(10, "other")
	b.provisioned(10)
	b.claims()
	b.ask(10, "host")
	large, small := b.node("gpu-8").Name, b.node("gpu-2").Name

	// A node that starts has what its NodeClaim promises. No pass makes a second one: before the kubelet
	// is ready, while it has no agent's resources, and while one of the two nodes has the taint.
	b.ask(9, "host")
	b.provisioned(9)
	b.StartKubelet(large)
	b.ask(10, "host")
	b.provisioned(10)
	if has, is := b.Node(large).Status.Allocatable[v1alpha1.ResourceCore]; is {
		t.Errorf("before its agent the node has %s of %s", &has, v1alpha1.ResourceCore)
	}
	b.StartAgent(large)
	b.StartKubelet(small)
	b.ask(9, "host")
	b.provisioned(9)
	b.StartAgent(small)
	b.ask(10, "host")
	b.provisioned(10)
	for _, node := range []string{large, small} {
		b.initialized(node)
		b.kept(node)
	}
	b.claims("gpu-2", "gpu-8")

	// A pod with a scheduling gate waits, and is neither a reason for a node nor one to keep a node.
	must.Do(t, b.Create(t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, Name: "gated"},
		Spec: corev1.PodSpec{
			SchedulingGates: []corev1.PodSchedulingGate{{Name: v1alpha1.Gate}},
			Containers: []corev1.Container{{Name: "a", Image: "none", Resources: corev1.ResourceRequirements{
				Limits: corev1.ResourceList{v1alpha1.ResourceCore: resource.MustParse("100")}}}},
		},
	}))
	b.ask(1, "host")
	b.provisioned(1)
	b.ask(1, "host", b.hostname(large), b.hostname(small))
	single := b.node("gpu-1").Name
	b.StartKubelet(single)
	b.StartAgent(single)
	b.initialized(single)

	// Karpenter has no pass for a buffer that is deleted, and would keep its nodes.
	b.ask(0, "host")
	b.await("BufferEmpty", "")
	must.Do(t, b.Delete(t.Context(), b.get()))
	b.Await("the nodes to be removed", func() bool { return len(b.NodeClaims()) == 0 })
}
