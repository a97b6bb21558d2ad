// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"reflect"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/cpuset"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/attach"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
)

// pass has the agent look every ten seconds.
func (w *world) pass(d time.Duration) {
	for end := w.now.Add(d); w.now.Before(end); w.look() {
		w.now = w.now.Add(period)
	}
}

// of is the entry of a model, and in it of a namespace.
func of(models []v1alpha1.ModelUsage, model, namespace string) (m v1alpha1.ModelUsage, e v1alpha1.NamespaceUsage) {
	for _, m = range models {
		for _, e = range m.Granted {
			if m.Model == model && e.Namespace == namespace {
				return m, e
			}
		}
		if m.Model == model {
			return m, v1alpha1.NamespaceUsage{}
		}
	}
	return v1alpha1.ModelUsage{}, v1alpha1.NamespaceUsage{}
}

// Four times an hour the object is written, and once after each hour is over: nodes are spread over
// five minutes. It is the Node's.
func TestPublish(t *testing.T) {
	w := newWorld(t, 1)
	w.start()
	w.pass(4*time.Hour + 43*time.Minute) // up to 15:00:31
	if w.published != 1+18 {             // at the start, and for each quarter from 10:30 to 14:45
		t.Errorf("published %d times", w.published)
	}
	w.pass(spread * time.Second)
	s := w.object()
	if last := s.Hours[len(s.Hours)-2]; last.Start.Hour() != 14 || last.Models[0].Total.Core != v1alpha1.PerGPUHour || last.Models[1].Total.Core != 2*v1alpha1.PerGPUHour {
		t.Errorf("five minutes after an hour it is %+v", last)
	}
	w.fails = errConflict
	before := w.published
	for w.fails != nil {
		w.pass(period)
	}
	if w.published != before+1 { // at the same look
		t.Errorf("published %d times with a conflict", w.published-before)
	}
	w.fails = errors.New("the API server is away")
	w.pass(17 * time.Minute) // it is tried again after one
	if w.published != before+2 {
		t.Errorf("published %d times after an error", w.published-before)
	}
	u := &v1alpha1.SliceUsage{}
	must.Do(t, w.api.Get(t.Context(), client.ObjectKey{Name: "n"}, u))
	if want := []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: "n", UID: "node"}}; !reflect.DeepEqual(u.OwnerReferences, want) {
		t.Errorf("owned by %v", u.OwnerReferences)
	}
}

// A node that has lost its state directory goes on with what was published, which is added once,
// wherever the agent is killed. The time between is not counted.
func TestLostFile(t *testing.T) {
	for kill := -1; kill < 6; kill++ {
		for _, after := range []bool{false, true} {
			for name, lose := range map[string]func(string) error{
				"gone":    os.Remove,
				"empty":   func(path string) error { return os.Truncate(path, 0) },
				"garbage": func(path string) error { return os.WriteFile(path, []byte("{"), 0o600) },
			} {
				if kill > 0 && name != "gone" {
					continue
				}
				w := newWorld(t, 1)
				w.grant(0, "team", 40, 100)
				w.start()
				w.pass(40 * time.Minute)
				published := *w.object()
				must.Do(t, lose(w.path))
				w.now = w.now.Add(time.Hour)
				began := w.now
				w.kill, w.after = kill, after
				w.start()
				for range 10 {
					w.pass(5 * time.Minute)
					if w.account == nil {
						if !w.after && kill == 1 {
							began = w.now // nothing was written
						}
						w.start()
					}
				}
				w.account.Changed()
				has := w.account.kept.Account
				checkSums(t, name, &has)
				m, e := of(has.Sums, "A100", "team")
				was, _ := of(published.Sums, "A100", "team")
				if want := was.Total.Core + v1alpha1.PercentSeconds(100*(w.now.Unix()-began.Unix())); m.Total.Core != want || e.Core != want*4/10 {
					t.Errorf("%s, killed at write %d, after %v: %+v, want %d in all", name, kill, after, m, want)
				}
				if !has.Since.Equal(&published.Since) || len(has.Hours) < 2 {
					t.Errorf("%s: since %v, %d hours", name, has.Since, len(has.Hours))
				}
			}
		}
	}
}

// A clock that is put back counts nothing twice.
func TestClockThatIsPutBack(t *testing.T) {
	w := newWorld(t, 1)
	w.start()
	w.pass(2 * time.Hour)
	through := w.account.kept.Account.Through
	before := text(w.account.kept.Account.Sums)
	w.now = w.now.Add(-time.Hour)
	w.changed()
	w.pass(30 * time.Minute)
	w.start() // whatever is in the file
	if now := text(w.account.kept.Account.Sums); now != before || !w.account.kept.Account.Through.Equal(&through) {
		t.Errorf("%s, was %s", now, before)
	}
	w.pass(31 * time.Minute)
	if m, _ := of(w.account.kept.Account.Sums, "A100", ""); m.Total.Core != v1alpha1.PercentSeconds(100*(w.now.Unix()-begin.Unix())) {
		t.Errorf("%+v", m)
	}
}

// container enters one that runs.
func (w *world) container(id, namespace string, m v1alpha1.Mode, core v1alpha1.Percent) mode.Container {
	c := mode.Container{ID: id, Pod: "uid", Owner: namespace + "/p", Name: "main", Grants: []ledger.Grant{{UUID: "GPU-0", Core: core, Mem: 1, DeviceMem: 1000, Mode: m}}}
	must.Do(w.t, w.table.Attach(attach.Entry{Container: c}))
	w.table.Started(id, 1, []v1alpha1.SliceStatus{}, func([]v1alpha1.SliceStatus, cpuset.CPUSet) {})
	return c
}

// What a container has used is counted once, to the millisecond, over agents that are killed at
// any write, up to its end; without a quota it isn't measured.
func TestUsed(t *testing.T) {
	w := newWorld(t, 2)
	w.start()
	w.pass(time.Minute)
	c := w.container("1", "team", v1alpha1.ModeLimiter, 50)
	w.container("2", "free", v1alpha1.ModeLimiter, 0)
	for range 2000 {
		step := time.Duration(w.random.Int64N(int64(2 * period)))
		w.now = w.now.Add(step)
		w.busy += step/2 + time.Nanosecond
		if w.random.IntN(10) == 0 {
			w.kill, w.after = 1+w.random.IntN(3), w.random.IntN(2) == 0
		}
		if w.look(); w.account == nil {
			w.start()
		}
	}
	w.kill = -1
	used := func(models []v1alpha1.ModelUsage, namespace string) int64 {
		if _, e := of(models, "A100", namespace); e.UsedMilliseconds != nil {
			return *e.UsedMilliseconds
		}
		return -1
	}
	w.pass(time.Second)
	if got := used(w.account.kept.Account.Sums, "team"); got != w.busy.Milliseconds() {
		t.Errorf("used %d ms, want %v", got, w.busy)
	}
	w.busy += time.Second
	w.now = w.now.Add(3 * time.Second)
	w.table.Detach("1")
	w.do(func() { w.account.Ended(c) })
	w.pass(time.Minute)
	sum, hours := used(w.account.kept.Account.Sums, "team"), int64(0)
	for _, h := range w.account.kept.Account.Hours {
		hours += max(used(h.Models, "team"), 0)
	}
	if sum != w.busy.Milliseconds() || hours != sum {
		t.Errorf("used %d ms, %d in hours, want %v", sum, hours, w.busy)
	}
	if got := used(w.account.kept.Account.Sums, "free"); got >= 0 || len(w.account.kept.Readings) > 0 {
		t.Errorf("without a quota %d ms, readings %v", got, w.account.kept.Readings)
	}
}

// Whatever a tenant writes into its counters: it has not used more than there was time for.
func TestHostileBusy(t *testing.T) {
	w := newWorld(t, 1)
	w.start()
	w.pass(time.Minute)
	began := w.now
	w.container("1", "team", v1alpha1.ModeLimiter, 50)
	for _, busy := range []time.Duration{time.Hour, 0, time.Hour, -time.Hour, 24 * time.Hour, 0} {
		w.busy = busy
		w.pass(20 * time.Second)
	}
	_, e := of(w.account.kept.Account.Sums, "A100", "team")
	if most := w.now.Sub(began).Milliseconds(); e.UsedMilliseconds == nil || *e.UsedMilliseconds < 0 || *e.UsedMilliseconds > most {
		t.Errorf("used %v of %d ms", e.UsedMilliseconds, most)
	}
}

// Of a whole device the driver's utilisation counts, for the time that the agent was there.
func TestUsedWhole(t *testing.T) {
	w := newWorld(t, 1)
	w.container("1", "team", v1alpha1.ModeExclusive, 100)
	w.start()
	w.pass(10 * time.Minute)
	w.now = w.now.Add(time.Hour)
	w.start()
	w.pass(10 * time.Minute)
	_, e := of(w.account.kept.Account.Sums, "A100", "team")
	if want := (10*time.Minute - 10*time.Second + 10*time.Minute - 10*time.Second) / 2; e.UsedMilliseconds == nil || *e.UsedMilliseconds < want.Milliseconds()-30_000 || *e.UsedMilliseconds > want.Milliseconds()+10_000 {
		t.Errorf("used %v ms, want %v", *e.UsedMilliseconds, want)
	}
}

// More hours, namespaces and models than there is room for: the object stays within its bounds, and
// the sums lose nothing.
func TestHostileNamespaces(t *testing.T) {
	w := newWorld(t, 1)
	w.devices[0].Mem, w.ledger.Spec.Devices[0].Mem = 1<<20, 1<<20
	w.start()
	for n := range 400 {
		w.ledger.Spec.Devices[0].Slices = nil
		if n == 0 {
			w.grant(0, "first", 1, 1)
		}
		if n == 100 {
			for i := range 300 {
				w.grant(0, fmt.Sprint("crowd-", i), 0, 1)
			}
		}
		for i := range 3 {
			w.grant(0, fmt.Sprintf("ns-%d-%d", n, i), 9, 100)
		}
		w.devices[1].Model = fmt.Sprint("model-", n)
		w.changed()
		if n > 200 { // an hour has few
			w.now = w.now.Add(47 * time.Minute)
		}
		w.now = w.now.Add(13 * time.Minute)
	}
	w.changed()
	has := w.account.kept.Account
	checkSums(t, "at the end", &has)
	entries := 0
	for _, h := range has.Hours {
		if n := count(h.Models); n > v1alpha1.MaxUsageHourEntries+v1alpha1.MaxUsageModels+1 || len(h.Models) > v1alpha1.MaxUsageModels+1 {
			t.Errorf("%d entries, %d models in an hour", n, len(h.Models))
		}
		entries += count(h.Models) + len(h.Models)
	}
	if entries > v1alpha1.MaxUsageEntries || len(has.Hours) > v1alpha1.MaxUsageHours {
		t.Errorf("%d entries, %d hours", entries, len(has.Hours))
	}
	if n := count(has.Sums); n > v1alpha1.MaxUsageSumEntries+v1alpha1.MaxUsageModels+1 || len(has.Sums) > v1alpha1.MaxUsageModels+1 {
		t.Errorf("%d entries, %d models in the sums", n, len(has.Sums))
	}
	var total v1alpha1.PercentSeconds
	for _, m := range has.Sums {
		total += m.Total.Core
	}
	if want := v1alpha1.PercentSeconds(300 * (has.Through.Unix() - begin.Unix())); total != want {
		t.Errorf("%d in the sums, want %d", total, want)
	}
	if _, e := of(has.Sums, "A100", "first"); e.Namespace != "" {
		t.Error("the sums have not forgotten the first namespace")
	}
	if _, e := of(has.Sums, "A100", "ns-399-0"); e.Namespace == "" {
		t.Error("the sums do not name the last namespace")
	}
	if text := must.Get(json.Marshal(&has))(t); len(text) > 512<<10 {
		t.Errorf("%d bytes", len(text))
	}
}

// A device that has less memory than when its slices were granted counts with what they have.
func TestSmallerDevice(t *testing.T) {
	w := newWorld(t, 1)
	w.grant(0, "team", 10, 1000)
	w.devices[0].Mem = 900
	w.start()
	w.now = w.now.Add(10 * time.Second)
	w.look()
	if m, e := of(w.account.kept.Account.Sums, "A100", "team"); e.Mem != 10_000 || m.Total.Mem != 10_000 || m.Free.Mem != 0 {
		t.Errorf("%+v", m)
	}
}
