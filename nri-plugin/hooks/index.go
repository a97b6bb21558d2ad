// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"maps"
	"sync"

	"github.com/containerd/nri/pkg/api"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/batch"
)

// Holder is a container of the node, with slices or without.
type Holder struct {
	Pod PodRef
	// ID is the runtime's, Name the container's in its pod.
	ID, Name string
	// Batch is its host's side, nil for one that is not opportunistic.
	Batch *batch.Container
	// Sliced: it holds slices, and the table says of which devices, until it has ended.
	Sliced bool
	// Kept: GPUs that are not of its slices were kept from it when it was created. Opens:
	// its own specification lets it open some all the same, because it is privileged or was
	// given them past Vernier. With neither, it was created without the agent, and nobody
	// knows.
	Kept, Opens bool

	sandbox string
}

// ContainerIndex has every container that the runtime has started and not ended, by its
// id: it turns a process's cgroup into a pod's name. The zero value is empty.
type ContainerIndex struct {
	mu   sync.Mutex
	byID map[string]Holder
}

// Find looks a container up by the runtime's id.
func (r *ContainerIndex) Find(id string) (Holder, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, found := r.byID[id]
	return h, found
}

// Batch are the opportunistic containers.
func (r *ContainerIndex) Batch() []batch.Container {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []batch.Container
	for _, h := range r.byID {
		if h.Batch != nil {
			all = append(all, *h.Batch)
		}
	}
	return all
}

// add takes a container up, sliced if it is in the table; seen tells that it is being
// started just now.
func (r *ContainerIndex) add(pod *api.PodSandbox, request *podrequest.Request, c *api.Container, sliced, seen bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = map[string]Holder{}
	}
	h := Holder{
		Pod: ref(pod), ID: c.GetId(), Name: c.GetName(), sandbox: pod.GetId(), Sliced: sliced,
		Kept:  hasKeyValue(api.FromOCIEnv(c.GetEnv()), v1alpha1.EnvVisibleDevices, v1alpha1.EnvVisibleDevicesVoid),
		Opens: isPrivileged(c) || !sliced && holdsGPU(c),
	}
	// The sandbox keeps the annotation that the pod was created with. The user's own word is
	// enough, since it only takes away; one that cannot be read says nothing.
	if marked(pod, c) && request.QoS == v1alpha1.QoSOpportunistic {
		h.Batch = &batch.Container{
			ID: h.ID, Name: h.Name, Namespace: h.Pod.Namespace, Pod: h.Pod.Name, UID: h.Pod.UID,
			PID: c.GetPid(), Quota: batch.QuotaOf(c.GetLinux().GetResources()), Seen: seen,
		}
	}
	r.byID[h.ID] = h
}

func (r *ContainerIndex) remove(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, id)
}

// strikeSandbox forgets what ended with its sandbox without a word of its own.
func (r *ContainerIndex) removeSandbox(sandbox string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	maps.DeleteFunc(r.byID, func(_ string, h Holder) bool { return h.sandbox == sandbox })
}

func (r *ContainerIndex) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.byID)
}
