// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package start

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

// quantile by the nearest rank, in milliseconds.
func quantile(of float64, times []time.Duration) float64 {
	sorted := slices.Sorted(slices.Values(times))
	rank := int(math.Ceil(of*float64(len(sorted)))) - 1
	return float64(sorted[max(rank, 0)]) / float64(time.Millisecond)
}

// added is by how much a quantile of one series lies over that of another, in
// milliseconds, with the bounds between which 95 of 100 such runs would find it.
type added struct{ ms, low, high float64 }

func (a added) String() string { return fmt.Sprintf("%.2f ms (%.2f to %.2f)", a.ms, a.low, a.high) }

// resamples of the bootstrap.
const resamples = 1000

// compare draws whole rounds, because what the machine did in one met both.
func compare(of float64, with, without []time.Duration) added {
	random := rand.New(rand.NewPCG(3, 4))
	drawnWith, drawnWithout := make([]time.Duration, len(with)), make([]time.Duration, len(with))
	var found []float64
	for range resamples {
		for i := range with {
			round := random.IntN(len(with))
			drawnWith[i], drawnWithout[i] = with[round], without[round]
		}
		found = append(found, quantile(of, drawnWith)-quantile(of, drawnWithout))
	}
	slices.Sort(found)
	return added{
		ms:  quantile(of, with) - quantile(of, without),
		low: found[resamples*25/1000], high: found[resamples*975/1000],
	}
}
