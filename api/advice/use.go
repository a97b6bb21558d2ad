// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"cmp"
	"math"
	"slices"
	"time"

	api "vernier.dev/vernier/api/v1alpha1"
)

const (
	// MaxDays bounds the days that a Use keeps: the last eight on which there were samples, so a
	// weekly load is among them.
	MaxDays = 8
	// limitedFrom is the part of a sample's time from which throttling counts as limiting it.
	limitedFrom = 0.05

	day = 24 * time.Hour
	// maxCount bounds counts and seconds, and keeps them exact as JSON numbers.
	maxCount = 1 << 50
)

// Amount is a share of one GPU.
type Amount struct {
	// Core is percent of one GPU; 0 is no quota of compute.
	Core api.Percent `json:"core"`
	// Mem is memory in MiB.
	Mem api.MiB `json:"memMiB"`
}

// Day is what is kept exactly of one day of UTC.
type Day struct {
	// Number of the day since 1970.
	Number int64
	// Peak is the most memory that one container had on one GPU.
	Peak api.MiB
	// Need is the largest sum of what a container had and what it was refused. It is 0 where nothing
	// was refused.
	Need api.MiB
	// Refusals is how often memory was refused.
	Refusals int64
	// Observed is the time of all samples, in seconds. Limited is that of samples with throttling for 5 %
	// of their time or more. Throttled is the throttled time in these.
	Observed, Limited, Throttled float64
}

// Use is what is known of one container of a workload, of one pod or of many. The zero value
// knows nothing. It is not safe for use by several goroutines.
type Use struct {
	// Core and Mem are by time.
	Core CoreHistogram
	Mem  MemHistogram
	// Days are the last MaxDays with samples, the oldest first.
	Days []Day
	// Since and Last are the times of the first sample and of the last, in whole seconds.
	Since, Last time.Time
	// Samples is how many there were.
	Samples int64
	// Pods is how many there were. A Use of one container has 1. Merge adds, so a pod belongs into one
	// of the merged.
	Pods int64
	// Request is what the newest of the containers asked for.
	Request Amount
}

// Sample is what was seen of a container since the sample before.
type Sample struct {
	// At is when it ends, Lasted how long it took. One of more than a day counts as a day.
	At     time.Time
	Lasted time.Duration
	// Core is the mean use in percent of one GPU. Of several GPUs it is the busiest one's.
	Core float64
	// Throttled is the time in which the compute quota held the container back.
	Throttled time.Duration
	// Mem is the memory at the end, and Peak the most in between, of one GPU.
	Mem, Peak api.MiB
	// Need is the largest sum of charged and refused memory in between, or 0.
	Need api.MiB
	// Refusals is how often memory was refused in between.
	Refusals int64
}

// Observe counts a sample. A container writes its own counters, so each value is brought within its
// bounds. A sample that took no time, or ends before 1970, is ignored.
func (u *Use) Observe(s Sample) {
	if s.Lasted <= 0 || s.At.Unix() < 0 || s.At.Unix() > maxReference*int64(halfLife/time.Second) {
		return
	}
	s.Lasted = min(s.Lasted, day)
	at := time.Unix(s.At.Unix(), 0).UTC()
	mem := bounded(s.Mem, MaxMem)
	u.Core.Add(s.Core, s.Lasted, at)
	u.Mem.Add(mem, s.Lasted, at)

	d := Day{
		Number:   at.Unix() / int64(day/time.Second),
		Peak:     max(mem, bounded(s.Peak, MaxMem)),
		Refusals: bounded(s.Refusals, maxCount),
		Observed: s.Lasted.Seconds(),
	}
	if d.Refusals > 0 {
		d.Need = max(d.Peak, bounded(s.Need, MaxMem))
	}
	if throttled := min(s.Throttled, s.Lasted).Seconds(); throttled >= limitedFrom*d.Observed {
		d.Limited, d.Throttled = d.Observed, throttled
	}
	u.addDay(d)
	u.addTime(at, at)
	u.Samples = min(u.Samples+1, maxCount)
}

func bounded[T ~int64](v, most T) T { return min(max(v, 0), most) }

// Merge adds what o knows, as if u had seen its samples too. o stays as it is.
func (u *Use) Merge(o *Use) {
	// Where two are equally new, the larger request counts.
	switch newer := o.Last.Compare(u.Last); {
	case newer > 0:
		u.Request = o.Request
	case newer == 0:
		u.Request = Amount{max(u.Request.Core, o.Request.Core), max(u.Request.Mem, o.Request.Mem)}
	}
	u.Core.Merge(&o.Core)
	u.Mem.Merge(&o.Mem)
	for _, d := range o.Days {
		u.addDay(d)
	}
	if o.Samples > 0 {
		u.addTime(o.Since, o.Last)
	}
	u.Samples = min(u.Samples+o.Samples, maxCount)
	u.Pods = min(u.Pods+o.Pods, maxCount)
}

func (u *Use) addTime(since, last time.Time) {
	if u.Since.IsZero() || since.Before(u.Since) {
		u.Since = since
	}
	if last.After(u.Last) {
		u.Last = last
	}
}

// addDay adds to the day of that number, and drops the oldest of more than MaxDays.
func (u *Use) addDay(d Day) {
	i, found := slices.BinarySearchFunc(u.Days, d, func(a, b Day) int { return cmp.Compare(a.Number, b.Number) })
	if !found {
		u.Days = slices.Insert(u.Days, i, d)
		if more := len(u.Days) - MaxDays; more > 0 {
			u.Days = slices.Delete(u.Days, 0, more)
		}
		return
	}
	u.Days[i].add(d)
}

func (d *Day) add(o Day) {
	d.Peak, d.Need = max(d.Peak, o.Peak), max(d.Need, o.Need)
	d.Refusals = min(d.Refusals+o.Refusals, maxCount)
	d.Observed = math.Min(d.Observed+o.Observed, maxCount)
	d.Limited = math.Min(d.Limited+o.Limited, maxCount)
	d.Throttled = math.Min(d.Throttled+o.Throttled, maxCount)
}

// Total is the sum of the days, with their highest peak and need.
func (u *Use) Total() (total Day) {
	for _, d := range u.Days {
		total.add(d)
	}
	return total
}

// ThrottledRatio is the part of the observed time in which the compute quota held the container
// back, 0 to 1.
func (d Day) ThrottledRatio() float64 {
	if d.Observed == 0 {
		return 0
	}
	return d.Throttled / d.Observed
}
