// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"maps"
	"slices"
	"strings"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// longestSample is the longest time for which a reading of the driver's utilisation counts.
const longestSample = time.Minute

// reading is what of a container's use of a device is counted.
type reading struct {
	// Container is the runtime's id.
	Container string `json:"container"`
	UUID      string `json:"uuid"`
	// Busy is the device time of the container that has been counted.
	Busy time.Duration `json:"busy"`
	// Launches that its counters had.
	Launches uint64 `json:"launches,omitempty"`
	// At is when it was read.
	At time.Time `json:"at"`
}

// sample is one reading of a slice.
type sample struct {
	container, uuid, namespace string
	// busy is all device time that the container has had, or with whole the percent in which the device is
	// busy now.
	busy  time.Duration
	whole bool
	grant ledger.Grant
	now   layout.DeviceUsage
}

// counts reports whether the slice's device time is measured.
func (s sample) counts() bool { return s.whole || s.grant.Core > 0 || s.grant.Idle > 0 }

// measure counts up to now, and what containers have used since the time before. It reports
// whether there is anything to count yet, and whether other slices are idle than before.
func (a *Account) measure() (counts, idle bool) {
	type look struct {
		of       mode.Container
		workload string
		samples  []sample
	}
	var all []look
	var work []activity
	working := a.lookedAt()
	for _, e := range a.from.Table.All() {
		if e.PID != 0 {
			usage := a.counters(e.Container)
			all = append(all, look{e.Container, a.from.Workload(e.Container), a.read(e.Container, usage)})
			work = append(work, a.activities(e.Container, usage, working)...)
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	idle = a.rest(work, a.from.Now())
	for _, l := range all {
		idle = a.starve(l.samples, a.from.Now()) || idle
	}
	a.step()
	if a.present == nil {
		return false, idle
	}
	now := a.from.Now()
	for _, l := range all {
		// One that has ended since was counted then.
		if _, runs := a.from.Table.Get(l.of.ID); runs {
			a.countAll(l.of, l.workload, l.samples, now)
		}
	}
	a.kept.Measured = now
	a.settle(now)
	if a.from.Table.Synced() {
		a.kept.Readings = slices.DeleteFunc(a.kept.Readings, func(r reading) bool {
			_, runs := a.from.Table.Get(r.Container)
			return !runs
		})
		maps.DeleteFunc(a.starving, func(of sliceKey, _ starving) bool {
			_, runs := a.from.Table.Get(of.container)
			return !runs
		})
	}
	return true, idle
}

// Ended counts what a container has used up to its end. It waits for nothing but the local
// disk.
func (a *Account) Ended(c mode.Container) {
	var all []sample
	if len(c.Grants) > 0 && c.Grants[0].Mode != v1alpha1.ModeExclusive {
		all = a.read(c, a.counters(c))
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.step()
	if a.present != nil {
		a.countAll(c, "", all, a.from.Now())
	}
	a.kept.Readings = slices.DeleteFunc(a.kept.Readings, func(r reading) bool { return r.Container == c.ID })
	a.kept.Watched = slices.DeleteFunc(a.kept.Watched, func(w watched) bool { return w.ID == c.ID })
}

// counters are what a container's counters say, nil where it has none or where their figures cannot be.
func (a *Account) counters(c mode.Container) *layout.Usage {
	usage, err := a.from.Modes.Usage(c)
	if err != nil {
		return nil
	}
	return usage
}

// countAll enters the samples of one container.
func (a *Account) countAll(c mode.Container, workload string, all []sample, now time.Time) {
	for _, s := range all {
		if s.counts() {
			a.count(s, now)
		}
	}
	a.observe(c, workload, all, now)
}

// read is what a container has used so far: of slices in mode limiter what its counters say, of whole
// devices what the driver does. Of others nothing is known.
func (a *Account) read(c mode.Container, usage *layout.Usage) (all []sample) {
	if len(c.Grants) == 0 {
		return nil
	}
	namespace, _, _ := strings.Cut(c.Owner, "/")
	if c.Grants[0].Mode == v1alpha1.ModeExclusive {
		for _, g := range c.Grants {
			if use, err := a.from.Use(g.UUID); err == nil {
				all = append(all, sample{c.ID, g.UUID, namespace, time.Duration(use.Busy), true, g, layout.DeviceUsage{UsedBytes: use.MemoryBytes}})
			}
		}
		return all
	}
	if usage == nil {
		return nil
	}
	for i, d := range usage.Devices {
		g := c.Grants[i]
		all = append(all, sample{c.ID, g.UUID, namespace, d.Busy, false, g, d})
	}
	return all
}

// count enters what a sample has more than the reading before: no more than the time between, for a tenant
// may have written anything. Whole milliseconds are counted, and the rest with the next.
func (a *Account) count(s sample, now time.Time) {
	i := slices.IndexFunc(a.kept.Readings, func(r reading) bool { return r.Container == s.container && r.UUID == s.uuid })
	if i < 0 {
		r := reading{Container: s.container, UUID: s.uuid, At: a.kept.Measured}
		if r.At.IsZero() { // an account that begins: what was used before is nobody's
			r.At, r.Busy = now, s.busy
		}
		if s.whole {
			r.At, r.Busy = now, 0
		}
		a.kept.Readings = append(a.kept.Readings, r)
		i = len(a.kept.Readings) - 1
	}
	r := &a.kept.Readings[i]
	elapsed := max(now.Sub(r.At), 0)
	more := s.busy - r.Busy
	if s.whole {
		more = elapsed * max(min(s.busy, 100), 0) / 100
		if elapsed > longestSample {
			more = 0
		}
	}
	counted := min(max(more, 0), elapsed).Truncate(time.Millisecond)
	if r.At = now; !s.whole {
		r.Launches = s.now.Launches
		// Of what was cut off nothing is counted later.
		r.Busy = s.busy - min(max(more, 0), elapsed) + counted
	}
	d, found := a.present[s.uuid]
	if !found {
		return
	}
	b := book{a.kept.Account}
	b.use(b.Through.Unix(), d.model, s.namespace, counted.Milliseconds())
	a.kept.Account = b.SliceUsageStatus
}
