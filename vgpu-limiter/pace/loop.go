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
	// Validity is for how long a container goes by what it was told last.
	Validity = 250 * time.Millisecond
	// tick is how often the loop looks while somebody works beside somebody
	// else, or may burst; idleTick otherwise.
	tick, idleTick = 5 * time.Millisecond, 20 * time.Millisecond
	// census is how often it counts the processes of containers without a quota.
	census = time.Second
)

// Loop shares out the time of all GPUs of a node.
type Loop struct {
	now func() time.Duration // CLOCK_MONOTONIC, the clock of the files

	mu         sync.Mutex
	containers []*Container      // in the order of their coming, so that turns stay where they are
	rhythms    map[string]rhythm // by GPU
	settled    time.Duration     // when what was charged too much was returned last
}

// throttled is how long a container's launches had waited, and when that last grew.
type throttled struct{ sum, when time.Duration }

// Container is a container that a loop looks after.
type Container struct {
	loop         *Loop
	limits       layout.Limits
	countersPath string
	counters     *os.File
	pace         *layout.Pace
	activity     []layout.Activity
	overlaps     []overlap
	slots        []slot
	throttled    []throttled
	lives        bool
	counted      time.Duration // when lives was found out
	failed       bool          // the counters can't be read
}

// New returns a loop without containers.
func New() *Loop { return NewAt(monotonic) }

// NewAt is New with a clock in place of CLOCK_MONOTONIC, which the containers'
// processes must go by as well.
func NewAt(now func() time.Duration) *Loop {
	return &Loop{now: now, rhythms: map[string]rhythm{}}
}

func monotonic() time.Duration {
	var t unix.Timespec
	// Can't fail for this clock.
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
	return time.Duration(t.Nano())
}

// Attach begins to look after a container, by the paths of its three files.
func (l *Loop) Attach(limits, counters, pace string) (*Container, error) {
	c := &Container{loop: l, countersPath: counters}
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
	c.overlaps = make([]overlap, len(c.limits.Devices))
	c.slots = make([]slot, len(c.limits.Devices))
	c.throttled = make([]throttled, len(c.limits.Devices))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.containers = append(l.containers, c)
	return c, nil
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
	places := map[string][]place{}
	for _, c := range l.containers {
		c.look(now)
		for i, d := range c.limits.Devices {
			places[d.UUID] = append(places[d.UUID], place{c, i})
		}
	}
	busy, settle, at := false, now >= l.settled+settles, now+tick
	if settle {
		l.settled = now
	}
	for uuid, there := range places {
		members := make([]member, len(there))
		for i, p := range there {
			d := p.container.limits.Devices[p.device]
			members[i] = member{
				quota: quota(d), mayBurst: d.MayBurst, lives: p.container.lives,
				slot: p.container.slots[p.device], waits: p.container.throttled[p.device].when > now-2*tick, Activity: p.container.activity[p.device],
			}
			busy = busy || members[i].working(now, l.rhythms[uuid]) && (len(there) > 1 || d.MayBurst)
		}
		if settle {
			settleUp(now, there)
		}
		turns, r := plan(now, l.rhythms[uuid], members)
		l.rhythms[uuid] = r
		at = min(at, event(now, members))
		for i, turn := range turns {
			there[i].container.slots[there[i].device] = members[i].slot
			there[i].container.pace.Set(there[i].device, turn, now+Validity)
		}
	}
	return busy, at
}

// place is a container's use of one GPU.
type place struct {
	container *Container
	device    int
}

// quota is what the library keeps: 100 percent is none.
func quota(d layout.DeviceLimit) int {
	if d.Core == 100 {
		return 0
	}
	return int(d.Core)
}

// look reads what the container has done. One that can't be read has done
// nothing: it has its plain quota, and nobody makes room for it.
func (c *Container) look(now time.Duration) {
	err := layout.ReadActivity(c.counters, c.activity)
	if err != nil {
		clear(c.activity)
	}
	for i, a := range c.activity {
		if a.Throttled != c.throttled[i].sum {
			c.throttled[i] = throttled{a.Throttled, now}
		}
	}
	unlimited := false
	for _, d := range c.limits.Devices {
		unlimited = unlimited || quota(d) == 0
	}
	if unlimited && err == nil && now >= c.counted+census {
		usage, usageErr := layout.ReadUsage(c.countersPath)
		c.lives = usageErr == nil && len(usage.Processes) > 0
		c.counted, err = now, usageErr
	}
	if err != nil && !c.failed {
		slog.Warn("container has its plain quota only: its counters can't be read", "container", c.limits.Container, "error", err)
	}
	c.failed = err != nil
}
