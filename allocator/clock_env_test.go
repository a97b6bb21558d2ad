// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"time"

	"k8s.io/utils/clock"
)

// hurry is how many times faster the replicas' clock runs than the world's: what they
// wait for on purpose, for a gang to become whole or a hold to end, is not what takes
// long in a test.
const hurry = 10

// hurried is a clock that was right at start.
type hurried struct{ start time.Time }

var _ clock.WithTicker = hurried{}

func (h hurried) Now() time.Time { return h.start.Add(hurry * time.Since(h.start)) }

func (h hurried) Since(t time.Time) time.Duration { return h.Now().Sub(t) }

func (hurried) After(d time.Duration) <-chan time.Time { return time.After(d / hurry) }

func (hurried) Tick(d time.Duration) <-chan time.Time { return time.Tick(d / hurry) }

func (h hurried) Sleep(d time.Duration) { <-h.After(d) }

func (hurried) NewTimer(d time.Duration) clock.Timer {
	return timer{clock.RealClock{}.NewTimer(d / hurry)}
}

func (hurried) NewTicker(d time.Duration) clock.Ticker { return clock.RealClock{}.NewTicker(d / hurry) }

type timer struct{ clock.Timer }

func (t timer) Reset(d time.Duration) bool { return t.Timer.Reset(d / hurry) }
