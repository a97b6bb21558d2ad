// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/api/advice"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// work has containers work at a percent of their GPU for some time.
func (w *world) work(percent int, d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); {
		w.now = w.now.Add(period)
		w.busy += period * time.Duration(percent) / 100
		if w.look(); w.account == nil {
			w.start()
		}
	}
}

// sum is what the allocator makes of the object's entries, and how many of them there are.
func (w *world) sum() (sum advice.Use, entries, ended int) {
	w.t.Helper()
	for _, e := range w.object().Containers {
		var u advice.Use
		must.Do(w.t, json.Unmarshal([]byte(e.Use), &u))
		sum.Merge(&u)
		if entries++; e.Ended != nil {
			ended++
		}
	}
	return sum, entries, ended
}

// What containers of a workload use is counted once, over agents that are killed at any write, and
// published.
func TestContainers(t *testing.T) {
	w := newWorld(t, 3)
	w.start()
	w.work(0, time.Minute)
	w.container("1", "team", v1alpha1.ModeLimiter, 50)
	w.container("2", "team", v1alpha1.ModeLimiter, 50)
	w.counts = layout.DeviceUsage{UsedBytes: 100<<20 + 1, PeakBytes: 300 << 20}
	for i := range 60 {
		w.kill, w.after = 1+i%3, i%2 == 0
		w.work(30, 10*time.Minute)
	}
	w.kill = -1
	w.counts.PeakBytes, w.counts.MemoryRefusals, w.counts.NeedBytes = 400<<20, 3, 700<<20
	w.counts.Throttled = 2 * time.Minute
	w.work(30, 20*time.Minute)
	got, entries, ended := w.sum()
	e := w.object().Containers[0]
	if entries != 1 || ended != 0 || e.Namespace != "team" || e.Workload != "Deployment/web" || e.Container != "main" || e.Model != "A100" || e.Slices != 2 {
		t.Fatalf("%d entries, %d ended: %+v", entries, ended, e)
	}
	if got.Core.Quantile(0.5) != 30 || got.Core.Max() > 31 || got.Pods != 1 || got.Request != (advice.Amount{Core: 50, Mem: 1}) {
		t.Errorf("core %d to %d, %d pods, %+v", got.Core.Quantile(0.5), got.Core.Max(), got.Pods, got.Request)
	}
	// Two containers, each with about 6 samples a minute and one the less after a restart.
	if n := got.Samples; n < 2*6*600*9/10 || n > 2*6*621 {
		t.Errorf("%d samples", n)
	}
	total := got.Total()
	if total.Peak != 400 || total.Need != 700 || total.Refusals != 6 || total.Throttled < 9 || total.Throttled > 21 || got.Mem.Quantile(0.5) < 101 || got.Mem.Quantile(0.5) > 104 {
		t.Errorf("%+v, median of memory %d", total, got.Mem.Quantile(0.5))
	}
}

// The peak of a container's life counts on the day on which it grew, and the use of MPS or of a pod
// that is not known nowhere.
func TestContainersPeak(t *testing.T) {
	w := newWorld(t, 4)
	w.start()
	w.workloads = map[string]string{"3": ""}
	w.counts.PeakBytes, w.counts.UsedBytes = 900<<20, 1<<20
	w.container("1", "team", v1alpha1.ModeLimiter, 0)
	w.container("2", "team", v1alpha1.ModeMPS, 10)
	w.container("3", "other", v1alpha1.ModeLimiter, 10)
	w.work(0, 25*time.Hour)
	got, entries, _ := w.sum()
	if entries != 1 || len(got.Days) != 2 || got.Days[0].Peak != 900 || got.Days[1].Peak != 1 || got.Request.Core != 0 {
		t.Errorf("%d entries, %+v", entries, got)
	}
}

// An entry ends an hour after the last container and goes a day later. What runs then is another one.
func TestContainersEnd(t *testing.T) {
	w := newWorld(t, 5)
	w.start()
	counts := func(when string, entries, ended int, pods int64) {
		t.Helper()
		if u, n, over := w.sum(); n != entries || over != ended || u.Pods != pods {
			t.Errorf("%s: %d entries, %d ended, %d pods", when, n, over, u.Pods)
		}
	}
	c := w.container("1", "team", v1alpha1.ModeLimiter, 50)
	w.work(30, 30*time.Minute)
	end := func(id string) {
		w.table.Detach(id)
		w.do(func() { w.account.Ended(c) })
	}
	end("1")
	w.work(0, 50*time.Minute)
	counts("within the hour", 1, 0, 1)
	w.container("2", "team", v1alpha1.ModeLimiter, 50)
	w.work(30, 30*time.Minute)
	counts("again", 1, 0, 1) // the same pod
	end("2")
	w.work(0, 90*time.Minute)
	counts("after an hour", 1, 1, 1)
	was := w.object().Containers[0]
	w.container("3", "team", v1alpha1.ModeLimiter, 50)
	w.work(30, 90*time.Minute)
	counts("another", 2, 1, 2)
	if now := w.object().Containers[0]; now.Use != was.Use || !now.Ended.Equal(was.Ended) {
		t.Errorf("an ended entry has changed: %+v", w.object().Containers[0])
	}
	w.work(30, 24*time.Hour)
	counts("a day later", 1, 0, 1)
}

// What the allocator may have added up does not come back: without the file the object's entries have
// ended, without the object all begin again.
func TestContainersLost(t *testing.T) {
	w := newWorld(t, 6)
	w.start()
	w.container("1", "team", v1alpha1.ModeLimiter, 50)
	w.work(30, 2*time.Hour)
	before, _, _ := w.sum()
	must.Do(t, os.Remove(w.path))
	w.start()
	w.work(30, 2*time.Hour)
	after, entries, ended := w.sum()
	if entries != 2 || ended != 1 || after.Samples < before.Samples+500 || after.Samples > before.Samples+740 {
		t.Errorf("without the file %d entries, %d ended, %d samples after %d", entries, ended, after.Samples, before.Samples)
	}
	for kill := range 3 {
		must.Do(t, w.api.Delete(t.Context(), &v1alpha1.SliceUsage{ObjectMeta: w.meta()}))
		began := w.now
		w.kill, w.after = kill+1, kill%2 == 0
		w.work(30, time.Hour)
		w.kill = -1
		w.work(30, time.Hour)
		if u, entries, _ := w.sum(); entries != 1 || u.Since.Before(began) {
			t.Errorf("without the object %d entries, since %v, was deleted at %v", entries, u.Since, began)
		}
	}
}

// Whatever tenants do: the entries of a node have their bounds, and the object fits.
func TestHostileContainers(t *testing.T) {
	w := newWorld(t, 7)
	w.start()
	w.workloads = map[string]string{}
	for i := range 300 {
		id := fmt.Sprint(i)
		w.workloads[id] = "Deployment/" + strings.Repeat("d", 253)
		w.container(id, fmt.Sprintf("%s-%d", strings.Repeat("n", 59), i), v1alpha1.ModeLimiter, 50)
	}
	for i := range 200 {
		w.counts = layout.DeviceUsage{UsedBytes: uint64(w.random.Int64N(80 << 30)), PeakBytes: math.MaxUint64, NeedBytes: math.MaxUint64, MemoryRefusals: uint64(i) << 50, Throttled: time.Duration(w.random.Int64())}
		w.busy = time.Duration(w.random.Int64())
		w.now = w.now.Add(period)
		w.look()
	}
	w.work(0, time.Hour)
	o := w.object()
	size := 0
	for _, e := range o.Containers {
		var u advice.Use
		must.Do(t, json.Unmarshal([]byte(e.Use), &u))
		if size += len(e.Use); len(e.Use) > 4096 {
			t.Errorf("an entry of %d bytes", len(e.Use))
		}
	}
	if n := len(o.Containers); n < 100 || n > v1alpha1.MaxUsageContainers || size > v1alpha1.MaxUsageContainerBytes {
		t.Errorf("%d entries of %d bytes", n, size)
	}
	if text := must.Get(json.Marshal(o.Containers))(t); len(text) > 512<<10 {
		t.Errorf("%d bytes", len(text))
	}
	if n := len(w.account.kept.Containers); n > v1alpha1.MaxUsageContainers {
		t.Errorf("%d entries in the file", n)
	}
}
