// SPDX-License-Identifier: Apache-2.0

package advice

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// random is a sample at one of ten days.
func random(r *rand.Rand) Sample {
	s := Sample{
		At:     start.Add(time.Duration(r.Intn(10*24*3600)) * time.Second),
		Lasted: 10 * time.Second, Core: 100 * r.Float64(), Mem: api.MiB(r.Intn(40_000)),
	}
	s.Peak = s.Mem + api.MiB(r.Intn(5000))
	if r.Intn(4) == 0 {
		s.Throttled = time.Duration(r.Intn(10)) * time.Second
		s.Refusals, s.Need = 2, s.Peak+api.MiB(r.Intn(5000))
	}
	return s
}

// Uses of pods, merged in any order, are the use of one that had seen all samples.
func TestMerge_IsAsIfOneHadSeenAll(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	request := Amount{40, 30_000}
	var parts [4]Use
	all := Use{Pods: 4, Request: request}
	for i := range parts {
		parts[i] = Use{Pods: 1, Request: request}
	}
	for range 5000 {
		s := random(r)
		all.Observe(s)
		parts[r.Intn(len(parts))].Observe(s)
	}
	before := fmt.Sprint(parts)
	for range 5 {
		var merged Use
		for _, i := range r.Perm(len(parts)) {
			merged.Merge(&parts[i])
		}
		near := cmp.Comparer(func(a, b float64) bool { return math.Abs(a-b) <= 1e-9*(math.Abs(a)+math.Abs(b)) })
		// The references differ where the first samples do.
		for _, d := range []*decaying{&merged.Core.d, &merged.Mem.d, &all.Core.d, &all.Mem.d} {
			d.moveTo(parts[0].Core.d.reference + 10)
		}
		if diff := cmp.Diff(all, merged, near, cmp.AllowUnexported(CoreHistogram{}, MemHistogram{}, decaying{})); diff != "" {
			t.Fatal(diff)
		}
	}
	if fmt.Sprint(parts) != before {
		t.Error("a merge changed what it merged")
	}
	if len(all.Days) != MaxDays {
		t.Errorf("%d days are kept", len(all.Days))
	}
}

// The request is that of the newest.
func TestMerge_WhenRequestsDiffer(t *testing.T) {
	older, newer := Use{Request: Amount{80, 90}}, Use{Request: Amount{20, 70}}
	older.Observe(Sample{At: start, Lasted: time.Second})
	newer.Observe(Sample{At: start.Add(time.Second), Lasted: time.Second})
	for _, order := range [][]*Use{{&older, &newer}, {&newer, &older}} {
		var u Use
		for _, o := range order {
			u.Merge(o)
		}
		if u.Request != newer.Request || !u.Since.Equal(start) || !u.Last.Equal(newer.Last) {
			t.Errorf("%+v since %v", u.Request, u.Since)
		}
	}
}

// The peak is exact, and goes with its day after MaxDays further ones with samples.
func TestPeak(t *testing.T) {
	var u Use
	for d := range MaxDays + 1 {
		if got := u.Total().Peak; d > 0 && got != 34_567 {
			t.Errorf("day %d: %v", d, got)
		}
		at := start.Add(time.Duration(d) * 7 * 24 * time.Hour)
		u.Observe(Sample{At: at, Lasted: time.Second, Mem: 100, Peak: api.MiB(max(200, 34_567-1e6*d))})
	}
	if got := u.Total().Peak; got != 200 {
		t.Errorf("after it: %v", got)
	}
}

// Counters that a tenant has forged are brought within bounds.
func TestHostileSample(t *testing.T) {
	var u Use
	for _, at := range []time.Time{start, {}, time.Unix(-1, 0), time.Unix(math.MaxInt64/2, 0)} {
		for _, lasted := range []time.Duration{time.Second, 0, -5, math.MaxInt64} {
			for _, x := range []int64{math.MinInt64, -1, math.MaxInt64} {
				u.Observe(Sample{
					At: at, Lasted: lasted, Core: float64(x), Throttled: time.Duration(x),
					Mem: api.MiB(x), Peak: api.MiB(x), Need: api.MiB(x), Refusals: x,
				})
			}
		}
	}
	var back Use
	must.Do(t, json.Unmarshal(must.Get(json.Marshal(u))(t), &back))
	if got := Recommend(&back, Options{DeviceMem: 80_000}); got.Mem != 80_000 || got.Core > 100 || u.Samples != 6 {
		t.Errorf("%+v of %d samples", got, u.Samples)
	}
}

// A usual use and the largest one fit into a status.
func TestUseJSON(t *testing.T) {
	r := rand.New(rand.NewSource(4))
	usual, largest := Use{Pods: 3, Request: Amount{40, 30_000}}, Use{Pods: maxCount, Request: Amount{100, MaxMem}}
	for i := range 20_000 {
		at := start.Add(time.Duration(i) * 30 * time.Second)
		usual.Observe(Sample{At: at, Lasted: 10 * time.Second, Core: 30 * r.Float64(), Mem: api.MiB(20_000 + 300*r.NormFloat64())})
		largest.Observe(Sample{
			At: start.Add(time.Duration(i%8) * day), Lasted: day, Core: float64(i % 101), Throttled: day,
			Mem: memEnds[2*i%len(memEnds)], Peak: MaxMem, Need: MaxMem, Refusals: maxCount,
		})
	}
	for _, tt := range []struct {
		use  Use
		most int
	}{{usual, 800}, {largest, 2000}} {
		data := must.Get(json.Marshal(tt.use))(t)
		if len(data) > tt.most {
			t.Errorf("%d bytes, want %d at most: %s", len(data), tt.most, data)
		}
		var back Use
		must.Do(t, json.Unmarshal(data, &back))
		tt.use.Core, tt.use.Mem, back.Core, back.Mem = CoreHistogram{}, MemHistogram{}, CoreHistogram{}, MemHistogram{}
		if diff := cmp.Diff(tt.use, back, cmp.AllowUnexported(CoreHistogram{}, MemHistogram{}, decaying{})); diff != "" {
			t.Error(diff)
		}
	}
}

func TestUseJSON_WhenHostile_IsAnError(t *testing.T) {
	u := Use{Pods: 1, Request: Amount{40, 30_000}}
	u.Observe(Sample{At: start, Lasted: time.Second, Core: 5, Mem: 100, Refusals: 1, Throttled: time.Second})
	good := string(must.Get(json.Marshal(u))(t))
	before := fmt.Sprint(u)
	for _, edit := range [][2]string{
		{`{"v":1,"core"`, `{"v":3,"core"`},
		{`"core":{"v":1`, `"core":{"v":3`},
		{`"days":[[`, `"days":[[],[`},
		{`"days":[[20514`, `"days":[[-20514`},
		{`"days":[[20514`, `"days":[[20514],[20514`},
		{`"days":[[20514`, `"days":[[20515],[20514`},
		{`"days":[[20514,`, `"days":[[20514,-`},
		{`"days":[[20514,100`, `"days":[[20514,4194305`},
		{`"days":[[20514,`, `"days":[[20514,1,1,1,1,1,2],[20515,`},
		{`"days":[[20514,`, `"days":[[20514,1,1,1,1,2],[20515,`},
		{`"days":[[`, `"days":[[1],[2],[3],[4],[5],[6],[7],[8],[`},
		{`"days":[[20514,`, `"days":[[20514,0,0,0,0,0,0,`},
		{`"since":`, `"since":-`},
		{`"last":1`, `"last":9999`},
		{`"last":1`, `"last":0,"x":1`},
		{`"n":1`, `"n":-1`},
		{`"n":1`, `"n":9007199254740993`},
		{`"pods":1`, `"pods":-1`},
		{`{"core":40`, `{"core":101`},
		{`{"core":40`, `{"core":-1`},
		{`"memMiB":30000`, `"memMiB":-1`},
		{`"memMiB":30000`, `"memMiB":30000000`},
		{`"v":1`, `"padding":"` + strings.Repeat("x", MaxUseBytes) + `","v":1`},
	} {
		hostile := strings.Replace(good, edit[0], edit[1], 1)
		if hostile == good {
			t.Errorf("no %s in %s", edit[0], good)
		} else if err := json.Unmarshal([]byte(hostile), &u); err == nil {
			t.Errorf("%s is no error", hostile)
		}
		if fmt.Sprint(u) != before {
			t.Fatalf("%s changed it", hostile)
		}
	}
}
