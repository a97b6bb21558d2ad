// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/agents"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// addAgent adds a node agent's pod, as the kubelet of the node shows it.
func (s *server) addAgent(node string) *corev1.Pod {
	s.t.Helper()
	p := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: v1alpha1.SystemNamespace, GenerateName: "vernier-node-"},
		Spec:       corev1.PodSpec{NodeName: node, ServiceAccountName: v1alpha1.NodeServiceAccount, Containers: []corev1.Container{{Name: "vernier-node", Image: "i"}}},
	}
	s.must(s.Create(s.t.Context(), p))
	s.agentIs(p, corev1.ConditionTrue, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	return p
}

func (s *server) agentIs(p *corev1.Pod, ready corev1.ConditionStatus, state corev1.ContainerState) {
	s.t.Helper()
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: ready}}
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "vernier-node", State: state, Ready: ready == corev1.ConditionTrue}}
	s.must(s.Status().Update(s.t.Context(), p))
}

// awaitReachable waits until the node's ledger says so.
func (s *server) awaitReachable(node string, status metav1.ConditionStatus, says string) {
	s.t.Helper()
	s.await("the agent of "+node+" to be reachable: "+string(status), func(context.Context) (bool, error) {
		c := meta.FindStatusCondition(s.ledger(node).Status.Conditions, v1alpha1.ConditionAgentReachable)
		return c != nil && c.Status == status && strings.Contains(c.Message, says), nil
	})
}

// bind binds the pod where it is placed, and has the kubelet fail to create its container.
func (s *server) bindDenied(name, node, says string) {
	s.t.Helper()
	p := s.pod(name)
	s.must(s.SubResource("binding").Create(s.t.Context(), p, &corev1.Binding{Target: corev1.ObjectReference{Kind: "Node", Name: node}}))
	p = s.pod(name)
	p.Status.Phase = corev1.PodPending
	p.Status.ContainerStatuses = []corev1.ContainerStatus{{Name: "train", Image: "i",
		State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError", Message: says}}}}
	s.must(s.Status().Update(s.t.Context(), p))
}

// An agent that is away attracts nothing. What it keeps from starting is replaced after two
// minutes where a controller makes it again; its owner is told otherwise. It is back as soon
// as its pod is ready.
func TestAgentAway(t *testing.T) {
	s := start(t)
	s.agents = &agents.Agents{}
	pods := map[string]*corev1.Pod{}
	for _, node := range []string{"gpu-1", "gpu-2", "gpu-3"} {
		s.addNode(node)
		pods[node] = s.addAgent(node)
	}
	s.run()
	for node := range pods {
		s.awaitReachable(node, metav1.ConditionTrue, "is ready")
	}
	owned := func(p *corev1.Pod) {
		yes := true
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: "r", UID: "r", Controller: &yes}}
	}
	on1 := func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "gpu-1"} }
	s.addPod("owned", objects.Share(10, 100), owned, on1)
	s.addPod("alone", objects.Share(10, 100), on1)
	s.awaitPlaced("owned")
	s.awaitPlaced("alone")
	const kubelet = "required NRI plugin vernier is not there"
	s.bindDenied("owned", "gpu-1", kubelet)
	s.bindDenied("alone", "gpu-1", kubelet)

	s.agentIs(pods["gpu-1"], corev1.ConditionFalse, corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}})
	s.awaitReachable("gpu-1", metav1.ConditionFalse, "is not ready: CrashLoopBackOff")
	for _, name := range []string{"a", "b", "c", "d"} {
		s.addPod(name, v1alpha1.Share{GPUs: 1, Core: 100, MemPercent: 100})
		if node := s.awaitPlaced(name).Node; node == "gpu-1" {
			t.Errorf("pod %s was placed on %s, whose agent is away", name, node)
		}
	}
	s.addPod("late", objects.Share(30, 300))
	s.awaitEvent("late", notify.ReasonWaiting, "1 node(s) grant nothing now, such as gpu-1: the node agent's pod")

	s.awaitEvent("alone", notify.ReasonAgentAway, "is not ready: CrashLoopBackOff); the kubelet says: CreateContainerError: "+kubelet+". It starts when the agent is back")
	s.await("the pod with a controller to be replaced", func(ctx context.Context) (bool, error) {
		p := &corev1.Pod{}
		err := s.Get(ctx, client.ObjectKey{Namespace: "ns", Name: "owned"}, p)
		return apierrors.IsNotFound(err) || err == nil && p.DeletionTimestamp != nil, client.IgnoreNotFound(err)
	})
	if p := s.pod("alone"); p.DeletionTimestamp != nil {
		t.Error("the pod that nobody would create again was deleted")
	}

	s.agentIs(pods["gpu-1"], corev1.ConditionTrue, corev1.ContainerState{Running: &corev1.ContainerStateRunning{}})
	s.awaitReachable("gpu-1", metav1.ConditionTrue, "is ready")
	if node := s.awaitPlaced("late").Node; node != "gpu-1" {
		t.Errorf("the pod that waited is placed on %s", node)
	}
	s.must(s.Delete(t.Context(), pods["gpu-2"], client.GracePeriodSeconds(0)))
	s.awaitReachable("gpu-2", metav1.ConditionFalse, "DaemonSet vernier-node")
	s.addAgent("gpu-2")
	s.awaitReachable("gpu-2", metav1.ConditionTrue, "is ready")
}
