// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"cmp"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"vernier.dev/vernier/api/v1alpha1"
)

// Misaligned are the pods whose GPUs have to follow their CPUs: what the ledger's
// status.misaligned shows. No container of such a pod is started until its slices are on
// devices of that NUMA node. The allocator can move them at any time. They are in memory
// only: after a restart of the agent the next creation enters the pod again.
type Misaligned struct {
	// Changed is called after a pod was entered or removed. Optional.
	Changed func()

	mu   sync.Mutex
	pods map[types.UID]follower
}

// follower is a pod whose GPUs follow the CPUs, of that NUMA node, of this container.
type follower struct {
	node      int32
	container string
}

// Add enters a pod, with the NUMA node that the CPUs of that container are of.
func (m *Misaligned) Add(pod types.UID, container string, node int32) {
	m.mu.Lock()
	if m.pods == nil {
		m.pods = map[types.UID]follower{}
	}
	m.pods[pod] = follower{node, container}
	m.mu.Unlock()
	m.changed()
}

// Compare removes the pod where it was entered for that container, which comes now with
// CPUs of other NUMA nodes too. The kubelet has given it others.
func (m *Misaligned) Compare(pod types.UID, container string, cpus cpuset.CPUSet, nodes Nodes) {
	m.mu.Lock()
	f, found := m.pods[pod]
	over := found && f.container == container && !nodes.Only(f.node, cpus)
	if over {
		delete(m.pods, pod)
	}
	m.mu.Unlock()
	if over {
		m.changed()
	}
}

func (m *Misaligned) changed() {
	if m.Changed != nil {
		m.Changed()
	}
}

// Find reports whether the pod is entered, and the NUMA node that its CPUs are of.
func (m *Misaligned) Find(pod types.UID) (int32, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, found := m.pods[pod]
	return f.node, found
}

// Keep removes the pods for which keep is false, and returns the others, sorted; not more
// than a ledger has room for.
func (m *Misaligned) Keep(keep func(pod types.UID, node int32) bool) []v1alpha1.MisalignedPod {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []v1alpha1.MisalignedPod
	for pod, f := range m.pods {
		if keep(pod, f.node) {
			all = append(all, v1alpha1.MisalignedPod{Pod: pod, NUMA: f.node})
		} else {
			delete(m.pods, pod)
		}
	}
	slices.SortFunc(all, func(a, b v1alpha1.MisalignedPod) int { return cmp.Compare(a.Pod, b.Pod) })
	return all[:min(len(all), v1alpha1.MaxMisaligned)]
}
