// SPDX-License-Identifier: Apache-2.0

package numa

import (
	"cmp"
	"slices"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
)

// Misaligned are the pods whose GPUs have to follow their CPUs: what the ledger's
// status.misaligned shows. No container of such a pod is started until its slices are on
// devices of that NUMA node, so the allocator can move them at any time. They are in memory
// only: after a restart of the agent the next creation enters the pod again.
type Misaligned struct {
	// Changed is called after a pod was entered. Optional.
	Changed func()

	mu   sync.Mutex
	pods map[types.UID]int32
}

// Add enters a pod, with the NUMA node that its CPUs are of.
func (m *Misaligned) Add(pod types.UID, node int32) {
	m.mu.Lock()
	if m.pods == nil {
		m.pods = map[types.UID]int32{}
	}
	m.pods[pod] = node
	m.mu.Unlock()
	if m.Changed != nil {
		m.Changed()
	}
}

// Find reports whether the pod is entered, and the NUMA node that its CPUs are of.
func (m *Misaligned) Find(pod types.UID) (int32, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	node, found := m.pods[pod]
	return node, found
}

// Keep strikes out the pods for which keep is false, and returns the others, sorted; not more
// than a ledger has room for.
func (m *Misaligned) Keep(keep func(pod types.UID, node int32) bool) []v1alpha1.MisalignedPod {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []v1alpha1.MisalignedPod
	for pod, node := range m.pods {
		if keep(pod, node) {
			all = append(all, v1alpha1.MisalignedPod{Pod: pod, NUMA: node})
		} else {
			delete(m.pods, pod)
		}
	}
	slices.SortFunc(all, func(a, b v1alpha1.MisalignedPod) int { return cmp.Compare(a.Pod, b.Pod) })
	return all[:min(len(all), v1alpha1.MaxMisaligned)]
}
