// SPDX-License-Identifier: Apache-2.0

// Package sim owns a simulated fleet of GPUs: which pods are where, whose memory is promised to whom, and
// which part of a device's time each has. It reads no clock and no files, and the same seed gives the same
// figures.
package sim

import "math"

// Limiter is what sharing a device costs beyond the work, as measured on the real limiter.
type Limiter struct {
	// Slack is the part of the device, from 0 to 1, that nobody has beyond quotas while two or more work.
	Slack float64
	// Least is the part of the device, from 0 to 1, that the idle slice has while guaranteed work wants all, and half
	// of it where quotas leave nothing.
	Least float64
	// LateStart is how long a piece of guaranteed work waits, in seconds, that begins while the idle slice works.
	LateStart float64
	// TurnLoss is how long the device rests, in seconds, before the idle slice has it again.
	TurnLoss float64
}

// Piece is work that comes at a moment, and takes so long on a whole device. Both are seconds.
type Piece struct{ At, Work float64 }

// Response is how long one piece took from its moment on, in seconds. Earlier pieces of the same pod are
// before it.
type Response struct {
	// Took is what it took. Whole is what it takes on a GPU of its own, Slice in a slice of which the quota
	// is all that it has.
	Took, Whole, Slice float64
	// Of is the slice's place on the device.
	Of int
}

// Load is a guaranteed slice on a device.
type Load struct {
	// Quota is a part of the device, from 0 to 1.
	Quota  float64
	Bursts bool
	// Held is until when the pod waits for memory.
	Held float64

	queue            []Piece
	left             float64 // of the first piece
	begins           float64 // when that may begin; NaN: not decided
	wholeEnd, endsBy float64 // of the piece before: on a GPU of its own, in the slice alone
}

// NewLoad is a slice without work.
func NewLoad(quota float64, bursts bool) *Load {
	return &Load{Quota: quota, Bursts: bursts, begins: math.NaN()}
}

// Add has the slice do pieces after those that it has, in the order of their moments.
func (l *Load) Add(pieces ...Piece) {
	if len(l.queue) == 0 && len(pieces) > 0 {
		l.left = pieces[0].Work
	}
	l.queue = append(l.queue, pieces...)
}

// Device is one GPU. Pieces of guaranteed work want all of it. A quota is what each has while others want it too;
// the rest goes to slices that burst, by their quotas. An idle slice has what these leave.
type Device struct {
	Limiter
	Loads []*Load
	// idleFrom is when the idle slice has the device, unless guaranteed work comes.
	idleFrom float64
	least    float64 // just now
}

// Done is what a device did in some time.
type Done struct {
	// Loads are seconds of a whole device, in the order of the slices, and Idle those of the idle slice.
	Loads []float64
	Idle  float64
	// Responses are of the pieces that ended.
	Responses []Response
}

// Run moves the device on. Idle is the part of a device, from 0 to 1, that the idle slice takes when it has the
// device to itself: it rests after each BatchStep.
func (d *Device) Run(from, to, idle float64) Done {
	done := Done{Loads: make([]float64, len(d.Loads))}
	rates := make([]float64, len(d.Loads))
	batch := newLoop(idle)
	at := batch.presence(d.Least)
	for t := from; t < to; {
		next := d.begin(t, to, idle > 0)
		d.share(t, rates, at)
		working := false
		for i, rate := range rates {
			if rate > 0 {
				working = true
				next = min(next, t+d.Loads[i].left/rate)
			}
		}
		switch {
		case idle <= 0:
		case t < d.idleFrom && !working:
			next = min(next, d.idleFrom)
		default:
			done.Idle += batch.run(next-t, d.rest(rates))
		}
		ended := false
		for i, rate := range rates {
			l := d.Loads[i]
			if rate == 0 {
				continue
			}
			done.Loads[i] += rate * (next - t)
			if l.left -= rate * (next - t); l.left <= 1e-9 {
				r := l.end(next)
				r.Of = i
				done.Responses = append(done.Responses, r)
				ended = true
			}
		}
		if ended {
			d.idleFrom = next + d.TurnLoss
		}
		t = next
	}
	return done
}

// begin decides when the first piece of each slice begins, and returns when the next one does, at most `to`.
func (d *Device) begin(t, to float64, idle bool) float64 {
	next, quiet := to, true
	for _, l := range d.Loads {
		quiet = quiet && !l.working(t)
	}
	for _, l := range d.Loads {
		if len(l.queue) == 0 {
			continue
		}
		if at := max(l.queue[0].At, l.Held); at > t {
			next = min(next, at)
			continue
		}
		if math.IsNaN(l.begins) {
			l.begins = t
			if idle && quiet && t >= d.idleFrom {
				l.begins += d.LateStart
			}
		}
		if l.begins > t {
			next = min(next, l.begins)
		}
	}
	return next
}

func (l *Load) working(t float64) bool { return len(l.queue) > 0 && l.begins <= t }

// share sets what part of the device each slice has, beside an idle slice that is at work for a part of the time.
func (d *Device) share(t float64, rates []float64, idle float64) {
	quotas, bursts, working := 0.0, 0.0, 0
	for i, l := range d.Loads {
		rates[i] = 0
		if l.working(t) {
			rates[i] = l.Quota
			quotas, working = quotas+l.Quota, working+1
			if l.Bursts {
				bursts += l.Quota
			}
		}
	}
	// Bursts take what quotas leave, but the slack. Quotas give way to nothing but the idle slice's least.
	d.least = min(d.Least, max(d.Least/2, 1-quotas))
	most, burst := 1-idle*d.least, 1-quotas-idle*d.Slack
	if working > 1 {
		burst = 1 - quotas - d.Slack
	}
	sum := 0.0
	for i, l := range d.Loads {
		if rates[i] > 0 && l.Bursts {
			rates[i] += max(0, burst) * l.Quota / bursts
		}
		sum += rates[i]
	}
	for i := range rates {
		rates[i] *= most / max(sum, most)
	}
}

// rest is what guaranteed work leaves to the idle slice.
func (d *Device) rest(rates []float64) float64 {
	sum := 0.0
	for _, rate := range rates {
		sum += rate
	}
	if sum == 0 {
		return 1
	}
	return max(d.least, 1-d.Slack-sum)
}

// end takes the first piece off the queue.
func (l *Load) end(t float64) Response {
	p := l.queue[0]
	l.wholeEnd = max(p.At, l.wholeEnd) + p.Work
	l.endsBy = max(p.At, l.endsBy) + p.Work/l.Quota
	l.queue, l.begins = l.queue[1:], math.NaN()
	if len(l.queue) > 0 {
		l.left = l.queue[0].Work
	}
	return Response{Took: t - p.At, Whole: l.wholeEnd - p.At, Slice: l.endsBy - p.At}
}
