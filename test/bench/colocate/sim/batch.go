// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"math/rand/v2"

	api "vernier.dev/vernier/api/v1alpha1"
)

// What batch work is like, beside its published figures.
const (
	// medianLength and lengthSpread are of the lognormal length of a job with a GPU of its own, in seconds.
	medianLength = 1800.0
	lengthSpread = 1.5
	// checkpoint is how often a job saves its work, in seconds.
	checkpoint = 600.0
	// starvesAfter is for how long a job may have less than 1 %, in seconds. Then it leaves.
	starvesAfter = 600.0
)

// Quantile is points of a cumulative distribution: the part of all, from 0 to 1, and the value with that part at
// or below it. Between two points it is a line.
type Quantile [][2]float64

// At is the value at q, from 0 to 1.
func (d Quantile) At(q float64) float64 {
	for i := 1; i < len(d); i++ {
		if a, b := d[i-1], d[i]; q <= b[0] {
			return a[1] + (b[1]-a[1])*(q-a[0])/(b[0]-a[0])
		}
	}
	return d[len(d)-1][1]
}

var (
	// Philly is the duty in percent of Microsoft's training jobs, by minute.
	Philly = Quantile{{0, 0}, {0.25, 0}, {0.5, 49}, {0.75, 92}, {0.9, 99}, {1, 100}}
	// JobMem is the memory of jobs in MiB. Half of the jobs on Perlmutter use at most a quarter of 40 GB. The
	// ends, 1 and 40 GiB, are assumed.
	JobMem = Quantile{{0, 1 << 10}, {0.5, 10 << 10}, {1, 40 << 10}}
)

// job is one piece of batch work. It asks for an idle.core of 100, so a device has one at most.
type job struct {
	mem api.MiB
	// length and progress are seconds with a GPU of its own.
	length, progress float64
	// ran is how long it runs since it was placed last. unsaved is what it had of a device since its last checkpoint,
	// saved its progress then.
	ran, unsaved, saved float64
	starved             float64 // for how long it has had less than 1 %
}

func newJob(random *rand.Rand, memFactor float64) *job {
	return &job{mem: api.MiB(memFactor * JobMem.At(random.Float64())), length: medianLength * math.Exp(lengthSpread*random.NormFloat64())}
}

// advance is a step of so many seconds in which the job had `got` seconds of a device, wanting a part of it.
func (j *job) advance(step, want, got float64) {
	if want > 0 {
		j.progress += min(step, got/want)
	} else {
		j.progress += step
	}
	j.unsaved += got
	if before := j.ran; math.Floor((before+step)/checkpoint) > math.Floor(before/checkpoint) {
		j.saved, j.unsaved = j.progress, 0
	}
	j.ran += step
	if want > 0 && got < step/100 {
		j.starved += step
	} else if want > 0 {
		j.starved = 0
	}
}

// evict puts the job back to its last checkpoint, and returns the seconds of a device that are lost.
func (j *job) evict() (lost float64) {
	lost = j.unsaved
	j.progress, j.ran, j.unsaved, j.starved = j.saved, 0, 0, 0
	return lost
}

// BatchStep is the device time of one step of a batch job, in seconds. A job that wants less than a whole device
// rests after each.
const BatchStep = 0.1

// loop is a job that takes turns between a rest and a step. One without steps has a rest below 0.
type loop struct{ rest, restLeft, stepLeft float64 }

func newLoop(want float64) loop {
	if want <= 0 {
		return loop{rest: -1}
	}
	rest := BatchStep/want - BatchStep
	return loop{rest: rest, restLeft: rest, stepLeft: BatchStep}
}

// presence is the part of the time, from 0 to 1, in which the job does not rest while it has so little of the
// device.
func (l *loop) presence(part float64) float64 {
	switch {
	case l.rest < 0:
		return 0
	case part <= 0:
		return 1
	}
	return BatchStep / part / (BatchStep/part + l.rest)
}

// run has the job go on for so many seconds, with a part of the device for its steps. It returns the device time
// that it had.
func (l *loop) run(seconds, part float64) (had float64) {
	if part <= 0 {
		l.restLeft = max(0, l.restLeft-seconds)
		return 0
	}
	// Whole turns leave it as it is.
	turns := math.Floor(seconds / (l.rest + BatchStep/part))
	had, seconds = turns*BatchStep, seconds-turns*(l.rest+BatchStep/part)
	for seconds > 1e-12 {
		rest := min(l.restLeft, seconds)
		seconds, l.restLeft = seconds-rest, l.restLeft-rest
		step := min(l.stepLeft, seconds*part)
		had, seconds, l.stepLeft = had+step, seconds-step/part, l.stepLeft-step
		if l.stepLeft <= 1e-12 {
			l.restLeft, l.stepLeft = l.rest, BatchStep
		}
	}
	return had
}
