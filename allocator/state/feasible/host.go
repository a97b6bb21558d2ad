// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/component-helpers/resource"
	"k8s.io/klog/v2"
)

// Host is what a node has for pods beside its devices.
type Host struct {
	// CPU in thousandths of a core and Memory in bytes are free, less than zero where
	// more was promised than there is. Cores is all CPU, in the same unit.
	CPU, Memory, Cores int64
	// Shut is a node that no pod may go to unless it asks for that: cordoned, not
	// ready, full of pods, or not known.
	Shut bool
}

// Changed are the nodes whose Host may be another since the last call, sorted. It
// brings up to date what Host shows.
func (f *Filters) Changed() ([]string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	names := slices.Sorted(maps.Keys(f.changed))
	clear(f.changed)
	if err := f.cache.UpdateSnapshot(klog.Background(), f.snapshot); err != nil {
		return nil, fmt.Errorf("scheduler snapshot: %w", err)
	}
	return names, nil
}

// Host is what the node has as of the last call of Changed, or the last cycle.
func (f *Filters) Host(node string) Host {
	info, err := f.snapshot.Get(node)
	if err != nil || info.Node() == nil {
		return Host{Shut: true}
	}
	all, taken := info.GetAllocatable(), info.GetRequested()
	return Host{
		CPU: all.GetMilliCPU() - taken.GetMilliCPU(), Memory: all.GetMemory() - taken.GetMemory(), Cores: all.GetMilliCPU(),
		Shut: shut(info.Node()) || len(info.GetPods()) >= all.GetAllowedPodNumber(),
	}
}

// shut reports whether Kubernetes itself keeps pods off the node.
func shut(node *corev1.Node) bool {
	return node.Spec.Unschedulable || slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return strings.HasPrefix(t.Key, "node.kubernetes.io/") && t.Effect != corev1.TaintEffectPreferNoSchedule
	})
}

// Asks is the CPU in thousandths of a core and the memory in bytes that the
// scheduler looks for on the pod's behalf.
func Asks(pod *corev1.Pod) (cpu, memory int64) {
	r := resource.PodRequests(pod, resource.PodResourcesOptions{})
	return r.Cpu().MilliValue(), r.Memory().Value()
}
