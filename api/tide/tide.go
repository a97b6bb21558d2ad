// SPDX-License-Identifier: Apache-2.0

// Package tide owns the reading of Tides: when one is open, and what those of a node make together.
// All of it follows from their specs and the time.
//
// It keeps nothing, and never reads a clock.
package tide

import (
	"errors"
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // images have no time zones

	"github.com/robfig/cron/v3"

	"vernier.dev/vernier/api/v1alpha1"
)

const (
	// horizon is how far the end of windows that follow each other is looked for.
	horizon = 24 * time.Hour
	// maxChain bounds how many of them are looked at.
	maxChain = 128
)

// Tide is a Tide as it was read.
type Tide struct {
	Name     string
	selector map[string]string
	windows  []window
	// lend is in force while the tide is open, outside while it is shut.
	lend, outside v1alpha1.TideAmounts
	before, grace time.Duration
}

// window is open for a duration from each time of a schedule on.
type window struct {
	schedule schedule
	duration time.Duration
}

// Read reads a Tide. One that cannot be read is never open and lends nothing, and the error names the
// field.
func Read(t *v1alpha1.Tide) (*Tide, error) {
	spec := &t.Spec
	read := &Tide{
		Name: t.Name, selector: spec.NodeSelector, lend: spec.Lend, outside: spec.Outside,
		before: spec.Reclaim.Before.Duration, grace: spec.Reclaim.Grace.Duration,
	}
	var failed []error
	for i := range spec.Windows {
		w, err := readWindow(&spec.Windows[i])
		if err != nil {
			failed = append(failed, fmt.Errorf("spec.windows[%d].%w", i, err))
		}
		read.windows = append(read.windows, w)
	}
	if len(failed) > 0 {
		read.windows, read.lend, read.outside = nil, v1alpha1.TideAmounts{}, v1alpha1.TideAmounts{}
	}
	return read, errors.Join(failed...)
}

func readWindow(w *v1alpha1.TideWindow) (window, error) {
	// The API server refuses these too: @every counts from when it is read, and the parser panics at
	// some zones in a schedule.
	if strings.Contains(w.Schedule, "TZ") || strings.HasPrefix(strings.TrimSpace(w.Schedule), "@every") {
		return window{}, fmt.Errorf("schedule: %q must be five fields or @daily and the like, without TZ and @every: set timeZone instead", w.Schedule)
	}
	parsed, err := cron.ParseStandard(w.Schedule)
	spec, is := parsed.(*cron.SpecSchedule)
	if err != nil || !is {
		return window{}, fmt.Errorf("schedule: %q: %w; write minute, hour, day, month and weekday, as in a CronJob", w.Schedule, err)
	}
	// Local is of the machine that reads it.
	spec.Location, err = time.LoadLocation(w.TimeZone)
	if err == nil && strings.EqualFold(w.TimeZone, "Local") {
		err = errors.New("it differs between machines")
	}
	if err != nil {
		return window{}, fmt.Errorf("timeZone: %q: %w; write a name of the IANA database, such as Asia/Shanghai", w.TimeZone, err)
	}
	if w.Duration.Duration <= 0 {
		return window{}, fmt.Errorf("duration: %v must be from 1m to 168h", w.Duration.Duration)
	}
	return window{schedule: schedule{spec}, duration: w.Duration.Duration}, nil
}

// end returns the last end of what was opened by a time and is open then; false where nothing is.
func (w *window) end(at time.Time) (time.Time, bool) {
	last := w.schedule.next(at.Add(-w.duration))
	if last.IsZero() || last.After(at) {
		return time.Time{}, false
	}
	// A schedule has only the next time, and a long window may have been opened thousands of times.
	for without := at; without.Sub(last) > time.Second; {
		middle := last.Add(without.Sub(last) / 2)
		if next := w.schedule.next(middle); next.IsZero() || next.After(at) {
			without = middle
		} else {
			last = next
		}
	}
	return last.Add(w.duration), true
}

// Open reports whether the tide is open, and until when. Windows that overlap or follow each other
// count as one, to a day ahead.
func (t *Tide) Open(now time.Time) (open bool, until time.Time) {
	until = now
	for range maxChain {
		end := until
		for i := range t.windows {
			if e, is := t.windows[i].end(until); is && e.After(end) {
				end = e
			}
		}
		if !end.After(until) {
			return until.After(now), until
		}
		if until = end; until.Sub(now) >= horizon {
			return true, until
		}
	}
	// Many short windows: some time in them, which stays the same for an hour.
	return true, until.Truncate(time.Hour)
}

// Next is when the tide opens after a time, zero for never.
func (t *Tide) Next(after time.Time) (next time.Time) {
	for i := range t.windows {
		if n := t.windows[i].schedule.next(after); !n.IsZero() && (next.IsZero() || n.Before(next)) {
			next = n
		}
	}
	return next
}

// Selects reports whether a node has the labels.
func (t *Tide) Selects(labels map[string]string) bool {
	for key, value := range t.selector {
		if is, has := labels[key]; !has || is != value {
			return false
		}
	}
	return true
}
