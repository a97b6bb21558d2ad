// SPDX-License-Identifier: Apache-2.0

package usage

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// onDevice grants the container of a pod so much compute of the first device.
func (w *world) onDevice(pod types.UID, ctr string, core v1alpha1.Percent, mode v1alpha1.Mode) {
	d := &w.ledger.Spec.Devices[0]
	d.Slices = append(d.Slices, v1alpha1.Slice{Pod: pod, Owner: "team/p", Ctr: ctr, Core: core, Mem: 1, Mode: mode})
}

// What a device is expected to be busy with is what its containers have used, once that is known, and
// their quotas before; a multiple of 5, and never more than the device.
func TestExpectedBusy(t *testing.T) {
	w := newWorld(t, 1)
	w.start()
	w.container("1", "team", v1alpha1.ModeLimiter, 60)
	e, _ := w.table.Get("1")
	w.onDevice(e.Pod, e.Name, 60, "")
	expect := func(when string, want v1alpha1.Percent) {
		t.Helper()
		if got := w.account.ExpectedBusy("GPU-0"); got != want {
			t.Errorf("%s: %d %%, want %d", when, got, want)
		}
	}
	expect("nothing is known of it", 60)
	w.work(18, 9*time.Minute)
	expect("it has worked for 9 minutes", 60)
	w.work(18, time.Hour)
	expect("it works evenly", 20)
	w.work(58, 15*time.Minute)
	expect("it has worked at its quota for a while", 100) // five standard deviations above its mean
	w.onDevice("another", "main", 0, "")
	w.onDevice("mps", "main", 5, v1alpha1.ModeMPS)
	w.work(18, 24*time.Hour)
	expect("after a day, beside a slice in mode mps", 40)
	if got := w.account.ExpectedBusy("GPU-1"); got != 0 {
		t.Errorf("a device without slices: %d %%", got)
	}
}

// The peak of a container is the most that it was seen to have, or was refused, once it is known.
func TestExpectedPeak(t *testing.T) {
	w := newWorld(t, 1)
	w.start()
	w.container("1", "team", v1alpha1.ModeLimiter, 60)
	e, _ := w.table.Get("1")
	w.work(18, 9*time.Minute)
	if mem, known := w.account.ExpectedPeak(e.Key()); known {
		t.Errorf("%d MiB are known after 9 minutes", mem)
	}
	use := &w.counts
	use.PeakBytes = 300<<20 + 1
	w.work(18, 5*time.Minute)
	use.NeedBytes, use.MemoryRefusals = 400<<20, 1
	w.work(18, time.Minute)
	if mem, known := w.account.ExpectedPeak(e.Key()); mem != 400 || !known {
		t.Errorf("%d MiB, known: %v", mem, known)
	}
	if _, known := w.account.ExpectedPeak(ledger.Key{Pod: "other"}); known {
		t.Error("of another container something is known")
	}
}

// An idle slice starves while its launches wait for most of the time and it gets less than 1 % of the device.
// That is said with its begin, and each change asks for the status once.
func TestStarvedSince(t *testing.T) {
	w := newWorld(t, 1)
	w.start()
	w.container("1", "team", v1alpha1.ModeLimiter, 0)
	w.container("2", "team", v1alpha1.ModeLimiter, 50)
	e, _ := w.table.Get("1")
	e.Grants[0].Idle = 30
	w.look()
	changes := w.idleChanges
	for _, step := range []struct {
		name            string
		busy, throttled time.Duration // in a minute
		starves         bool
		changes         int
	}{
		{"it wants nothing", 0, 0, false, 0},
		{"it waits, and gets enough", time.Second, time.Minute, false, 0},
		{"it waits for less than half of the time", 0, 29 * time.Second, false, 0},
		{"it waits", time.Millisecond, 50 * time.Second, true, 1},
		{"and waits", time.Millisecond, 50 * time.Second, true, 1},
		{"it gets enough", time.Second, 50 * time.Second, false, 2},
	} {
		for end := w.now.Add(10 * time.Minute); w.now.Before(end); {
			w.now = w.now.Add(period)
			part := float64(period) / float64(time.Minute)
			w.busy += time.Duration(part * float64(step.busy))
			w.counts.Throttled += time.Duration(part * float64(step.throttled))
			w.look()
		}
		got := w.account.StarvedSince("1", "GPU-0")
		if (got != nil) != step.starves || got != nil && w.now.Sub(got.Time) < 9*time.Minute || w.idleChanges-changes != step.changes {
			t.Errorf("%s: starves since %v at %v, %d changes; want %v, %d", step.name, got, w.now, w.idleChanges-changes, step.starves, step.changes)
		}
	}
	if w.account.StarvedSince("2", "GPU-0") != nil {
		t.Error("a share starves")
	}
}
