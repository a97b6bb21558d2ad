// SPDX-License-Identifier: Apache-2.0

// Package servertime owns what a component knows of the time: its own clock beside that of the API
// server, which each answer states. The kernel's clock since boot carries the latter forward while
// the API server is away. Two clocks that differ show that one is wrong.
//
// It sets no clock, asks the API server nothing, and decides nothing.
package servertime

import (
	"fmt"
	"net/http"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// MaxSkew is how far the two clocks may differ.
const MaxSkew = 30 * time.Second

// maxRoundTrip bounds how old the time in an answer may be.
const maxRoundTrip = 5 * time.Second

// Clock compares a component's clock with the API server's. It may be used concurrently.
type Clock struct {
	wall    func() time.Time
	elapsed func() time.Duration

	mu sync.Mutex
	// server is what the API server stated last. agreed is the latest time on which both clocks agreed.
	server, agreed mark
}

// mark is a time, and the time since boot at which it was.
type mark struct {
	at    time.Time
	since time.Duration
}

func (m mark) now(elapsed time.Duration) time.Time {
	if m.at.IsZero() {
		return m.at
	}
	return m.at.Add(elapsed - m.since)
}

// New is a clock that knows nothing of the API server yet. wall is the component's own; elapsed is
// SinceBoot but in tests.
func New(wall func() time.Time, elapsed func() time.Duration) *Clock {
	return &Clock{wall: wall, elapsed: elapsed}
}

// SinceBoot goes on while the machine is suspended, and no one can set it.
func SinceBoot() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &t); err != nil {
		panic(err) // Linux has had it since 2.6.39
	}
	return time.Duration(t.Nano())
}

// Reading is what is known of the time at one moment.
type Reading struct {
	// Now is the latest of all that is known: the component's time, the API server's, and the time
	// since they agreed. By it a window may end early, never late.
	Now time.Time
	// Skew is by how much the component's clock is ahead of the API server's, less than zero where it
	// is behind.
	Skew time.Duration
	// Back is by how much both are behind a time on which they had agreed.
	Back time.Duration
	// Known is false before the first answer of the API server.
	Known bool
}

// Trusted reports whether something may begin by this time.
func (r Reading) Trusted() bool { return r.Err() == nil }

// Err says why the time is not to be trusted; nil where it is.
func (r Reading) Err() error {
	switch {
	case !r.Known:
		return fmt.Errorf("the API server has not answered yet, so its time is not known")
	case r.Skew > MaxSkew:
		return fmt.Errorf("the clock is %v ahead of the API server's: synchronize both by NTP", r.Skew.Round(time.Second))
	case r.Skew < -MaxSkew:
		return fmt.Errorf("the clock is %v behind the API server's: synchronize both by NTP", -r.Skew.Round(time.Second))
	case r.Back > MaxSkew:
		return fmt.Errorf("the clock and the API server's were put back by %v: synchronize both by NTP, then restart this component", r.Back.Round(time.Second))
	}
	return nil
}

// Read reads the clocks.
func (c *Clock) Read() Reading {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Without Round Go would compare readings of its own clock, which no step of the wall clock changes.
	wall, elapsed := c.wall().Round(0), c.elapsed()
	r := Reading{Now: wall, Known: !c.server.at.IsZero()}
	if r.Known {
		server := c.server.now(elapsed)
		r.Skew = wall.Sub(server)
		r.Now = later(wall, server)
	}
	agreed := c.agreed.now(elapsed)
	r.Back = max(agreed.Sub(r.Now), 0)
	if r.Now = later(r.Now, agreed); r.Trusted() {
		c.agreed = mark{r.Now, elapsed}
	}
	return r
}

func later(a, b time.Time) time.Time {
	if b.After(a) {
		return b
	}
	return a
}

// Observe takes in the time that the API server states now, in whole seconds.
func (c *Clock) Observe(date time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	// Up to a second was cut off.
	c.server = mark{date.Add(time.Second), c.elapsed()}
}

// Wrap has the clock observe each answer that comes soon.
func (c *Clock) Wrap(transport http.RoundTripper) http.RoundTripper {
	return &observed{transport, c}
}

type observed struct {
	http.RoundTripper
	clock *Clock
}

func (o *observed) RoundTrip(request *http.Request) (*http.Response, error) {
	began := o.clock.elapsed()
	response, err := o.RoundTripper.RoundTrip(request)
	if err != nil || o.clock.elapsed()-began > maxRoundTrip {
		return response, err
	}
	if date, err := http.ParseTime(response.Header.Get("Date")); err == nil {
		o.clock.Observe(date)
	}
	return response, nil
}

// WrappedRoundTripper is how client-go finds the transport below.
func (o *observed) WrappedRoundTripper() http.RoundTripper { return o.RoundTripper }
