// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"math"
	"math/rand"
	"strings"
	"testing"
	"time"

	api "vernier.dev/vernier/api/v1alpha1"
)

// load makes the use of pods over days. A pod wants demand percent of a GPU, and need MiB, in a sample.
type load struct {
	request    Amount
	days, pods int
	demand     func(*rand.Rand) float64
	need       func(*rand.Rand) api.MiB
}

// use is what the quota lets of it be seen. A pod that wants more than its quota waits.
func (l load) use() *Use {
	r := rand.New(rand.NewSource(5))
	var all Use
	for range l.pods {
		u := Use{Pods: 1, Request: l.request}
		for i := range l.days * 1440 {
			demand, need := l.demand(r), l.need(r)
			s := Sample{At: start.Add(time.Duration(i) * time.Minute), Lasted: time.Minute, Core: demand, Mem: need}
			if quota := float64(l.request.Core); quota > 0 && demand > quota {
				s.Core, s.Throttled = quota, time.Duration((1-quota/demand)*float64(time.Minute))
			}
			if need > l.request.Mem {
				s.Mem, s.Peak, s.Need, s.Refusals = l.request.Mem/2, l.request.Mem, need, 1
			}
			u.Observe(s)
		}
		all.Merge(&u)
	}
	return &all
}

func always[T any](v T) func(*rand.Rand) T { return func(*rand.Rand) T { return v } }

// TestRecommend knows what each load needs: compute to a point, memory exactly.
func TestRecommend(t *testing.T) {
	request := Amount{40, 30_000}
	for _, tt := range []struct {
		name   string
		load   load
		want   Amount
		sure   Confidence
		reason string
	}{
		{"steady", load{request, 3, 3, always(20.0), always(api.MiB(10_000))}, Amount{23, 11_000}, High, "10,000 MiB and a margin of 1,000 MiB"},
		{"of two pods", load{request, 3, 2, always(20.0), always(api.MiB(10_000))}, Amount{23, 11_000}, Medium, ""},
		{"of two days", load{request, 2, 9, always(20.0), always(api.MiB(10_000))}, Amount{23, 11_000}, Medium, ""},
		{"idle", load{request, 3, 3, always(0.0), always(api.MiB(0))}, Amount{1, 0}, High, "used 0 %"},
		{"uniform", load{request, 3, 3, func(r *rand.Rand) float64 { return 30 * r.Float64() }, always(api.MiB(10_000))}, Amount{35, 11_000}, High, "98 % of the time"},
		{"rare peaks of compute", load{request, 3, 3, func(r *rand.Rand) float64 {
			if r.Intn(100) == 0 {
				return 39
			}
			return 10
		}, always(api.MiB(10_000))}, Amount{12, 11_000}, High, ""},
		{"all of its memory", load{request, 3, 3, always(10.0), always(api.MiB(29_000))}, Amount{12, 30_000}, High, "at most the request"},
		{"no quota of compute", load{Amount{0, 30_000}, 3, 3, always(10.0), always(api.MiB(10_000))}, Amount{0, 11_000}, High, "no quota of compute"},
		{"limited", load{request, 3, 3, always(80.0), always(api.MiB(10_000))}, Amount{80, 11_000}, Medium, "cut use off for 50 %"},
		{"limited a third of the time", load{request, 3, 3, func(r *rand.Rand) float64 { return []float64{0, 0, 60}[r.Intn(3)] }, always(api.MiB(10_000))}, Amount{60, 11_000}, Medium, "least that can be justified"},
		{"limited beyond a GPU", load{request, 3, 3, always(1000.0), always(api.MiB(10_000))}, Amount{100, 11_000}, Medium, ""},
		{"refused", load{request, 3, 3, always(20.0), func(r *rand.Rand) api.MiB { return 10_000 + 40_000*api.MiB(r.Intn(1000)/999) }}, Amount{23, 55_000}, Medium, "50,000 MiB were needed"},
		{"refused beyond a GPU", load{request, 3, 3, always(20.0), always(api.MiB(90_000))}, Amount{23, 80_000}, Medium, "all that a GPU has"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got := Recommend(tt.load.use(), Options{DeviceMem: 80_000})
			if d := got.Core - tt.want.Core; d < -1 || d > 1 || got.Mem != tt.want.Mem || got.Confidence != tt.sure {
				t.Errorf("got %+v, want %v %s", got, tt.want, tt.sure)
			}
			if all := strings.Join(got.Reasons, "\n"); !strings.Contains(all, tt.reason) || all == "" {
				t.Errorf("no %q in %s", tt.reason, all)
			}
		})
	}
}

// Where the quota was the limit, no load makes the advice less than the request, and what was not limited
// is at most the request.
func TestRecommend_WhenTheQuotaWasTheLimit_IsNeverLess(t *testing.T) {
	r := rand.New(rand.NewSource(6))
	limited, refused, free := 0, 0, 0
	for range 60 {
		demand, need := 100*r.Float64(), 1000+50_000*r.Float64()
		l := load{
			Amount{api.Percent(1 + r.Intn(100)), api.MiB(1000 + r.Intn(50_000))}, 1, 1 + r.Intn(3),
			func(r *rand.Rand) float64 { return demand * r.Float64() },
			func(r *rand.Rand) api.MiB { return api.MiB(need * math.Sqrt(r.Float64())) },
		}
		u := l.use()
		got, total := Recommend(u, Options{}), u.Total()
		if total.ThrottledRatio() > ThrottledLimit {
			limited++
			if got.Core < l.request.Core {
				t.Errorf("%v of %v, throttled %v", got.Core, l.request.Core, total.ThrottledRatio())
			}
		} else if free++; got.Core > l.request.Core {
			t.Errorf("%v of %v without throttling", got.Core, l.request.Core)
		}
		if total.Refusals > 0 {
			refused++
			if got.Mem < l.request.Mem || 10*got.Mem < 11*total.Need {
				t.Errorf("%v of %v, need %v", got.Mem, l.request.Mem, total.Need)
			}
		} else if got.Mem > l.request.Mem || got.Mem < l.request.Mem && 10*got.Mem < 11*total.Peak {
			t.Errorf("%v of %v, peak %v", got.Mem, l.request.Mem, total.Peak)
		}
	}
	if limited < 5 || refused < 5 || free < 5 {
		t.Errorf("%d were limited, %d refused, %d neither: the test does not try each", limited, refused, free)
	}
}

// Memory that varies gets a margin that falls with what was seen.
func TestRecommend_WhenMoreIsSeen_NeedsLessMargin(t *testing.T) {
	varied := func(r *rand.Rand) api.MiB { return 10_000 + 10_000*api.MiB(r.Intn(4)/3) }
	margins := []api.MiB{}
	for _, pods := range []int{1, 10, 100} {
		l := load{Amount{40, 80_000}, 1, pods, always(10.0), varied}
		margins = append(margins, Recommend(l.use(), Options{}).Mem-20_000)
	}
	// The spread is 9,900: the median's bucket ends at 10,100 or so. 2.2, 0.84 and 0.3 times.
	for i, want := range []float64{2.17, 0.84, 0.30} {
		if got := float64(margins[i]) / 9_950; math.Abs(got-want) > 0.03 {
			t.Errorf("%d: %.2f times the spread, want %.2f", i, got, want)
		}
	}
}

// A container that waits, or is refused, below its own share is advised no less than that.
func TestRecommend_WhenItIsLimitedBelowItsShare_IsTheRequest(t *testing.T) {
	u := Use{Pods: 3, Request: Amount{40, 30_000}}
	u.Observe(Sample{At: start, Lasted: time.Minute, Core: 5, Throttled: 6 * time.Second, Mem: 1000, Refusals: 1})
	if got := Recommend(&u, Options{}); got.Amount != u.Request || !strings.Contains(strings.Join(got.Reasons, ""), "the need is not known") {
		t.Errorf("%+v", got)
	}
}

func TestRecommend_WhenNothingWasSeen_IsTheRequest(t *testing.T) {
	got := Recommend(&Use{Request: Amount{40, 30_000}}, Options{})
	if got.Amount != (Amount{40, 30_000}) || got.Confidence != Low || len(got.Reasons) != 1 {
		t.Errorf("%+v", got)
	}
}
