// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/wait"

	"vernier.dev/vernier/nri-plugin/cgroup"
)

// period is how often the keeper looks.
const period = 5 * time.Second

// Times tells what processors do.
type Times interface {
	Node() (cgroup.Load, error)
	Container(pid uint32, id string) (time.Duration, error)
	// V2: the runtime sets limits by cgroup v2.
	V2() bool
}

// Keeper holds a node's opportunistic containers to the cap. All exported fields are
// required.
type Keeper struct {
	Times Times
	// Containers are those that the runtime has and that run.
	Containers func() []Container
	// Limit is the processor time that the pod's own specification allows the
	// container, 0 without a limit; false when nobody knows.
	Limit func(Container) (MilliCPU, bool)
	// Update asks the runtime to set the containers' resources, and returns those
	// that it could not set. It waits until no container is being created.
	Update func([]*api.ContainerUpdate) ([]*api.ContainerUpdate, error)
	Log    logr.Logger

	// Cap with its share.
	Cap Cap

	mu      sync.Mutex
	last    sample
	use     Use
	given   map[string]Quota
	failing bool
}

// Use is what the containers may use together and do use.
type Use struct {
	Containers int
	// Cap is 0 before the first two looks.
	Cap, Used MilliCPU
}

// sample is one look.
type sample struct {
	at   time.Time
	node cgroup.Load
	// times of the containers by id, and what they used since the look before.
	times map[string]time.Duration
	rates map[string]MilliCPU
}

// Run looks until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	wait.UntilWithContext(ctx, func(context.Context) { k.Look(time.Now()) }, period)
	return nil
}

// Use is the state after the latest look.
func (k *Keeper) Use() Use {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.use
}

// change is what is to be set, and what was set before.
type change struct {
	*api.ContainerUpdate
	before, to Quota
}

// Look takes a sample, decides, and has the runtime set what is to change.
func (k *Keeper) Look(at time.Time) {
	changes := k.decide(at, k.Containers())
	if len(changes) == 0 {
		return
	}
	updates := make([]*api.ContainerUpdate, len(changes))
	for i, c := range changes {
		updates[i] = c.ContainerUpdate
	}
	// Not under the lock: the runtime may be inside a call of ours.
	failed, err := k.Update(updates)
	if err != nil && len(failed) == 0 {
		failed = updates
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, c := range changes {
		switch id := c.GetContainerId(); {
		case slices.ContainsFunc(failed, func(f *api.ContainerUpdate) bool { return f.GetContainerId() == id }):
		case k.given[id] != c.before:
			// Resized in between, and nobody knows which of the two came last: it
			// is set once more.
			k.given[id] = Quota{Period: c.to.Period}
		default:
			k.given[id] = c.to
		}
	}
	if err != nil && !k.failing {
		k.Log.Error(err, "The runtime has not set the quotas of opportunistic containers; it is tried again and again", "failed", len(failed), "of", len(updates))
	}
	k.failing = err != nil
}

// decide is what is to change, what is to shrink first: at no time do the quotas add
// up to more than the larger of two caps.
func (k *Keeper) decide(at time.Time, containers []Container) []change {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.enter(containers)
	if !k.sample(at, containers) {
		return nil
	}
	limits := make([]MilliCPU, len(containers))
	for i, c := range containers {
		limit, known := k.Limit(c)
		if !known {
			limit = k.given[c.ID].CPU()
		}
		limits[i] = limit
	}
	var changes []change
	for i, part := range divide(k.use.Cap, limits) {
		id := containers[i].ID
		before := k.given[id]
		to := before.of(part)
		if to == before {
			continue
		}
		u := &api.ContainerUpdate{ContainerId: id}
		u.SetLinuxCPUQuota(to.US)
		u.SetLinuxCPUPeriod(int64(to.Period))
		changes = append(changes, change{u, before, to})
	}
	slices.SortStableFunc(changes, func(a, b change) int {
		return cmp.Compare(a.to.CPU()-width(a.before.CPU()), b.to.CPU()-width(b.before.CPU()))
	})
	return changes
}

// enter takes up what the runtime has of containers that are new, and forgets those
// that are gone. k.mu is held.
func (k *Keeper) enter(containers []Container) {
	given := make(map[string]Quota, len(containers))
	for _, c := range containers {
		given[c.ID] = c.Quota
		if q, known := k.given[c.ID]; known {
			given[c.ID] = q
		}
	}
	k.given, k.use.Containers = given, len(containers)
}

// sample looks, and reports whether there is a cap to follow. k.mu is held.
func (k *Keeper) sample(at time.Time, containers []Container) bool {
	node, err := k.Times.Node()
	if err != nil {
		k.Log.Error(err, "The cap on opportunistic containers stays as it is")
		return false
	}
	before, now := k.last, sample{at: at, node: node, times: map[string]time.Duration{}, rates: map[string]MilliCPU{}}
	passed := at.Sub(before.at)
	if before.times == nil || passed <= 0 || node.All <= before.node.All || node.Busy < before.node.Busy {
		passed = 0
	}
	var used MilliCPU
	for _, c := range containers {
		// One that is about to end has no cgroup any more.
		t, err := k.Times.Container(c.PID, c.ID)
		if err != nil {
			continue
		}
		now.times[c.ID] = t
		then, known := before.times[c.ID]
		if passed > 0 && (known || c.Seen) {
			now.rates[c.ID] = MilliCPU(max(t-then, 0) * 1000 / passed)
			used += now.rates[c.ID]
		}
	}
	k.last = now
	if passed == 0 {
		return k.use.Cap > 0
	}
	k.use.Used = used
	// What has ended since has worked in this time as well, about as before.
	for id, rate := range before.rates {
		if _, runs := now.times[id]; !runs {
			used += rate
		}
	}
	size := MilliCPU(node.CPUs) * 1000
	busy := size * MilliCPU(node.Busy-before.node.Busy) / MilliCPU(node.All-before.node.All)
	k.use.Cap = k.Cap.Follow(at, size, max(busy-used, 0), len(containers))
	return true
}

// first is the quota of a container that is being created: an equal part, until the
// next look divides again. False while there is no cap.
func (k *Keeper) first(own Quota) (Quota, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.use.Cap == 0 {
		return own, false
	}
	part := max(k.use.Cap/MilliCPU(k.use.Containers+1), least)
	return own.of(min(part, width(own.CPU()))), true
}

// resized notes what the kubelet wants of a running container, and makes it no more
// than the container has.
func (k *Keeper) resized(c Container, wanted Quota) Quota {
	k.mu.Lock()
	defer k.mu.Unlock()
	now, known := k.given[c.ID]
	if !known {
		now = c.Quota
	}
	if now.US > 0 {
		wanted = wanted.of(min(now.CPU(), width(wanted.CPU())))
	}
	if k.given == nil {
		k.given = map[string]Quota{}
	}
	k.given[c.ID] = wanted
	return wanted
}
