// SPDX-License-Identifier: Apache-2.0

package hooks

import (
	"sync"

	"github.com/containerd/nri/pkg/api"
)

// Holder is a container of the node, with slices or without.
type Holder struct {
	Pod PodRef
	// ID is the runtime's, Name the container's in its pod.
	ID, Name string

	sandbox string
}

// Roster has every container that the runtime has started and not ended, by its
// id: it turns a process's cgroup into a pod's name. The zero value is empty.
type Roster struct {
	mu   sync.Mutex
	byID map[string]Holder
}

// Find looks a container up by the runtime's id.
func (r *Roster) Find(id string) (Holder, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	h, found := r.byID[id]
	return h, found
}

func (r *Roster) enter(pod *api.PodSandbox, c *api.Container) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.byID == nil {
		r.byID = map[string]Holder{}
	}
	r.byID[c.GetId()] = Holder{Pod: ref(pod), ID: c.GetId(), Name: c.GetName(), sandbox: pod.GetId()}
}

func (r *Roster) strike(id string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byID, id)
}

// strikeSandbox forgets what ended with its sandbox without a word of its own.
func (r *Roster) strikeSandbox(sandbox string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for id, h := range r.byID {
		if h.sandbox == sandbox {
			delete(r.byID, id)
		}
	}
}

func (r *Roster) clear() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.byID)
}
