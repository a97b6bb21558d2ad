// SPDX-License-Identifier: Apache-2.0

package tide

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

func object(name string, lend, outside v1alpha1.Percent, windows ...v1alpha1.TideWindow) *v1alpha1.Tide {
	return &v1alpha1.Tide{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TideSpec{
		Windows: windows, Lend: v1alpha1.TideAmounts{Core: lend, Mem: lend}, Outside: v1alpha1.TideAmounts{Core: outside, Mem: outside},
		Reclaim: v1alpha1.TideReclaim{Before: metav1.Duration{Duration: 10 * time.Minute}, Grace: metav1.Duration{Duration: 30 * time.Second}},
	}}
}

func opens(schedule string, duration time.Duration, zone string) v1alpha1.TideWindow {
	return v1alpha1.TideWindow{Schedule: schedule, Duration: metav1.Duration{Duration: duration}, TimeZone: zone}
}

// at reads a time such as 2026-03-29 02:30 +0100.
func at(t *testing.T, text string) time.Time {
	t.Helper()
	return must.Get(time.Parse("2006-01-02 15:04 -0700", text))(t)
}

func TestOpen(t *testing.T) {
	night := []v1alpha1.TideWindow{opens("0 23 * * *", 8*time.Hour, "Asia/Shanghai")}
	berlin := []v1alpha1.TideWindow{opens("30 2 * * *", time.Hour, "Europe/Berlin")}
	for _, tt := range []struct {
		name    string
		windows []v1alpha1.TideWindow
		now     string
		until   string // empty where it is shut
	}{
		{"before it opens", night, "2026-05-01 22:59 +0800", ""},
		{"as it opens", night, "2026-05-01 23:00 +0800", "2026-05-02 07:00 +0800"},
		{"over midnight", night, "2026-05-01 19:00 +0000", "2026-05-02 07:00 +0800"},
		{"as it ends", night, "2026-05-02 07:00 +0800", ""},
		{"windows that follow each other", []v1alpha1.TideWindow{opens("0 22 * * *", 2*time.Hour, "UTC"), opens("0 0 * * *", 3*time.Hour, "UTC")},
			"2026-05-01 22:10 +0000", "2026-05-02 03:00 +0000"},
		{"windows with a pause", []v1alpha1.TideWindow{opens("0 22 * * *", time.Hour, "UTC"), opens("1 23 * * *", time.Hour, "UTC")},
			"2026-05-01 22:10 +0000", "2026-05-01 23:00 +0000"},
		{"one in another", []v1alpha1.TideWindow{opens("0 22 * * *", 6*time.Hour, "UTC"), opens("0 23 * * *", time.Hour, "UTC")},
			"2026-05-01 23:10 +0000", "2026-05-02 04:00 +0000"},
		{"a weekend", []v1alpha1.TideWindow{opens("0 18 * * 5", 60*time.Hour, "UTC")}, "2026-05-03 20:00 +0000", "2026-05-04 06:00 +0000"},
		{"a minute of a week", []v1alpha1.TideWindow{opens("* * * * 1", 168*time.Hour, "UTC")}, "2026-05-04 00:00 +0000", "2026-05-11 00:00 +0000"},
		{"always, to a day ahead", []v1alpha1.TideWindow{opens("0 * * * *", time.Hour, "UTC")}, "2026-05-04 00:10 +0000", "2026-05-05 01:00 +0000"},
		{"always, by short windows", []v1alpha1.TideWindow{opens("* * * * *", time.Minute, "UTC")}, "2026-05-04 00:10 +0000", "2026-05-04 02:00 +0000"},
		{"a day that never comes", []v1alpha1.TideWindow{opens("0 0 30 2 *", time.Hour, "UTC")}, "2026-05-04 00:10 +0000", ""},
		{"over clocks put forward", []v1alpha1.TideWindow{opens("0 23 * * *", 8*time.Hour, "Europe/Berlin")}, "2026-03-28 23:00 +0100", "2026-03-29 08:00 +0200"},
		{"over clocks put back", []v1alpha1.TideWindow{opens("0 23 * * *", 8*time.Hour, "Europe/Berlin")}, "2026-10-24 23:00 +0200", "2026-10-25 06:00 +0100"},
		{"a time that the day does not have", berlin, "2026-03-29 03:30 +0200", ""},
		{"a time that it has twice", berlin, "2026-10-25 02:30 +0200", "2026-10-25 03:30 +0100"},
		{"a weekday whose day begins at one", []v1alpha1.TideWindow{opens("7 2 * * 6", 8*time.Hour, "America/Santiago")}, "2026-09-06 05:00 -0400", ""},
		{"half an hour put forward", []v1alpha1.TideWindow{opens("2 3 * * *", time.Hour, "Australia/Lord_Howe")}, "2026-10-04 03:30 +1100", "2026-10-04 04:02 +1100"},
		{"a day or a weekday", []v1alpha1.TideWindow{opens("0 0 13 * 5", time.Hour, "UTC")}, "2026-05-08 00:30 +0000", "2026-05-08 01:00 +0000"},
		{"a leap day", []v1alpha1.TideWindow{opens("0 0 29 2 *", time.Hour, "UTC")}, "2028-02-29 00:30 +0000", "2028-02-29 01:00 +0000"},
		{"no zone is UTC", []v1alpha1.TideWindow{opens("0 23 * * *", time.Hour, "")}, "2026-05-01 23:30 +0000", "2026-05-02 00:00 +0000"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			read := must.Get(Read(object("t", 80, 0, tt.windows...)))(t)
			open, until := read.Open(at(t, tt.now))
			if open != (tt.until != "") || open && !until.Equal(at(t, tt.until)) {
				t.Errorf("open %v until %v, want %q", open, until, tt.until)
			}
		})
	}
}

func TestRead_WhenBad_IsShut(t *testing.T) {
	fine := opens("* * * * *", time.Hour, "UTC")
	for name, tt := range map[string]struct {
		window v1alpha1.TideWindow
		want   string
	}{
		"no schedule":         {opens("", time.Hour, "UTC"), `spec.windows[1].schedule: ""`},
		"four fields":         {opens("0 23 * *", time.Hour, "UTC"), "spec.windows[1].schedule: \"0 23 * *\": expected exactly 5 fields"},
		"hour 24":             {opens("0 24 * * *", time.Hour, "UTC"), "as in a CronJob"},
		"a zone in it":        {opens("TZ=UTC", time.Hour, "UTC"), "set timeZone instead"},
		"every":               {opens("@every 1h", time.Hour, "UTC"), "set timeZone instead"},
		"no such zone":        {opens("0 23 * * *", time.Hour, "Mars/Base"), `spec.windows[1].timeZone: "Mars/Base": unknown time zone`},
		"the machine's zone":  {opens("0 23 * * *", time.Hour, "Local"), "differs between machines"},
		"a file":              {opens("0 23 * * *", time.Hour, "../../etc/passwd"), "spec.windows[1].timeZone"},
		"a negative duration": {opens("0 23 * * *", -time.Hour, "UTC"), "spec.windows[1].duration: -1h0m0s must be"},
	} {
		read, err := Read(object("t", 80, 40, fine, tt.window))
		if err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if l, next := Effective([]*Tide{read}, time.Unix(1e9, 0)); l.Core != 0 || l.Mem != 0 || l.Until != nil || !next.IsZero() {
			t.Errorf("%s: lends %+v, next %v", name, l, next)
		}
	}
}

func TestSelects(t *testing.T) {
	tide := object("t", 80, 0)
	labels := map[string]string{"pool": "batch", "zone": ""}
	for name, tt := range map[string]struct {
		selector map[string]string
		want     bool
	}{
		"all": {nil, true}, "one": {map[string]string{"pool": "batch"}, true}, "both": {map[string]string{"pool": "batch", "zone": ""}, true},
		"another value": {map[string]string{"pool": "web"}, false}, "another label": {map[string]string{"pool": "batch", "rack": ""}, false},
	} {
		tide.Spec.NodeSelector = tt.selector
		if read := must.Get(Read(tide))(t); read.Selects(labels) != tt.want {
			t.Errorf("%s: %v", name, !tt.want)
		}
	}
}

// truth is whether a tide is open by the definition: some start, minute by minute on the clocks of its
// zone, is less than the duration ago.
type truth struct {
	minute, hour, weekday int // -1 for each
	duration              time.Duration
	zone                  *time.Location
}

func (w truth) window() v1alpha1.TideWindow {
	field := func(n int) string { return strings.ReplaceAll(fmt.Sprint(n), "-1", "*") }
	return opens(fmt.Sprintf("%s %s * * %s", field(w.minute), field(w.hour), field(w.weekday)), w.duration, w.zone.String())
}

func (w truth) starts(at time.Time) bool {
	at = at.In(w.zone)
	is := func(field, n int) bool { return field == -1 || field == n }
	return is(w.minute, at.Minute()) && is(w.hour, at.Hour()) && is(w.weekday, int(at.Weekday()))
}

// open is for each minute from a time on whether one of the windows is open.
func open(from time.Time, minutes int, windows []truth) []bool {
	all := make([]bool, minutes)
	for _, w := range windows {
		var end time.Time
		for m := -int(w.duration / time.Minute); m < minutes; m++ {
			if at := from.Add(time.Duration(m) * time.Minute); w.starts(at) {
				end = at.Add(w.duration)
			} else if m >= 0 && !at.Before(end) {
				continue
			}
			if m >= 0 {
				all[m] = true
			}
		}
	}
	return all
}

// Random windows are open when they are by their definition, and until then, around changes of
// clocks above all.
func TestOpen_IsAsDefined(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	changes := map[string][]string{
		"Europe/Berlin": {"2026-03-29 02:00 +0100", "2026-10-25 02:00 +0100"}, "America/New_York": {"2026-03-08 02:00 -0500", "2026-11-01 01:00 -0500"},
		"America/Santiago": {"2026-04-04 23:00 -0400", "2026-09-06 00:00 -0400"}, "Asia/Shanghai": {"2026-05-01 00:00 +0800"}, "UTC": {"2026-05-01 00:00 +0000"},
		"Australia/Lord_Howe": {"2026-04-05 01:30 +1030", "2026-10-04 02:00 +1030"},
	}
	zones := slices.Sorted(maps.Keys(changes))
	any := func(n int) int {
		if r.IntN(4) == 0 {
			return -1
		}
		return r.IntN(n)
	}
	for range 600 {
		var windows []v1alpha1.TideWindow
		var truths []truth
		now := time.Time{}
		for range 1 + r.IntN(3) {
			name := zones[r.IntN(len(zones))]
			w := truth{any(60), r.IntN(5) - 1, any(7), time.Duration(1+r.IntN(40)) * 15 * time.Minute, must.Get(time.LoadLocation(name))(t)}
			truths, windows = append(truths, w), append(windows, w.window())
			now = at(t, changes[name][r.IntN(len(changes[name]))]).Add(time.Duration(r.IntN(2*24*60)-24*60) * time.Minute)
		}
		read := must.Get(Read(object("t", 80, 0, windows...)))(t)
		const minutes = 48 * 60
		want := open(now, minutes, truths)
		open, until := read.Open(now)
		end := until
		if !open {
			end = read.Next(now)
		}
		same := 0
		for same < minutes && want[same] == want[0] {
			same++
		}
		ahead := minutes
		if !end.IsZero() {
			ahead = min(ahead, int(end.Sub(now)/time.Minute))
		}
		// Far ends need not be exact.
		if open != want[0] || ahead > same || ahead < same && (!open || ahead < 24*60) {
			t.Fatalf("%+v at %v: open %v for %d minutes, want %v for %d", windows, now, open, ahead, want[0], same)
		}
	}
}

func TestEffective(t *testing.T) {
	hour := func(h int) time.Time { return time.Date(2026, 5, 1, h, 0, 0, 0, time.UTC) }
	daily := func(name string, from, to int, lend, outside v1alpha1.Percent) *Tide {
		return must.Get(Read(object(name, lend, outside, opens(fmt.Sprintf("0 %d * * *", from), time.Duration(to-from)*time.Hour, "UTC"))))(t)
	}
	type want struct {
		now, until       int // hours; until 0 for none
		is, outside, nxt int
	}
	for name, tt := range map[string]struct {
		tides []*Tide
		want  []want
	}{
		"one": {[]*Tide{daily("a", 2, 6, 80, 10)}, []want{{1, 0, 10, 10, 2}, {2, 6, 80, 10, 6}, {6, 0, 10, 10, 26}}},
		"two, the smaller wins": {[]*Tide{daily("a", 2, 6, 80, 0), daily("b", 3, 8, 50, 20)}, []want{
			{2, 6, 20, 0, 3}, {3, 6, 50, 0, 6}, {6, 0, 0, 0, 8}, {8, 0, 0, 0, 26},
		}},
		"the end of the larger changes nothing": {[]*Tide{daily("a", 2, 6, 80, 60), daily("b", 2, 8, 50, 0)}, []want{{2, 8, 50, 0, 6}}},
		"as much outside":                       {[]*Tide{daily("a", 2, 6, 50, 50)}, []want{{2, 0, 50, 50, 6}}},
		"a week":                                {[]*Tide{daily("a", 0, 167, 80, 0)}, []want{{1, 24, 80, 0, 24}, {11, 24, 80, 0, 24}, {13, 36, 80, 0, 36}}},
	} {
		for _, w := range tt.want {
			got, next := Effective(tt.tides, hour(w.now))
			amounts := func(p int) v1alpha1.TideAmounts {
				return v1alpha1.TideAmounts{Core: v1alpha1.Percent(p), Mem: v1alpha1.Percent(p)}
			}
			var until time.Time
			if w.until > 0 {
				until = hour(w.until)
			}
			if got.TideAmounts != amounts(w.is) || got.Outside != amounts(w.outside) || !got.EndsAt().Equal(until) || !next.Equal(hour(w.nxt)) {
				t.Errorf("%s at %d: %+v until %v, next %v; want %+v", name, w.now, got, got.EndsAt(), next, w)
			}
			if got.BeforeSeconds != 600 || got.GraceSeconds != 30 || len(got.Tides) != len(tt.tides) || got.Tides[0] != "a" {
				t.Errorf("%s: %+v", name, got)
			}
		}
	}
	if none, next := Effective(nil, hour(0)); none != nil || !next.IsZero() {
		t.Errorf("without tides: %+v, %v", none, next)
	}
	var many []*Tide
	for i := range 20 {
		many = append(many, daily(fmt.Sprintf("t%02d", 19-i), 2, 6, 80, 0))
	}
	if got, _ := Effective(many, hour(3)); len(got.Tides) != v1alpha1.MaxLedgerTides || got.Tides[0] != "t00" {
		t.Errorf("names %v", got.Tides)
	}
}

func BenchmarkOpen(b *testing.B) {
	var windows []v1alpha1.TideWindow
	for range 16 {
		windows = append(windows, opens("* * * * *", time.Minute, "Europe/Berlin"))
	}
	read, err := Read(object("t", 80, 0, windows...))
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		read.Open(time.Unix(1e9, 0))
	}
}
