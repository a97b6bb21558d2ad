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
	tick, idleTick = 5 * time.Millisecond, 50 * time.Millisecond
	// census is how often it counts the processes of containers without a quota.
	census = time.Second
)

// Loop shares out the time of all GPUs of a node.
type Loop struct {
	now func() time.Duration // CLOCK_MONOTONIC, the clock of the files

	mu         sync.Mutex
	containers []*Container // in the order of their coming, so that turns stay where they are
	read       int64        // number of the interval up to which calendars have been read
	union      map[string]float64
}

// Container is a container that a loop looks after.
type Container struct {
	loop         *Loop
	limits       layout.Limits
	countersPath string
	counters     *os.File
	pace         *layout.Pace
	activity     []layout.Activity
	overlap      []overlap
	lives        bool
	counted      time.Duration // when lives was found out
	failed       bool          // the counters can't be read
}

// New returns a loop without containers.
func New() *Loop { return &Loop{now: monotonic, union: map[string]float64{}} }

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
	if c.counters, err = os.Open(counters); err != nil {
		_ = c.pace.Close()
		return nil, err
	}
	c.activity = make([]layout.Activity, len(c.limits.Devices))
	c.overlap = make([]overlap, len(c.limits.Devices))
	if err := layout.ReadActivity(c.counters, c.activity); err == nil {
		for i, a := range c.activity {
			c.overlap[i].seen = a.Least
		}
	}
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
		if l.step() {
			timer.Reset(tick)
		} else {
			timer.Reset(idleTick)
		}
	}
}

// step looks once and says what holds from now on. It returns whether anybody is
// working to whom others matter.
func (l *Loop) step() bool {
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
	from, to := l.unread(now)
	busy := false
	for uuid, there := range places {
		if from < to {
			l.union[uuid] = readCalendars(there, from, to, l.union[uuid])
		}
		members := make([]member, len(there))
		for i, p := range there {
			d := p.container.limits.Devices[p.device]
			members[i] = member{
				quota: quota(d), mayBurst: d.MayBurst, lives: p.container.lives,
				Activity: p.container.activity[p.device],
			}
			busy = busy || members[i].working(now) && (len(there) > 1 || d.MayBurst)
		}
		for i, turn := range plan(now, members) {
			turn.Own = there[i].container.overlap[there[i].device].thousandths()
			there[i].container.pace.Set(there[i].device, turn, now+Validity)
		}
	}
	return busy
}

// place is a container's use of one GPU.
type place struct {
	container *Container
	device    int
}

// unread returns the numbers of the intervals that calendars are to be read for
// now: none for as long as it isn't time.
func (l *Loop) unread(now time.Duration) (from, to int64) {
	to = int64((now - settled) / layout.CalendarCell)
	from = max(l.read, to-int64(overlapTick*5/4/layout.CalendarCell)) // what is older may be overwritten
	if now-settled < time.Duration(l.read)*layout.CalendarCell+overlapTick {
		return 0, 0
	}
	l.read = to
	return from, to
}

// readCalendars finds out how much of what the containers of one GPU measure is
// their own. One alone has nobody's turns in it, nor has one without a quota.
func readCalendars(there []place, from, to int64, union float64) float64 {
	var calendars []layout.Calendar
	var overlaps []*overlap
	for _, p := range there {
		if p.container.activity[p.device].LastLaunch == 0 || quota(p.container.limits.Devices[p.device]) == 0 {
			continue
		}
		if c, err := layout.ReadCalendar(p.container.counters, p.device); err == nil {
			o, least := &p.container.overlap[p.device], p.container.activity[p.device].Least
			o.least += float64(max(0, least-o.seen))
			o.seen = least
			calendars, overlaps = append(calendars, c), append(overlaps, o)
		}
	}
	return add(overlaps, calendars, from, to, union)
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
