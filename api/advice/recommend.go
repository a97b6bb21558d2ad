// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"fmt"
	"math"
	"time"

	api "vernier.dev/vernier/api/v1alpha1"
)

// Confidence is how much an advice rests on.
type Confidence string

const (
	// Low is less than 24 hours of use, summed over pods.
	Low Confidence = "low"
	// Medium is 24 hours or more. It is also the most where the quota cut use off: the true need was
	// not seen then.
	Medium Confidence = "medium"
	// High is 24 hours or more, on 3 days and in 3 pods at least.
	High Confidence = "high"
)

const (
	// HighDays and HighPods are what High needs at least.
	HighDays = 3
	HighPods = 3

	// ThrottledLimit is the part of the time from which throttling means that use was cut off.
	ThrottledLimit = 0.05
	// coreQuantile leaves 2 % of the time above it, coreHeadroom is for growth.
	coreQuantile = 0.98
	coreHeadroom = 1.15
	// MemHeadroom is the least factor between the peak and the advised memory.
	MemHeadroom = 1.1
	// memRisk is the part of pods, each of one day, that may need more than the advised memory.
	memRisk = 0.001
)

// Options are what a recommendation knows besides the use.
type Options struct {
	// DeviceMem is the memory of a GPU in MiB, and bounds the advice. 0 is not known.
	DeviceMem api.MiB
}

// Recommendation is an advice.
type Recommendation struct {
	Amount
	Confidence Confidence
	// Reasons are sentences for people, at least one.
	Reasons []string
}

// Recommend advises how much a container of the workload should request of one GPU.
//
// Compute. Too little costs time and no failure. The advice is the use that was not exceeded for 98 %
// of the time, plus 15 %. Use counts as cut off from 5 % of throttled time on. A quantile of 95 %
// would leave half of all workloads at that limit, and 98 % keeps its distance. The 15 % are for growth, as
// in the vertical pod autoscaler.
//
// Memory. Too little is a failed allocation. The advice is the peak of the last MaxDays plus a margin, 10 % of
// the peak or more. It depends on how far use varies, and for how long it was seen.
// For n days of pods the peak is a record of n. The next day of a pod exceeds it with a probability of
// about 1/n, which is to be 1/1000. With an exponential tail of scale s, a margin of s × ln(1000/n)
// brings it there. The peak of k independent values lies about s × ln k above the median, which gives s. One
// value an hour counts as independent. Memory that a framework takes once and keeps has no
// spread, and 10 % do. A pod seen for a day gets a margin of 2.2 times the spread, a hundred pods
// 0.3 times.
//
// Without throttling or refusals the request was enough, and the advice is at most that.
//
// Use that the quota cut off says nothing about less. With throttling for 5 % of the time, compute is
// the request at least. In the limited samples a part r of the time was waiting. The same work without
// waiting takes 1-r of the time, so it uses 1/(1-r) of what was seen. That is exact for a load that
// always has work, and an estimate for one that varies. With refusals, memory is the request at least, and
// 1.1 × the largest sum of held and refused memory.
//
// A request of 0 compute is no quota, and stays.
func Recommend(u *Use, o Options) Recommendation {
	if u.Samples == 0 {
		return Recommendation{Amount: u.Request, Confidence: Low, Reasons: []string{"No use was seen yet."}}
	}
	total := u.Total()
	r := Recommendation{Confidence: confidence(u, total)}
	r.core(u, total)
	r.mem(u, total)
	if o.DeviceMem > 0 && r.Mem > o.DeviceMem {
		r.Mem = o.DeviceMem
		r.because("Memory is all that a GPU has.")
	}
	return r
}

func (r *Recommendation) because(format string, args ...any) {
	r.Reasons = append(r.Reasons, fmt.Sprintf(format, args...))
}

func confidence(u *Use, total Day) Confidence {
	switch {
	case total.Observed < day.Seconds():
		return Low
	case len(u.Days) < HighDays || u.Pods < HighPods || total.Refusals > 0 || total.ThrottledRatio() > ThrottledLimit:
		return Medium
	}
	return High
}

func (r *Recommendation) core(u *Use, total Day) {
	used := u.Core.Quantile(coreQuantile)
	switch request, ratio := u.Request.Core, total.ThrottledRatio(); {
	case request == 0:
		r.because("There is no quota of compute; 98 %% of the time used %d %% or less.", used)
	case ratio > ThrottledLimit:
		waited := min(1, total.Throttled/total.Limited)
		r.Core = max(request, scaled(used, 1/(1-waited)))
		r.because("The compute quota cut use off for %.0f %% of the time: %d %% is the least that can be justified.", 100*ratio, r.Core)
	default:
		r.Core = min(request, max(1, scaled(used, coreHeadroom)))
		r.because("Compute: 98 %% of the time used %d %% or less, plus 15 %%, at most the request.", used)
	}
}

// scaled is p times a factor, rounded up, at most a whole GPU.
func scaled(p api.Percent, factor float64) api.Percent {
	return api.Percent(math.Ceil(min(float64(p)*factor-1e-9, float64(api.WholeGPU))))
}

func (r *Recommendation) mem(u *Use, total Day) {
	if total.Refusals > 0 {
		r.Mem = max(u.Request.Mem, withHeadroom(max(total.Peak, total.Need)))
		if total.Need > total.Peak {
			r.because("Memory was refused %d times: %s were needed, plus 10 %%.", total.Refusals, total.Need.Text())
		} else {
			r.because("Memory was refused %d times: the request at least, the need is not known.", total.Refusals)
		}
		return
	}
	r.Mem = max(withHeadroom(total.Peak), total.Peak+margin(u.Mem.Quantile(0.5), total))
	r.because("Memory: the peak of %s and a margin of %s, at most the request.", total.Peak.Text(), (r.Mem - total.Peak).Text())
	if u.Request.Mem > 0 {
		r.Mem = min(r.Mem, u.Request.Mem)
	}
}

func withHeadroom(m api.MiB) api.MiB { return api.MiB(math.Ceil(float64(m)*MemHeadroom - 1e-6)) }

// margin is what memory of such a median is to have above its peak, see Recommend.
func margin(median api.MiB, total Day) api.MiB {
	spread := float64(max(0, total.Peak-median))
	days := total.Observed / day.Seconds()
	hours := max(math.E, total.Observed/time.Hour.Seconds())
	return api.MiB(math.Ceil(spread * max(0, -math.Log(memRisk*days)) / math.Log(hours)))
}
