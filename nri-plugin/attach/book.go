// SPDX-License-Identifier: Apache-2.0

// Package attach owns the table of containers that hold slices at the runtime
// now, and the sum of what they hold of each device. Its fence keeps a
// pod whose slices are being given back from starting another container. All are under one
// lock: between the last look at the book and the fence, or the entry, no
// container can slip in.
//
// It lives in memory only and is filled again from the runtime's own list; it
// never talks to the API server.
package attach

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/nri-plugin/numa"
)

// Entry is a container that holds slices.
type Entry struct {
	mode.Container
	// Sandbox is the runtime's id of the pod's sandbox.
	Sandbox string
	// Prepared: we gave the container its limits at its creation.
	Prepared bool
	// Adjust is what we gave the container at its creation, until it is started.
	Adjust *api.ContainerAdjustment
	// PID of its first process, once it has been started.
	PID uint32
	// Grace is its pod's terminationGracePeriodSeconds, as far as its slices may outlive the pod.
	Grace time.Duration
	// CPUs that it has.
	CPUs numa.CPUs
	// Status of its slices once it has been started, nil before.
	Status []v1alpha1.SliceStatus
}

// Book of the containers that hold slices. Fields that are set are called outside the
// lock: Changed after every change with the pod's UID, Ended with every
// container that is removed.
type Book struct {
	Changed func(types.UID)
	Ended   func(mode.Container)

	mu      sync.Mutex
	synced  bool
	entries map[string]Entry
	fenced  map[types.UID]bool
}

// Attach enters a container before it is created. It fails for a fenced pod, and
// where those that are entered leave no room on a device. Entering the same id
// again replaces the entry.
func (b *Book) Attach(e Entry) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fenced[e.Pod] {
		return fmt.Errorf("the slices of pod %s have been given back; delete the pod so that it is placed again", e.Owner)
	}
	if err := b.room(e); err != nil {
		return err
	}
	if b.entries == nil {
		b.entries = map[string]Entry{}
	}
	b.entries[e.ID] = e
	return nil
}

// Get finds a container by the runtime's id.
func (b *Book) Get(id string) (Entry, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, found := b.entries[id]
	return e, found
}

// All are the containers that are entered, in no order.
func (b *Book) All() []Entry {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Collect(maps.Values(b.entries))
}

// Align writes into the status of a container what it is with these CPUs. It is called under
// the lock, so that both are the latest, and must not block.
type Align func(status []v1alpha1.SliceStatus, cpus cpuset.CPUSet)

// Started records what holds the slices of a container, whose first process is pid.
func (b *Book) Started(id string, pid uint32, status []v1alpha1.SliceStatus, align Align) {
	b.update(id, func(e *Entry) {
		align(status, e.CPUs.Set)
		e.Status, e.PID, e.Adjust = status, pid, nil
	})
}

// Resized records which CPUs a container has now.
func (b *Book) Resized(id string, cpus numa.CPUs, align Align) {
	b.update(id, func(e *Entry) {
		e.CPUs, e.Status = cpus, slices.Clone(e.Status)
		align(e.Status, cpus.Set)
	})
}

func (b *Book) update(id string, set func(*Entry)) {
	b.mu.Lock()
	e, found := b.entries[id]
	if found {
		set(&e)
		b.entries[id] = e
	}
	b.mu.Unlock()
	if found {
		b.changed(e.Pod)
	}
}

// Of are the containers of a pod that are entered, in no order.
func (b *Book) Of(pod types.UID) []Entry {
	return slices.DeleteFunc(b.All(), func(e Entry) bool { return e.Pod != pod })
}

// Containers are all that are entered.
func (b *Book) Containers() []mode.Container {
	var all []mode.Container
	for _, e := range b.All() {
		all = append(all, e.Container)
	}
	return all
}

// Unobserved are the containers that were found running and of which it is not
// known what holds them.
func (b *Book) Unobserved() []Entry {
	return slices.DeleteFunc(b.All(), func(e Entry) bool { return e.PID == 0 || e.Status != nil })
}

// Detach removes a container. An unknown id is no error: the runtime reports
// the end of a container more than once.
func (b *Book) Detach(id string) {
	b.mu.Lock()
	e, found := b.entries[id]
	delete(b.entries, id)
	b.mu.Unlock()
	if found {
		b.ended(e)
	}
}

// DetachSandbox removes every container of a sandbox. The runtime ends a
// sandbox only after its containers, so one that is still entered was never
// created or its end was not reported.
func (b *Book) DetachSandbox(sandbox string) {
	b.mu.Lock()
	var gone []Entry
	for id, e := range b.entries {
		if e.Sandbox == sandbox {
			gone = append(gone, e)
			delete(b.entries, id)
		}
	}
	b.mu.Unlock()
	b.ended(gone...)
}

// Reset replaces the book by the runtime's list.
func (b *Book) Reset(entries []Entry) {
	b.mu.Lock()
	before := b.entries
	b.entries = make(map[string]Entry, len(entries))
	for _, e := range entries {
		b.entries[e.ID] = e
		delete(before, e.ID)
	}
	b.synced = true
	b.mu.Unlock()
	for _, e := range before {
		b.ended(e)
	}
	for _, e := range entries {
		b.changed(e.Pod)
	}
}

// Disconnected says that the runtime is out of sight: the end of a container
// would go unnoticed, so nothing is fenced until the next Reset.
func (b *Book) Disconnected() {
	b.mu.Lock()
	b.synced = false
	b.mu.Unlock()
}

// Fence bars a pod from new containers if it has none now, and reports whether it
// is barred. False while the runtime is out of sight.
func (b *Book) Fence(pod types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fenced[pod] {
		return true
	}
	if !b.synced || b.holds(pod) {
		return false
	}
	b.fence(pod)
	return true
}

// Restore bars pods that were barred before the agent's restart.
func (b *Book) Restore(pods []types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, pod := range pods {
		b.fence(pod)
	}
}

func (b *Book) fence(pod types.UID) {
	if b.fenced == nil {
		b.fenced = map[types.UID]bool{}
	}
	b.fenced[pod] = true
}

// Barred reports whether a pod is.
func (b *Book) Barred(pod types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.fenced[pod]
}

// Fenced are the barred pods, sorted: what the ledger's status.released shows.
func (b *Book) Fenced() []types.UID {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Sorted(maps.Keys(b.fenced))
}

// Unfence forgets a pod: none of its slices is in the ledger any more, so the
// ledger itself refuses it from now on.
func (b *Book) Unfence(pod types.UID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.fenced, pod)
}

// Holds reports whether a container of the pod is entered.
func (b *Book) Holds(pod types.UID) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holds(pod)
}

func (b *Book) holds(pod types.UID) bool {
	for _, e := range b.entries {
		if e.Pod == pod {
			return true
		}
	}
	return false
}

// Synced reports whether the book is the runtime's present state.
func (b *Book) Synced() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.synced
}

// Slices are the statuses of all started containers, in a stable order.
func (b *Book) Slices() []v1alpha1.SliceStatus {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []v1alpha1.SliceStatus
	for _, e := range b.entries {
		all = append(all, e.Status...)
	}
	slices.SortFunc(all, func(x, y v1alpha1.SliceStatus) int {
		return cmp.Or(cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.Ctr, y.Ctr),
			cmp.Compare(x.Container, y.Container), cmp.Compare(x.UUID, y.UUID))
	})
	return all
}

func (b *Book) ended(gone ...Entry) {
	for _, e := range gone {
		if b.Ended != nil {
			b.Ended(e.Container)
		}
		b.changed(e.Pod)
	}
}

func (b *Book) changed(pod types.UID) {
	if b.Changed != nil {
		b.Changed(pod)
	}
}
