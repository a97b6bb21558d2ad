// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"maps"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// What counts as work of a slice on its device, by its mode:
//   - limiter with a quota: launches, or device time, that its counters have more than before,
//     and what the driver has seen of a process that evades the limiter;
//   - limiter without a quota: a process of its container that the driver sees work on the
//     device at a look. Where no process uses CUDA there is none;
//   - exclusive and mps: the driver's utilisation of the whole device, at each look;
//   - mig: the driver says nothing of an instance, so that no slice is idle.
//
// The driver answers for its last sample period, about a second. What cannot be read counts as
// work: a slice of which nothing is known is never idle.

// IdleGrain is how long a slice is idle before the ledger says so. So a slice that works now and
// then causes no writes.
const IdleGrain = 5 * time.Minute

// sliceKey names a container's slice of a device.
type sliceKey struct{ container, uuid string }

// rest is since when a slice has done no work, and what its counters said then.
type rest struct {
	since    time.Time
	busy     time.Duration
	launches uint64
}

// worked reports whether counters are others than at the rest's begin. An account that is read
// from the file keeps what is less than a millisecond for the next reading.
func (r rest) worked(d layout.DeviceUsage) bool {
	return d.Launches != r.launches || (d.Busy-r.busy).Abs() >= time.Millisecond
}

// activity is what a slice does at a look: it works, or its counters may say so.
type activity struct {
	slice    sliceKey
	counters *layout.DeviceUsage
	works    bool
}

// activities are those of the slices of a container that runs. usage is what its counters say,
// nil where nothing does. working are the containers that the driver has seen work.
func (a *Account) activities(c mode.Container, usage *layout.Usage, working func(uuid string) (map[string]bool, error)) (all []activity) {
	if a.from.IdleAfter == 0 {
		return nil
	}
	for i, g := range c.Grants {
		now := activity{slice: sliceKey{c.ID, g.UUID}, works: true}
		switch {
		case g.Mode == v1alpha1.ModeExclusive || g.Mode == v1alpha1.ModeMPS:
			use, err := a.from.Use(g.UUID)
			now.works = err != nil || use.Busy > 0
		case usage == nil: // mig, or counters that cannot be read
		default:
			// Without a quota they count while a container with one is on the device.
			now.counters, now.works = &usage.Devices[i], false
			if g.Core > 0 || len(usage.Processes) > 0 {
				at, err := working(g.UUID)
				now.works = at[c.ID] || err != nil && g.Core == 0
			}
		}
		all = append(all, now)
	}
	return all
}

// lookedAt asks for the containers that work on a device once.
func (a *Account) lookedAt() func(uuid string) (map[string]bool, error) {
	type answer struct {
		containers map[string]bool
		err        error
	}
	known := map[string]answer{}
	return func(uuid string) (map[string]bool, error) {
		got, asked := known[uuid]
		if !asked {
			got.containers, got.err = a.from.Working(uuid)
			known[uuid] = got
		}
		return got.containers, got.err
	}
}

// rest notes what slices do now, and reports whether others are idle than before.
func (a *Account) rest(all []activity, now time.Time) (changed bool) {
	now = now.Truncate(time.Second)
	rests, idle := map[sliceKey]rest{}, map[sliceKey]time.Time{}
	if !a.from.Table.Synced() { // what is not seen may run
		maps.Copy(rests, a.rests)
	}
	for _, is := range all {
		was, rested := a.rests[is.slice]
		var has layout.DeviceUsage
		if is.counters != nil {
			has = *is.counters
		}
		switch {
		case is.works:
			delete(rests, is.slice)
		case !rested || now.Before(was.since) || was.worked(has):
			rests[is.slice] = rest{now, has.Busy, has.Launches}
		default:
			rests[is.slice] = was
		}
	}
	for slice, r := range rests {
		if now.Sub(r.since) >= min(IdleGrain, a.from.IdleAfter) {
			idle[slice] = r.since
		}
	}
	changed = !maps.EqualFunc(idle, a.idle, time.Time.Equal)
	a.rests, a.idle = rests, idle
	return changed
}

// Restore goes on from what the agent before has published. It does not if that was away for
// longer than IdleGrain: nobody has seen what slices did then.
func (a *Account) Restore(published []v1alpha1.SliceStatus) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.from.IdleAfter == 0 || a.from.Now().Sub(a.kept.Measured) > IdleGrain {
		return
	}
	a.rests, a.idle = map[sliceKey]rest{}, map[sliceKey]time.Time{}
	for _, s := range published {
		if s.IdleSince == nil {
			continue
		}
		slice, r := sliceKey{s.Container, s.UUID}, rest{since: s.IdleSince.Time}
		for _, read := range a.kept.Readings {
			if read.Container == s.Container && read.UUID == s.UUID && s.Mode == v1alpha1.ModeLimiter {
				r.busy, r.launches = read.Busy, read.Launches
			}
		}
		a.rests[slice], a.idle[slice] = r, r.since
	}
}

// IdleSince is since when a container has done no work on a device, nil where it works or
// nothing is known.
func (a *Account) IdleSince(container, uuid string) *metav1.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	since, idle := a.idle[sliceKey{container, uuid}]
	if !idle {
		return nil
	}
	return &metav1.Time{Time: since}
}
