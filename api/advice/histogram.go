// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"math"
	"slices"
	"time"

	api "vernier.dev/vernier/api/v1alpha1"
)

const (
	// halfLife of a weight. Reference times are multiples of it, so moving one scales by a power
	// of two, which is exact.
	halfLife = 24 * time.Hour
	// maxLead is how many half-lives a sample may be after the reference. Weights stay far below
	// a float64's end.
	maxLead = 32
	// MaxMem is the most memory that has a bucket: 4 TiB. More counts as this.
	MaxMem api.MiB = 4 << 20

	coreBuckets = int(api.WholeGPU) + 1
	memFirst    = 64.0
	memRatio    = 1.02
)

// memEnds are the upper ends of the buckets of memory in MiB. The first is 64, each further one 2 %
// more, the last MaxMem.
var memEnds = func() (ends []api.MiB) {
	for end := memFirst; end < float64(MaxMem); end *= memRatio {
		ends = append(ends, api.MiB(math.Ceil(end)))
	}
	return append(ends, MaxMem)
}()

// decaying is weights by bucket. The weight of a sample halves with each halfLife of age. New samples
// grow by 2^(age of the reference) instead, as in the vertical pod autoscaler.
type decaying struct {
	// weights by bucket, as of the reference. The slice ends with the last bucket in use.
	weights []float64
	// reference in half-lives since 1970.
	reference int64
}

func halfLives(t time.Time) float64 { return float64(t.Unix()) / halfLife.Seconds() }

// add counts a weight, in seconds, at a time.
func (d *decaying) add(bucket int, weight float64, at time.Time) {
	age := halfLives(at)
	if len(d.weights) == 0 || age-float64(d.reference) > maxLead {
		d.moveTo(int64(math.Floor(age)))
	}
	if bucket >= len(d.weights) {
		d.weights = append(d.weights, make([]float64, bucket+1-len(d.weights))...)
	}
	d.weights[bucket] += weight * math.Exp2(age-float64(d.reference))
}

// moveTo makes another time the reference.
func (d *decaying) moveTo(reference int64) {
	scale := math.Exp2(float64(d.reference - reference))
	for i := range d.weights {
		d.weights[i] *= scale
	}
	d.reference = reference
}

// merge adds the samples of o, which stays as it is.
func (d *decaying) merge(o *decaying) {
	if len(o.weights) == 0 {
		return
	}
	if len(d.weights) == 0 || o.reference > d.reference {
		d.moveTo(o.reference)
	}
	if more := len(o.weights) - len(d.weights); more > 0 {
		d.weights = append(d.weights, make([]float64, more)...)
	}
	scale := math.Exp2(float64(o.reference - d.reference))
	for i, w := range o.weights {
		d.weights[i] += w * scale
	}
}

func (d *decaying) total() (sum float64) {
	for _, w := range d.weights {
		sum += w
	}
	return sum
}

// quantile is the first bucket up to which at least the part q of the weight lies; -1 without
// samples. q is 0 to 1.
func (d *decaying) quantile(q float64) int {
	last := -1
	// The sum differs from the total by rounding at most.
	for sum, i, least := 0.0, 0, q*d.total()*(1-1e-12); i < len(d.weights); i++ {
		if d.weights[i] == 0 {
			continue
		}
		last = i
		if sum += d.weights[i]; sum >= least {
			break
		}
	}
	return last
}

// CoreHistogram is how long a container used how much compute, in percent of one GPU. Newer time
// counts more, with a half-life of 24 hours. The zero value is empty. Bucket n has the use above
// n-1 and up to n percent.
type CoreHistogram struct{ d decaying }

// Add counts a use in percent of one GPU, 0 to 100, which lasted for so long until a time. Values
// outside count as the nearest, and NaN as 100.
func (h *CoreHistogram) Add(percent float64, lasted time.Duration, at time.Time) {
	bucket := coreBuckets - 1
	if percent < float64(bucket) {
		bucket = int(math.Ceil(max(percent, 0)))
	}
	if lasted > 0 {
		h.d.add(bucket, lasted.Seconds(), at)
	}
}

// Quantile is the use that was not exceeded for the part q of the time, rounded up to a whole
// percent. It is 0 without samples. q is 0 to 1, Quantile(1) the maximum.
func (h *CoreHistogram) Quantile(q float64) api.Percent {
	return api.Percent(max(0, h.d.quantile(q)))
}

// Moments are the mean of the use, in percent, and its variance. A bucket counts with its upper end.
// Both are 0 without samples.
func (h *CoreHistogram) Moments() (mean, variance float64) {
	total := h.d.total()
	if total == 0 {
		return 0, 0
	}
	for percent, w := range h.d.weights {
		mean += float64(percent) * w / total
	}
	for percent, w := range h.d.weights {
		variance += (float64(percent) - mean) * (float64(percent) - mean) * w / total
	}
	return mean, variance
}

// Max is the highest use that still has weight.
func (h *CoreHistogram) Max() api.Percent { return h.Quantile(1) }

// Merge adds all samples of o.
func (h *CoreHistogram) Merge(o *CoreHistogram) { h.d.merge(&o.d) }

// MemHistogram is how long a container had how much memory of one GPU, in MiB, in buckets of 2 % from 64 MiB
// to MaxMem. Newer time counts more, as in CoreHistogram. The zero value is empty.
type MemHistogram struct{ d decaying }

// Add counts an amount that was held for so long until a time. Values outside of 0 to MaxMem
// count as the nearest.
func (h *MemHistogram) Add(m api.MiB, lasted time.Duration, at time.Time) {
	bucket, _ := slices.BinarySearch(memEnds, min(m, MaxMem))
	if lasted > 0 {
		h.d.add(bucket, lasted.Seconds(), at)
	}
}

// Quantile is the amount that was not exceeded for the part q of the time, as the upper end of its
// bucket. That is at most 2 % and 1 MiB more, and 64 MiB at least. It is 0 without samples.
func (h *MemHistogram) Quantile(q float64) api.MiB {
	if i := h.d.quantile(q); i >= 0 {
		return memEnds[i]
	}
	return 0
}

// Merge adds all samples of o.
func (h *MemHistogram) Merge(o *MemHistogram) { h.d.merge(&o.d) }
