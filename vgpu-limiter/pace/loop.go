// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

const (
	// Validity is for how long a container goes by the last pace file.
	Validity = 250 * time.Millisecond
	// tick is how often the loop looks while somebody works beside somebody
	// else, or may burst; idleTick otherwise.
	tick, idleTick = 5 * time.Millisecond, 20 * time.Millisecond
)

// Loop shares out the time of all GPUs of a node.
type Loop struct {
	now func() time.Duration // CLOCK_MONOTONIC, the clock of the files

	mu         sync.Mutex
	containers []*Container      // in the order of their coming, so that turns stay where they are
	rhythms    map[string]rhythm // by GPU
	settled    time.Duration     // when what was charged too much was returned last
	stepped    time.Duration     // when it looked last
}

// throttled is how long a container's launches had waited, and when that last grew.
type throttled struct{ sum, when time.Duration }

// used is what a container was charged on a device in all, and since the look before.
type used struct{ sum, more time.Duration }

// onDevice is what is known of a container on one of its devices.
type onDevice struct {
	overlap   overlap
	beside    beside
	slot      slot
	throttled throttled
	used      used
	plain     uint32       // as it was written last
	grown     layout.Grown // what they were at the least
	before    layout.Grown // as they were read last
}

// Container is a container that a loop looks after.
type Container struct {
	loop     *Loop
	limits   layout.Limits
	path     string // of the counters
	counters *os.File
	pace     *layout.Pace
	activity []layout.Activity // by device, as those below
	devices  []onDevice
	shrunk   int  // readings in a row with a lesser one
	damaged  bool // the counters went back
	unknown  bool // of a release that knows no plain quota
	failed   bool // the counters can't be read
	shut     bool // an idle slice's: it gets no turns
}

// New returns a loop without containers.
func New() *Loop { return NewAt(Now) }

// NewAt is New with a clock in place of CLOCK_MONOTONIC, which the containers'
// processes must go by as well.
func NewAt(now func() time.Duration) *Loop {
	return &Loop{now: now, rhythms: map[string]rhythm{}}
}

// Now is CLOCK_MONOTONIC.
func Now() time.Duration {
	var t unix.Timespec
	// Can't fail for this clock.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano())
}

// Attach begins to look after a container, by the paths of its three files.
func (l *Loop) Attach(limits, counters, pace string) (*Container, error) {
	c := &Container{loop: l, path: counters}
	var err error
	if c.limits, err = layout.ReadFile(limits); err != nil {
		return nil, err
	}
	if c.pace, err = layout.OpenPace(pace, len(c.limits.Devices)); err != nil {
		return nil, err
	}
	if c.counters, err = layout.OpenCounters(counters); err != nil {
		_ = c.pace.Close()
		return nil, err
	}
	c.activity = make([]layout.Activity, len(c.limits.Devices))
	c.devices = make([]onDevice, len(c.limits.Devices))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.containers = append(l.containers, c)
	l.setPlain(l.places()) // before its processes run
	return c, nil
}

// Shut has the container, if it has an idle slice, get no turns, or get them again.
func (c *Container) Shut(shut bool) {
	c.loop.mu.Lock()
	defer c.loop.mu.Unlock()
	c.shut = shut
}

// Detach ends it; the container, if it still runs, has its plain quota. A second
// Detach does nothing.
func (c *Container) Detach() {
	c.loop.mu.Lock()
	defer c.loop.mu.Unlock()
	i := slices.Index(c.loop.containers, c)
	if i < 0 {
		return
	}
	c.loop.containers = slices.Delete(c.loop.containers, i, i+1)
	for i := range c.limits.Devices {
		c.pace.Set(i, layout.Turn{}, 0)
	}
	_ = c.counters.Close()
	_ = c.pace.Close()
}

// Run shares out time until ctx is done.
func (l *Loop) Run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		}
		timer.Reset(l.Step())
	}
}

// Step looks once and says what holds from now on. It returns when to look again.
func (l *Loop) Step() time.Duration {
	busy, at := l.step()
	if busy {
		return max(at-l.now(), tick/25)
	}
	return idleTick
}

// step returns whether anybody is working to whom others matter.
func (l *Loop) step() (bool, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	for _, c := range l.containers {
		c.look(now)
	}
	places := l.places()
	l.setPlain(places)
	busy, settle, at := false, now >= l.settled+settles, now+tick
	if settle {
		l.settled = now
	}
	for uuid, there := range places {
		members := make([]member, len(there))
		for i, p := range there {
			d, state := p.limit(), p.state()
			members[i] = member{
				quota: int(d.Core), mayBurst: d.MayBurst, most: int(d.BurstCore), unknown: p.container.unknown && d.Core == 0,
				idle: d.Idle, shut: d.Idle && p.container.shut, slot: state.slot, waits: state.throttled.when > now-2*tick,
				charged: state.used.more, Activity: p.container.activity[p.device],
			}
			busy = busy || members[i].working(now, l.rhythms[uuid]) && (len(there) > 1 || d.MayBurst)
		}
		if settle {
			settleUp(now, there)
		}
		turns, r := plan(now, l.rhythms[uuid], members)
		l.rhythms[uuid] = r
		at = min(at, event(now, members, r))
		if r.idleUntil > 0 {
			busy, at = true, min(at, r.idleUntil)
		}
		for i, turn := range turns {
			there[i].payBack(now - l.stepped)
			there[i].state().slot = members[i].slot
			valid := now + Validity
			if members[i].idle {
				valid = members[i].slot.end
			}
			there[i].container.pace.Set(there[i].device, turn, valid)
		}
	}
	l.stepped = now
	return busy, at
}

// place is a container's use of one GPU.
type place struct {
	container *Container
	device    int
}

func (p place) state() *onDevice { return &p.container.devices[p.device] }

// limit is what is in force, which changes while the container runs.
func (p place) limit() layout.DeviceLimit {
	return p.container.pace.InForce(p.device, p.container.limits.Devices[p.device])
}

// places are the containers of each GPU.
func (l *Loop) places() map[string][]place {
	places := map[string][]place{}
	for _, c := range l.containers {
		for i, d := range c.limits.Devices {
			places[d.UUID] = append(places[d.UUID], place{c, i})
		}
	}
	return places
}

// setPlain says what each container has when nobody says more.
func (l *Loop) setPlain(places map[string][]place) {
	for _, there := range places {
		quotas := make([]int, len(there))
		for i, p := range there {
			if quotas[i] = int(p.limit().Core); p.limit().Idle {
				quotas[i] = -1
			}
		}
		for i, p := range there {
			if core := plainQuota(quotas, i); core != p.state().plain {
				p.state().plain = core
				p.container.unknown = !p.container.pace.SetPlain(p.device, core)
			}
		}
	}
}

// look reads what the container has done. One that can't be read has done
// nothing: it has its plain quota, and nobody makes room for it.
func (c *Container) look(now time.Duration) {
	err := layout.ReadActivity(c.counters, c.activity)
	if err != nil {
		clear(c.activity)
	} else {
		c.compare()
	}
	for i, a := range c.activity {
		d := &c.devices[i]
		if a.Throttled != d.throttled.sum {
			d.throttled = throttled{a.Throttled, now}
		}
		d.used = used{a.Busy, min(max(a.Busy-d.used.sum, -time.Second), time.Second)}
	}
	if err != nil && !c.failed {
		slog.Warn("container has its plain quota only: its counters can't be read", "container", c.limits.Container, "error", err)
	}
	c.failed = err != nil
}

// compare marks the counters as damaged when words that only grow have gone back: a process
// has written an earlier copy of them. It takes two readings in a row, since a word may be read while
// it is written, by halves.
func (c *Container) compare() {
	back := false
	for i, a := range c.activity {
		d := &c.devices[i]
		for j, n := range a.Grown {
			back = back || n < d.grown[j]
			least := n
			if n>>32 != d.before[j]>>32 {
				least = n >> 32 << 32 // the lower half may be that of before
			}
			d.grown[j] = max(d.grown[j], least)
			d.before[j] = n
		}
	}
	if !back {
		c.shrunk = 0
		return
	}
	if c.shrunk++; c.shrunk < 2 || c.damaged {
		return
	}
	c.damaged = true
	c.pace.Damage()
	err := layout.MarkDamaged(c.path)
	slog.Warn("refused CUDA to a container: its processes have written back an earlier copy of its counters", "container", c.limits.Container, "mark", err)
}
