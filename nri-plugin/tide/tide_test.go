// SPDX-License-Identifier: Apache-2.0

package tide

import (
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/api/v1alpha1"
)

func TestDecide(t *testing.T) {
	began := time.Date(2026, 5, 1, 23, 0, 0, 0, time.UTC)
	ends := began.Add(8 * time.Hour)
	lends := func(lend, outside v1alpha1.TideAmounts) *v1alpha1.LedgerTide {
		return &v1alpha1.LedgerTide{TideAmounts: lend, Since: metav1.NewTime(began), Until: &metav1.Time{Time: ends}, Outside: outside, GraceSeconds: 30}
	}
	amounts := func(core, mem v1alpha1.Percent) v1alpha1.TideAmounts {
		return v1alpha1.TideAmounts{Core: core, Mem: mem}
	}
	slice := func(pod string, idle v1alpha1.Percent, mem v1alpha1.MiB, after time.Duration) Slice {
		return Slice{Pod: types.UID(pod), Ctr: "main", Idle: idle, Mem: mem, Since: began.Add(after)}
	}
	night := lends(amounts(80, 80), amounts(0, 0))
	some := lends(amounts(80, 80), amounts(30, 30))
	three := []Device{
		{UUID: "A", Mem: 1000, Slices: []Slice{slice("old", 20, 100, time.Minute), slice("young", 30, 100, time.Hour), slice("middle", 10, 100, time.Minute*2)}},
		{UUID: "B", Mem: 1000, Slices: []Slice{slice("other", 30, 300, time.Minute)}},
		{UUID: "C", Mem: 1000},
	}
	large := []Device{{UUID: "A", Mem: 1000, Slices: []Slice{slice("small", 1, 100, 0), slice("large", 1, 400, time.Minute), slice("none", 1, 1, time.Hour)}}}
	for name, tt := range map[string]struct {
		tide      *v1alpha1.LedgerTide
		devices   []Device
		at        time.Duration // of the end
		skew      time.Duration
		shut, end string
	}{
		"no tide":                        {nil, three, time.Hour, time.Hour, "", ""},
		"open":                           {night, three, -time.Second, 0, "", ""},
		"at the end":                     {night, three, 0, 0, "A/young A/middle A/old B/other", ""},
		"just within the grace":          {night, three, 30*time.Second - 1, 0, "A/young A/middle A/old B/other", ""},
		"the grace is over":              {night, three, 30 * time.Second, 0, "A/young A/middle A/old B/other", "A/young A/middle A/old B/other"},
		"a day later":                    {night, three, 24 * time.Hour, 0, "A/young A/middle A/old B/other", "A/young A/middle A/old B/other"},
		"some stay outside":              {some, three, time.Hour, 0, "A/young", "A/young"},
		"by memory":                      {some, large, time.Hour, 0, "A/none A/large", "A/none A/large"},
		"more than it lends":             {lends(amounts(50, 80), amounts(0, 0)), three, -time.Second, 0, "A/young", "A/young"},
		"more, of late":                  {&v1alpha1.LedgerTide{TideAmounts: amounts(50, 80), Since: metav1.NewTime(ends.Add(-10 * time.Second)), GraceSeconds: 30}, three, 0, 0, "A/young", ""},
		"a wrong clock":                  {night, three, -time.Hour, time.Minute, "A/young A/middle A/old B/other", ""},
		"a wrong clock, outside":         {some, three, -time.Hour, -time.Minute, "A/young", ""},
		"a wrong clock, at last":         {night, three, time.Minute, -time.Hour, "A/young A/middle A/old B/other", "A/young A/middle A/old B/other"},
		"more outside than it lends now": {lends(amounts(10, 10), amounts(30, 30)), three[:1], -time.Hour, time.Hour, "A/young A/middle A/old", "A/young A/middle A/old"},
	} {
		shut, end := Decide(tt.tide, tt.devices, servertime.Reading{Now: ends.Add(tt.at), Skew: tt.skew, Known: true})
		names := func(all []On) string {
			var names []string
			for _, s := range all {
				names = append(names, s.UUID+"/"+string(s.Pod))
			}
			return strings.Join(names, " ")
		}
		if names(shut) != tt.shut || names(end) != tt.end {
			t.Errorf("%s: shuts %q and ends %q, want %q and %q", name, names(shut), names(end), tt.shut, tt.end)
		}
		for _, s := range end {
			if !slices.Contains(shut, s) {
				t.Errorf("%s: ends %v, which is not shut", name, s)
			}
		}
	}
	if three[0].Slices[0].Pod != "old" {
		t.Error("the slices of a device were sorted")
	}
}

func TestIdle(t *testing.T) {
	since := metav1.NewTime(time.Unix(1e9, 0))
	spec := &v1alpha1.SliceLedgerSpec{Devices: []v1alpha1.DeviceLedger{
		{UUID: "A", Mem: 1000, Slices: []v1alpha1.Slice{{Pod: "share", Core: 50, Mem: 500}, {Pod: "idle", Ctr: "main", Idle: 30, Mem: 200, Since: &since}}},
		{UUID: "B", Mem: 1000, Slices: []v1alpha1.Slice{{Pod: "share", Core: 50, Mem: 500}}},
		{UUID: "C", Mem: 2000, Slices: []v1alpha1.Slice{{Pod: "lost", Ctr: "main", Idle: 10, Mem: 100, ReuseMem: 40}}},
	}}
	want := []Device{
		{UUID: "A", Mem: 1000, Slices: []Slice{{Pod: "idle", Ctr: "main", Idle: 30, Mem: 200, Since: since.Time}}},
		{UUID: "C", Mem: 2000, Slices: []Slice{{Pod: "lost", Ctr: "main", Idle: 10, Mem: 60}}},
	}
	if got := Idle(spec); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func BenchmarkDecide(b *testing.B) {
	now := servertime.Reading{Now: time.Unix(1e9, 0), Known: true}
	tide := &v1alpha1.LedgerTide{TideAmounts: v1alpha1.TideAmounts{Core: 80, Mem: 80}, Since: metav1.NewTime(now.Now)}
	devices := make([]Device, 8)
	for i := range devices {
		devices[i] = Device{UUID: "GPU", Mem: 80_000, Slices: make([]Slice, 4)}
	}
	for b.Loop() {
		Decide(tide, devices, now)
	}
}
