// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// What work is in each mode. What is not known is never idle.
func TestIdle_ByMode(t *testing.T) {
	errUnread := errors.New("unread")
	used := []layout.ProcessUsage{{PID: 1}}
	for name, tt := range map[string]struct {
		mode v1alpha1.Mode
		core v1alpha1.Percent
		at   func(w *world) // before each look
		want bool
	}{
		"with a quota":                           {v1alpha1.ModeLimiter, 50, func(*world) {}, true},
		"with a quota, busy":                     {v1alpha1.ModeLimiter, 50, func(w *world) { w.busy += time.Millisecond }, false},
		"with a quota, time given back":          {v1alpha1.ModeLimiter, 50, func(w *world) { w.busy -= time.Millisecond }, false},
		"with a quota, a launch of no time":      {v1alpha1.ModeLimiter, 50, func(w *world) { w.launches++ }, false},
		"with a quota, driver unread":            {v1alpha1.ModeLimiter, 50, func(w *world) { w.driverErr = errUnread }, true},
		"with a quota, past the limiter":         {v1alpha1.ModeLimiter, 50, func(w *world) { w.working = map[string]bool{"1": true} }, false},
		"with a quota, counters damaged":         {v1alpha1.ModeLimiter, 50, func(w *world) { w.countersErr = errUnread }, false},
		"without a quota, no process":            {v1alpha1.ModeLimiter, 0, func(w *world) { w.driverErr = errUnread }, true},
		"without a quota, a process":             {v1alpha1.ModeLimiter, 0, func(w *world) { w.users, w.working = used, map[string]bool{"2": true} }, true},
		"without a quota, a process that works":  {v1alpha1.ModeLimiter, 0, func(w *world) { w.users, w.working = used, map[string]bool{"1": true} }, false},
		"without a quota, a launch that counts":  {v1alpha1.ModeLimiter, 0, func(w *world) { w.launches++ }, false},
		"without a quota, driver unread":         {v1alpha1.ModeLimiter, 0, func(w *world) { w.users, w.driverErr = used, errUnread }, false},
		"without a quota, counters damaged":      {v1alpha1.ModeLimiter, 0, func(w *world) { w.countersErr = errUnread }, false},
		"whole device":                           {v1alpha1.ModeExclusive, 100, func(w *world) { w.driver.Busy = 0 }, true},
		"whole device, busy":                     {v1alpha1.ModeExclusive, 100, func(w *world) { w.driver.Busy = 1 }, false},
		"whole device, driver unread":            {v1alpha1.ModeExclusive, 100, func(w *world) { w.driver.Busy, w.driverErr = 0, errUnread }, false},
		"MPS on a device that nobody uses":       {v1alpha1.ModeMPS, 50, func(w *world) { w.driver.Busy = 0 }, true},
		"MPS on a device that anybody uses":      {v1alpha1.ModeMPS, 50, func(w *world) { w.driver.Busy = 1 }, false},
		"an instance of MIG":                     {v1alpha1.ModeMIG, 14, func(w *world) { w.driver.Busy = 0 }, false},
		"with a quota, idle.after is 0":          {v1alpha1.ModeLimiter, 50, func(w *world) { w.account.from.IdleAfter = 0 }, false},
		"with a quota, and a part of a launch":   {v1alpha1.ModeLimiter, 50, func(w *world) { w.busy += time.Millisecond / 100 }, true},
		"with a quota, and many parts of launch": {v1alpha1.ModeLimiter, 50, func(w *world) { w.busy += time.Millisecond / 10 }, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.idleAfter = 30 * time.Minute
			w.start()
			w.container("1", "team", tt.mode, tt.core)
			for range int(IdleGrain/period) + 1 {
				tt.at(w)
				w.look()
				w.now = w.now.Add(period)
			}
			if got := w.account.IdleSince("1", "GPU-0"); (got != nil) != tt.want {
				t.Errorf("idle since %v, want idle %v", got, tt.want)
			} else if got != nil && !got.Equal(&metav1.Time{Time: begin.Truncate(time.Second)}) {
				t.Errorf("idle since %v, want %v", got, begin)
			}
		})
	}
}

// Ledgers are written when a slice gets idle and when it works again, and not in between.
func TestIdle_ChangesAreFew(t *testing.T) {
	w := newWorld(t, 1)
	w.idleAfter = 30 * time.Minute
	w.start()
	w.container("1", "team", v1alpha1.ModeLimiter, 50)
	for _, step := range []struct {
		busy time.Duration
		pass time.Duration
		want int
	}{{0, IdleGrain, 0}, {0, 3 * period, 1}, {0, time.Hour, 1}, {time.Second, period, 2}, {0, IdleGrain - 2*period, 2}, {0, 4 * period, 3}} {
		w.busy += step.busy
		w.pass(step.pass)
		if w.idleChanges != step.want {
			t.Errorf("%d changes after %+v", w.idleChanges, step)
		}
	}
	w.table.Detach("1")
	w.pass(period)
	if w.idleChanges != 4 || len(w.account.rests) != 0 {
		t.Errorf("%d changes, rests of a container that has ended: %v", w.idleChanges, w.account.rests)
	}
}

// A shorter idle.after is said as soon as it is over.
func TestIdle_ShorterThanTheGrain(t *testing.T) {
	w := newWorld(t, 1)
	w.idleAfter = period
	w.start()
	w.container("1", "team", v1alpha1.ModeLimiter, 50)
	w.look()
	w.pass(2 * period)
	if w.account.IdleSince("1", "GPU-0") == nil {
		t.Error("not idle")
	}
}

// An agent that is started again goes on from the ledger, unless the slice has worked since, or
// the agent was away for long.
func TestIdle_OverRestarts(t *testing.T) {
	for name, tt := range map[string]struct {
		mode v1alpha1.Mode
		away time.Duration
		gap  func(w *world)
		// restored is what is said at once, looked what after the first look.
		restored, looked bool
	}{
		"counters, no work":          {v1alpha1.ModeLimiter, time.Minute, func(*world) {}, true, true},
		"counters, work":             {v1alpha1.ModeLimiter, time.Minute, func(w *world) { w.busy += time.Second }, true, false},
		"counters, a launch":         {v1alpha1.ModeLimiter, time.Minute, func(w *world) { w.launches++ }, true, false},
		"counters, away for long":    {v1alpha1.ModeLimiter, 2 * IdleGrain, func(*world) {}, false, false},
		"driver, no work seen":       {v1alpha1.ModeExclusive, time.Minute, func(*world) {}, true, true},
		"driver, away for long":      {v1alpha1.ModeExclusive, 2 * IdleGrain, func(*world) {}, false, false},
		"driver, works":              {v1alpha1.ModeExclusive, time.Minute, func(w *world) { w.driver.Busy = 1 }, true, false},
		"the account's file is gone": {v1alpha1.ModeLimiter, time.Minute, func(w *world) { w.path += ".gone" }, false, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, 1)
			w.idleAfter, w.driver.Busy = 30*time.Minute, 0
			w.busy, w.launches = time.Hour+time.Nanosecond, 7
			w.start()
			w.container("1", "team", tt.mode, 50)
			w.pass(IdleGrain + 2*period)
			published := v1alpha1.SliceStatus{Container: "1", UUID: "GPU-0", Mode: tt.mode, IdleSince: w.account.IdleSince("1", "GPU-0")}
			if published.IdleSince == nil {
				t.Fatal("not idle")
			}
			w.now = w.now.Add(tt.away)
			tt.gap(w)
			w.start()
			w.account.Restore([]v1alpha1.SliceStatus{published, {Container: "2", UUID: "GPU-0"}})
			if got := w.account.IdleSince("1", "GPU-0"); (got != nil) != tt.restored {
				t.Errorf("restored %v", got)
			}
			w.look()
			if got := w.account.IdleSince("1", "GPU-0"); (got != nil) != tt.looked || got != nil && !got.Equal(published.IdleSince) {
				t.Errorf("after a look %v, before %v", got, published.IdleSince)
			}
		})
	}
}
