// SPDX-License-Identifier: Apache-2.0

// Package attach owns the table of containers that hold slices at the runtime
// now, and the sum of what they hold of each device. Its fence keeps a
// pod whose slices are being given back from starting another container. All are under one
// lock: between the last look at the table and the fence, or the entry, no
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
	"vernier.dev/vernier/nri-plugin/ledger"
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
	// Ready is what is left to the container of its memory on devices, by UUID, where the rest is lent.
	Ready map[string]v1alpha1.MiB
	// Grace is its pod's terminationGracePeriodSeconds, as far as its slices may outlive the pod.
	Grace time.Duration
	// CPUs that it has.
	CPUs numa.CPUs
	// Status of its slices once it has been started, nil before.
	Status []v1alpha1.SliceStatus
}

// ContainerTable of the containers that hold slices. Fields that are set are called outside the
// lock: Changed after every change with the pod's UID, Ended with every
// container that is removed.
type ContainerTable struct {
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
func (t *ContainerTable) Attach(e Entry) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fenced[e.Pod] {
		return fmt.Errorf("the slices of pod %s have been given back; delete the pod so that it is placed again", e.Owner)
	}
	if err := t.room(e); err != nil {
		return err
	}
	if t.entries == nil {
		t.entries = map[string]Entry{}
	}
	t.entries[e.ID] = e
	return nil
}

// Get finds a container by the runtime's id.
func (t *ContainerTable) Get(id string) (Entry, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, found := t.entries[id]
	return e, found
}

// All are the containers that are entered, in no order.
func (t *ContainerTable) All() []Entry {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Collect(maps.Values(t.entries))
}

// Align writes into the status of a container what it is with these CPUs. It is called under
// the lock, so that both are the latest, and must not block.
type Align func(status []v1alpha1.SliceStatus, cpus cpuset.CPUSet)

// Started records what holds the slices of a container, whose first process is pid.
func (t *ContainerTable) Started(id string, pid uint32, status []v1alpha1.SliceStatus, align Align) {
	t.update(id, func(e *Entry) {
		align(status, e.CPUs.Set)
		e.Status, e.PID, e.Adjust = status, pid, nil
	})
}

// Resized records which CPUs a container has now.
func (t *ContainerTable) Resized(id string, cpus numa.CPUs, align Align) {
	t.update(id, func(e *Entry) {
		e.CPUs, e.Status = cpus, slices.Clone(e.Status)
		align(e.Status, cpus.Set)
	})
}

// Regrant gives a container other slices of its devices. It is an error where a device has no room
// for them, whatever the ledger says. One that has ended gets none.
func (t *ContainerTable) Regrant(id string, grants []ledger.Grant) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, found := t.entries[id]
	if !found {
		return nil
	}
	e.Grants = grants
	if err := t.room(e); err != nil {
		return err
	}
	t.entries[id] = e
	return nil
}

// Lend records how much memory of a device is left to a container. Less is recorded once it is in force,
// more before. It is an error where a device has no room for more. One that has ended has nothing to lend.
func (t *ContainerTable) Lend(id, uuid string, ready v1alpha1.MiB) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	e, found := t.entries[id]
	before, lent := e.Ready[uuid]
	if !found || lent && before == ready {
		return nil
	}
	if e.Ready = maps.Clone(e.Ready); e.Ready == nil {
		e.Ready = map[string]v1alpha1.MiB{}
	}
	e.Ready[uuid] = ready
	if lent && ready > before {
		if err := t.room(e); err != nil {
			return err
		}
	}
	t.entries[id] = e
	return nil
}

// Acted records the number of a resize that is in force, or why it was refused.
func (t *ContainerTable) Acted(id string, number int64, refused string) {
	t.update(id, func(e *Entry) {
		e.Status = slices.Clone(e.Status)
		for i := range e.Status {
			e.Status[i].Resized, e.Status[i].Refused = number, refused
		}
	})
}

func (t *ContainerTable) update(id string, set func(*Entry)) {
	t.mu.Lock()
	e, found := t.entries[id]
	if found {
		set(&e)
		t.entries[id] = e
	}
	t.mu.Unlock()
	if found {
		t.changed(e.Pod)
	}
}

// Of are the containers of a pod that are entered, in no order.
func (t *ContainerTable) Of(pod types.UID) []Entry {
	return slices.DeleteFunc(t.All(), func(e Entry) bool { return e.Pod != pod })
}

// Containers are all that are entered.
func (t *ContainerTable) Containers() []mode.Container {
	var all []mode.Container
	for _, e := range t.All() {
		all = append(all, e.Container)
	}
	return all
}

// Unobserved are the containers that were found running and of which it is not
// known what holds them.
func (t *ContainerTable) Unobserved() []Entry {
	return slices.DeleteFunc(t.All(), func(e Entry) bool { return e.PID == 0 || e.Status != nil })
}

// Detach removes a container. An unknown id is no error: the runtime reports
// the end of a container more than once.
func (t *ContainerTable) Detach(id string) {
	t.mu.Lock()
	e, found := t.entries[id]
	delete(t.entries, id)
	t.mu.Unlock()
	if found {
		t.ended(e)
	}
}

// DetachSandbox removes every container of a sandbox. The runtime ends a
// sandbox only after its containers, so one that is still entered was never
// created or its end was not reported.
func (t *ContainerTable) DetachSandbox(sandbox string) {
	t.mu.Lock()
	var gone []Entry
	for id, e := range t.entries {
		if e.Sandbox == sandbox {
			gone = append(gone, e)
			delete(t.entries, id)
		}
	}
	t.mu.Unlock()
	t.ended(gone...)
}

// Reset replaces the table by the runtime's list.
func (t *ContainerTable) Reset(entries []Entry) {
	t.mu.Lock()
	before := t.entries
	t.entries = make(map[string]Entry, len(entries))
	for _, e := range entries {
		t.entries[e.ID] = e
		delete(before, e.ID)
	}
	t.synced = true
	t.mu.Unlock()
	for _, e := range before {
		t.ended(e)
	}
	for _, e := range entries {
		t.changed(e.Pod)
	}
}

// Disconnected says that the runtime is out of sight: the end of a container
// would go unnoticed, so nothing is fenced until the next Reset.
func (t *ContainerTable) Disconnected() {
	t.mu.Lock()
	t.synced = false
	t.mu.Unlock()
}

// Fence bars a pod from new containers if it has none now, and reports whether it
// is barred. False while the runtime is out of sight.
func (t *ContainerTable) Fence(pod types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.fenced[pod] {
		return true
	}
	if !t.synced || t.holds(pod) {
		return false
	}
	t.fence(pod)
	return true
}

// Restore bars pods that were barred before the agent's restart.
func (t *ContainerTable) Restore(pods []types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, pod := range pods {
		t.fence(pod)
	}
}

func (t *ContainerTable) fence(pod types.UID) {
	if t.fenced == nil {
		t.fenced = map[types.UID]bool{}
	}
	t.fenced[pod] = true
}

// Barred reports whether a pod is.
func (t *ContainerTable) Barred(pod types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.fenced[pod]
}

// Fenced are the barred pods, sorted: what the ledger's status.released shows.
func (t *ContainerTable) Fenced() []types.UID {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(maps.Keys(t.fenced))
}

// Unfence forgets a pod: none of its slices is in the ledger any more, so the
// ledger itself refuses it from now on.
func (t *ContainerTable) Unfence(pod types.UID) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.fenced, pod)
}

// Holds reports whether a container of the pod is entered.
func (t *ContainerTable) Holds(pod types.UID) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.holds(pod)
}

func (t *ContainerTable) holds(pod types.UID) bool {
	for _, e := range t.entries {
		if e.Pod == pod {
			return true
		}
	}
	return false
}

// Synced reports whether the table is the runtime's present state.
func (t *ContainerTable) Synced() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.synced
}

// Slices are the statuses of all started containers, in a stable order.
func (t *ContainerTable) Slices() []v1alpha1.SliceStatus {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []v1alpha1.SliceStatus
	for _, e := range t.entries {
		all = append(all, e.Status...)
	}
	slices.SortFunc(all, func(x, y v1alpha1.SliceStatus) int {
		return cmp.Or(cmp.Compare(x.Pod, y.Pod), cmp.Compare(x.Ctr, y.Ctr),
			cmp.Compare(x.Container, y.Container), cmp.Compare(x.UUID, y.UUID))
	})
	return all
}

func (t *ContainerTable) ended(gone ...Entry) {
	for _, e := range gone {
		if t.Ended != nil {
			t.Ended(e.Container)
		}
		t.changed(e.Pod)
	}
}

func (t *ContainerTable) changed(pod types.UID) {
	if t.Changed != nil {
		t.Changed(pod)
	}
}
