// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand"
	"slices"
	"strings"
	"testing"
	"time"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

var start = time.Date(2026, 3, 2, 0, 0, 0, 0, time.UTC)

// The quantiles of a load of equal weights lie in the next whole percent, and in the next 2 % of memory.
func TestQuantile(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 20 {
		var core CoreHistogram
		var mem MemHistogram
		var cores []float64
		var mems []api.MiB
		top := 1 + 99*r.Float64()
		for i := range 1 + r.Intn(500) {
			c, m := top*r.Float64(), api.MiB(64+math.Exp(11*r.Float64()))
			if i%5 == 0 {
				c = 0
			}
			cores, mems = append(cores, c), append(mems, m)
			core.Add(c, time.Second, start)
			mem.Add(m, time.Second, start)
		}
		slices.Sort(cores)
		slices.Sort(mems)
		for _, q := range []float64{0, 0.25, 0.5, 0.95, 0.98, 1} {
			i := max(0, int(math.Ceil(q*float64(len(cores))-1e-9))-1)
			if got := float64(core.Quantile(q)); got < cores[i] || got >= cores[i]+1 {
				t.Errorf("q %v: %v, want %v to the next percent", q, got, cores[i])
			}
			if got := mem.Quantile(q); got < mems[i] || float64(got) > 1+1.02*float64(mems[i]) {
				t.Errorf("q %v: %v MiB, want %v to 2 %% more", q, got, mems[i])
			}
		}
		if core.Max() != core.Quantile(1) {
			t.Error("the maximum is not the last quantile")
		}
	}
}

func TestHistogram_WhenValuesAreOutside_CountsTheNearest(t *testing.T) {
	for _, tt := range []struct {
		core float64
		mem  api.MiB
		want Amount
	}{
		{-5, -5, Amount{0, 64}},
		{math.Inf(-1), math.MinInt64, Amount{0, 64}},
		{math.NaN(), 0, Amount{100, 64}},
		{math.Inf(1), math.MaxInt64, Amount{100, MaxMem}},
		{100.5, MaxMem, Amount{100, MaxMem}},
		{0.01, 65, Amount{1, 66}},
	} {
		var core CoreHistogram
		var mem MemHistogram
		core.Add(tt.core, time.Second, start)
		mem.Add(tt.mem, time.Second, start)
		if got := (Amount{core.Max(), mem.Quantile(1)}); got != tt.want {
			t.Errorf("%+v: got %v", tt, got)
		}
	}
	if n := len(memEnds); n != 562 || memEnds[n-1] != MaxMem || !slices.IsSorted(memEnds) {
		t.Errorf("%d buckets of memory up to %v", n, memEnds[n-1])
	}
}

// A day old sample weighs half, and one of a year nothing, whatever the reference time.
func TestDecay(t *testing.T) {
	var h CoreHistogram
	h.Add(80, 100*time.Second, start)
	h.Add(20, 49*time.Second, start.Add(24*time.Hour))
	if got := h.Quantile(0.5); got != 80 {
		t.Errorf("got %d", got)
	}
	h.Add(20, 2*time.Second, start.Add(24*time.Hour))
	if got := h.Quantile(0.5); got != 20 {
		t.Errorf("got %d", got)
	}
	for i := range 10_000 {
		h.Add(5, time.Hour, start.Add(time.Duration(i)*24*time.Hour))
	}
	if got, sum := h.Quantile(0.9999), h.d.total(); got != 5 || !(sum < math.Exp2(maxLead+2)*3600) {
		t.Errorf("got %d of a weight of %v", got, sum)
	}
	if got := h.d.weights[80]; got != 0 {
		t.Errorf("27 years later 80 %% weighs %v", got)
	}
}

// Histograms of times far apart merge in either order: the older one has no weight left.
func TestMerge_WhenTimesAreFarApart(t *testing.T) {
	for _, swap := range []bool{false, true} {
		var older, newer CoreHistogram
		older.Add(80, time.Hour, start.Add(-50*365*24*time.Hour))
		newer.Add(20, time.Second, start)
		to, from := &older, &newer
		if swap {
			to, from = from, to
		}
		to.Merge(from)
		if got, sum := to.Quantile(0.99), to.d.total(); got != 20 || !(sum < 1e6) {
			t.Errorf("got %d of a weight of %v", got, sum)
		}
	}
}

// A document has what was added, to a ten-thousandth of the heaviest bucket.
func TestHistogramJSON(t *testing.T) {
	r := rand.New(rand.NewSource(2))
	var core, coreBack CoreHistogram
	var mem, memBack MemHistogram
	for i := range 20_000 {
		at := start.Add(time.Duration(i) * 10 * time.Second)
		core.Add(100*math.Pow(r.Float64(), 4), 10*time.Second, at)
		mem.Add(api.MiB(20_000+1000*r.NormFloat64()), 10*time.Second, at)
	}
	for _, tt := range []struct {
		from any
		to   json.Unmarshaler
		a, b *decaying
	}{{core, &coreBack, &core.d, &coreBack.d}, {mem, &memBack, &mem.d, &memBack.d}} {
		data := must.Get(json.Marshal(tt.from))(t)
		if len(data) > 600 {
			t.Errorf("a usual one has %d bytes: %s", len(data), data)
		}
		must.Do(t, json.Unmarshal(data, tt.to))
		for i, w := range tt.a.weights {
			if got := tt.b.weights[i]; math.Abs(got-w) > 2e-4*slices.Max(tt.a.weights) {
				t.Errorf("bucket %d: %v, was %v", i, got, w)
			}
		}
	}
	var empty, back CoreHistogram
	must.Do(t, json.Unmarshal(must.Get(json.Marshal(empty))(t), &back))
	if back.Quantile(1) != 0 || len(back.d.weights) != 0 {
		t.Error("an empty one is not empty")
	}
}

// However use is spread, a document is bounded, and the memory that it reports does not fall.
func TestHistogramJSON_WhenEveryBucketIsUsed_IsBounded(t *testing.T) {
	var core CoreHistogram
	var mem MemHistogram
	for i := range 2 * len(memEnds) {
		core.Add(float64(i%101), time.Duration(9990+i%7)*time.Second, start)
		if i%2 == 0 {
			mem.Add(memEnds[i%len(memEnds)], time.Duration(9000-3*i)*time.Second, start)
		}
	}
	for _, h := range []any{core, mem} {
		if data := must.Get(json.Marshal(h))(t); len(data) > 700 {
			t.Errorf("%d bytes: %s", len(data), data)
		}
	}
	var back MemHistogram
	must.Do(t, json.Unmarshal(must.Get(json.Marshal(mem))(t), &back))
	was, got := 0.0, 0.0
	for i := range memEnds {
		if i < len(mem.d.weights) {
			was += mem.d.weights[i] / mem.d.total()
		}
		if i < len(back.d.weights) {
			got += back.d.weights[i] / back.d.total()
		}
		if got > was+1e-3 {
			t.Fatalf("%v of the time had at most %v, now %v", was, memEnds[i], got)
		}
	}
}

func TestHistogramJSON_WhenHostile_IsAnError(t *testing.T) {
	const good = `{"v":1,"at":20514,"w":5,"b":[[0,1],[3,10000,7]]}`
	h := CoreHistogram{}
	must.Do(t, json.Unmarshal([]byte(good), &h))
	before := fmt.Sprint(h)
	for _, hostile := range []string{
		`{"v":2}`, `{}`, `[]`, `7`, `"x"`, `{"v":1,"at":-1}`, `{"v":1,"at":1e300}`, `{"v":1,"at":100001}`,
		`{"v":1,"w":-1,"b":[[0,1]]}`, `{"v":1,"w":1e19,"b":[[0,1]]}`, `{"v":1,"w":1e999,"b":[[0,1]]}`, `{"v":1,"w":NaN}`, `{"v":1,"w":5}`, `{"v":1,"w":0,"b":[[0,1]]}`,
		`{"v":1,"w":5,"b":[[]]}`, `{"v":1,"w":5,"b":[[0]]}`, `{"v":1,"w":5,"b":[[-1,5]]}`, `{"v":1,"w":5,"b":[[101,5]]}`, `{"v":1,"w":5,"b":[[100,5,5]]}`,
		`{"v":1,"w":5,"b":[[9223372036854775807,5]]}`, `{"v":1,"w":5,"b":[[0,0]]}`, `{"v":1,"w":5,"b":[[0,-3]]}`, `{"v":1,"w":5,"b":[[0,10001]]}`,
		`{"v":1,"w":5,"b":[[5,1],[5,1]]}`, `{"v":1,"w":5,"b":[[5,1],[2,1]]}`, `{"v":1,"w":5,"b":[[0,1.5]]}`,
		`{"v":1,"w":5,"b":[` + strings.Repeat("[0,1],", 500) + `[0,1]]}`,
		strings.Repeat("[", 2000),
	} {
		if err := json.Unmarshal([]byte(hostile), &h); err == nil {
			t.Errorf("%.60s is no error", hostile)
		}
		if fmt.Sprint(h) != before {
			t.Fatalf("%.60s changed it", hostile)
		}
	}
}

func FuzzHistogramJSON(f *testing.F) {
	f.Add([]byte(`{"v":1,"at":20514,"w":5,"b":[[0,1],[3,10000,7]]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		var h MemHistogram
		if h.UnmarshalJSON(data) != nil {
			return
		}
		h.Merge(&h)
		if m := h.Quantile(1); m < 0 || m > MaxMem {
			t.Errorf("got %d", m)
		}
		must.Get(json.Marshal(h))(t)
	})
}
