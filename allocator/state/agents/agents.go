// SPDX-License-Identifier: Apache-2.0

// Package agents owns which node agents are there, as the kubelets say it of the agents'
// pods. The allocator's watch of all pods has these among them, so to know it costs the API
// server nothing while nothing changes. The kubelet probes each agent itself, and writes its
// pod's status when that changes. Leases that agents renew every 10 s would be 500 writes a
// second at 5,000 nodes.
//
// It never talks to the API server.
package agents

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	podutil "k8s.io/kubernetes/pkg/api/v1/pod"

	"vernier.dev/vernier/api/v1alpha1"
)

// Agents are the pods of node agents, by node. The zero value knows none. It is safe for
// concurrent use.
type Agents struct {
	mu   sync.Mutex
	pods map[string]map[types.UID]*corev1.Pod
}

// is reports if the pod is a node agent's. Only who may create pods in the system's
// namespace can make another look like one.
func is(pod *corev1.Pod) bool {
	return pod.Namespace == v1alpha1.SystemNamespace && pod.Spec.ServiceAccountName == v1alpha1.NodeServiceAccount && pod.Spec.NodeName != ""
}

// Set takes in a pod, and tells of a node agent's on which node something may have changed.
func (a *Agents) Set(pod *corev1.Pod) (node string) {
	if !is(pod) {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.pods == nil {
		a.pods = map[string]map[types.UID]*corev1.Pod{}
	}
	node = pod.Spec.NodeName
	if a.pods[node] == nil {
		a.pods[node] = map[types.UID]*corev1.Pod{}
	}
	a.pods[node][pod.UID] = pod
	return node
}

// Delete takes out a pod, and tells the same.
func (a *Agents) Delete(pod *corev1.Pod) (node string) {
	if !is(pod) {
		return ""
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	node = pod.Spec.NodeName
	if delete(a.pods[node], pod.UID); len(a.pods[node]) == 0 {
		delete(a.pods, node)
	}
	return node
}

// Reasons of the condition.
const (
	ReasonReady    = "PodReady"
	ReasonNotReady = "PodNotReady"
	ReasonNoPod    = "NoPod"
)

// Condition says whether a node's agent can be reached, without a time.
func (a *Agents) Condition(node string) metav1.Condition {
	a.mu.Lock()
	defer a.mu.Unlock()
	c := metav1.Condition{
		Type: v1alpha1.ConditionAgentReachable, Status: metav1.ConditionFalse, Reason: ReasonNoPod,
		Message: "no pod of the node agent is on node " + node + ": see that DaemonSet vernier-node covers the node",
	}
	// While one takes over from another there are two.
	for _, uid := range slices.Sorted(maps.Keys(a.pods[node])) {
		pod := a.pods[node][uid]
		if ready(pod) {
			return metav1.Condition{Type: c.Type, Status: metav1.ConditionTrue, Reason: ReasonReady, Message: "the node agent's pod is ready"}
		}
		c.Reason = ReasonNotReady
		c.Message = fmt.Sprintf("the node agent's pod %s is not ready: %s", pod.Name, why(pod))
	}
	return c
}

// metricsPort is the port of an agent's metrics where its pod names none.
const metricsPort = 9400

// Metrics is where a node's agent serves its metrics, as host:port; empty without a ready pod, or
// where its address is none of another machine. The port is of the pod's spec: the address is the
// word of the node's kubelet, whose credentials may be stolen.
func (a *Agents) Metrics(node string) string {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, uid := range slices.Sorted(maps.Keys(a.pods[node])) {
		if pod := a.pods[node][uid]; ready(pod) && elsewhere(pod.Status.PodIP) {
			port := metricsPort
			for i := range pod.Spec.Containers {
				for _, p := range pod.Spec.Containers[i].Ports {
					if p.Name == "metrics" {
						port = int(p.ContainerPort)
					}
				}
			}
			return net.JoinHostPort(pod.Status.PodIP, strconv.Itoa(port))
		}
	}
	return ""
}

// elsewhere reports whether it is an address that another machine may have: the allocator's own
// services, and the cloud's metadata, which only machines themselves may ask, are none.
func elsewhere(address string) bool {
	ip, err := netip.ParseAddr(address)
	return err == nil && ip.Zone() == "" && ip.Unmap().IsGlobalUnicast()
}

func ready(pod *corev1.Pod) bool {
	return pod.DeletionTimestamp == nil && podutil.IsPodReady(pod)
}

// why is what the kubelet says of it. What changes with each attempt is left out: the
// condition is written when it changes.
func why(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "it is being deleted"
	}
	for _, s := range pod.Status.ContainerStatuses {
		switch {
		case s.State.Waiting != nil:
			return cmp.Or(s.State.Waiting.Reason, "its container waits")
		case s.State.Terminated != nil:
			return fmt.Sprintf("its container has ended with exit code %d", s.State.Terminated.ExitCode)
		case !s.Ready:
			return "its readiness probe fails: kubectl -n " + v1alpha1.SystemNamespace + " describe pod " + pod.Name
		}
	}
	return cmp.Or(pod.Status.Reason, "the kubelet has not started it, or does not report")
}
