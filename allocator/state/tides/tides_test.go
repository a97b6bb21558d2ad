// SPDX-License-Identifier: Apache-2.0

package tides

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/api/v1alpha1"
)

// midnight is when tests begin.
var midnight = time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)

// daily is a tide that opens at two and ends at six.
func daily(name string, lend, outside v1alpha1.Percent) *v1alpha1.Tide {
	return &v1alpha1.Tide{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TideSpec{
		NodeSelector: map[string]string{"pool": "batch"},
		Windows:      []v1alpha1.TideWindow{{Schedule: "0 2 * * *", Duration: metav1.Duration{Duration: 4 * time.Hour}}},
		Lend:         v1alpha1.TideAmounts{Core: lend, Mem: lend}, Outside: v1alpha1.TideAmounts{Core: outside, Mem: outside},
		Reclaim: v1alpha1.TideReclaim{Before: metav1.Duration{Duration: 10 * time.Minute}, Grace: metav1.Duration{Duration: 30 * time.Second}},
	}}
}

func TestNext(t *testing.T) {
	now := servertime.Reading{Known: true}
	labels, known := map[string]string{"pool": "batch"}, true
	s := &Set{Now: func() servertime.Reading { return now }, Labels: func(string) (map[string]string, bool) { return labels, known }}
	var has *v1alpha1.LedgerTide
	at := func(d time.Duration) time.Time { return midnight.Add(d) }
	const m, h = time.Minute, time.Hour
	for _, step := range []struct {
		name  string
		do    func()
		at    time.Duration // since midnight
		write bool
		core  v1alpha1.Percent // allowed then
		until time.Duration    // 0 for none
		since time.Duration
		again time.Duration
	}{
		{"no tides", func() {}, 0, false, 100, 0, 0, 0},
		{"a tide", func() { s.Put(daily("a", 80, 10)) }, m, true, 10, 0, m, h},
		{"nothing new", func() {}, 90 * m, false, 10, 0, m, 30 * m},
		{"it opens", func() {}, 2 * h, true, 80, 6 * h, m, h},
		{"nothing new", func() {}, 5*h + 30*m, false, 80, 6 * h, m, 30 * m},
		{"a tide that lends less", func() { s.Put(daily("b", 50, 0)) }, 5*h + 40*m, true, 50, 6 * h, 5*h + 40*m, 20 * m},
		{"it ends by itself", func() {}, 6 * h, false, 0, 6 * h, 6 * h, h},
		{"more, within the grace", func() { s.Delete("b") }, 6*h + 10*time.Second, true, 10, 0, 6 * h, h},
		{"the clock is wrong as it opens", func() { now.Skew = time.Hour }, 26 * h, false, 10, 0, 6 * h, 30 * time.Second},
		{"it is right again", func() { now.Skew = 0 }, 27 * h, true, 80, 30 * h, 6 * h, h},
		{"another selector", func() { labels = nil }, 28 * h, true, 100, 0, 0, 0},
		{"it is selected by a wrong clock", func() { labels = map[string]string{"pool": "batch"}; now.Skew = -time.Hour }, 28*h + m, true, 10, 0, 28*h + m, 30 * time.Second},
		{"the node is not known", func() { known = false }, 29 * h, false, 10, 0, 28*h + m, 0},
		{"a tide that cannot be read", func() {
			known, now.Skew = true, 0
			bad := daily("bad", 80, 20)
			bad.Spec.Windows[0].TimeZone = "Mars"
			s.Put(bad)
		}, 29 * h, true, 0, 0, 29 * h, h},
	} {
		step.do()
		now.Now = at(step.at)
		next, write, again := s.Next("n", has)
		if write != step.write || again != step.again {
			t.Errorf("%s: to be written %v, again after %v; want %v, %v", step.name, write, again, step.write, step.again)
		}
		if write {
			has = next
		}
		var until, since time.Duration
		if end := has.EndsAt(); !end.IsZero() {
			until = end.Sub(midnight)
		}
		if changed := has.ChangedAt(now.Now); !changed.IsZero() {
			since = changed.Sub(midnight)
		}
		if core, mem := has.Allows(now.Now); core != step.core || mem != step.core || until != step.until || since != step.since {
			t.Errorf("%s: %d and %d until %v since %v; want %+v", step.name, core, mem, until, since, step)
		}
		if _, write, _ := s.Next("n", has); write && step.write {
			t.Errorf("%s: is written again", step.name)
		}
	}
}
