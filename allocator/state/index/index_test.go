// SPDX-License-Identifier: Apache-2.0

package index

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/v1alpha1"
)

// ledger is a ready ledger with two devices of 1000 MiB, at a version.
func ledger(name string, version int) *v1alpha1.SliceLedger {
	l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name), ResourceVersion: strconv.Itoa(version)}}
	for i, uuid := range []string{"GPU-0", "GPU-1"} {
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: uuid, Index: int32(i), Model: "T4", Mem: 1000, Healthy: true})
	}
	l.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}}
	return l
}

func grant(t *testing.T, l *v1alpha1.SliceLedger, pod types.UID, g placement.Grant) *v1alpha1.SliceLedger {
	t.Helper()
	l = l.DeepCopy()
	g.Container = "c"
	if err := grants.Grant(l, pod, "ns/"+string(pod), placement.Plan{Node: l.Name, Grants: []placement.Grant{g}}, time.Time{}); err != nil {
		t.Fatal(err)
	}
	v, _ := strconv.Atoi(l.ResourceVersion)
	l.ResourceVersion = strconv.Itoa(v + 1)
	return l
}

func TestRoom(t *testing.T) {
	granted := grant(t, grant(t, ledger("n", 1), "a", placement.Grant{UUID: "GPU-0", Core: 30, Mem: 400}),
		"b", placement.Grant{UUID: "GPU-0", Core: 50, ReuseCore: 20, Mem: 500, ReuseMem: 100})
	edit := func(l *v1alpha1.SliceLedger, f func(*v1alpha1.SliceLedger)) *v1alpha1.SliceLedger {
		l = l.DeepCopy()
		f(l)
		return l
	}
	profiles := []v1alpha1.MIGProfile{{ID: 19, Core: 14, Mem: 100, Size: 1, Starts: []int32{0}, Max: 1}}
	cut := edit(ledger("n", 1), func(l *v1alpha1.SliceLedger) {
		l.Status.Devices[0].MIG, l.Status.Devices[0].Profiles = v1alpha1.MIGEnabled, profiles
	})
	cut = grant(t, cut, "a", placement.Grant{UUID: "GPU-0", Core: 10, Mem: 50, Mode: v1alpha1.ModeMIG, MIG: v1alpha1.MIGPlace{Profile: 19, Size: 1}})
	tests := []struct {
		name   string
		ledger *v1alpha1.SliceLedger
		want   []placement.Device
	}{
		{"what is granted is gone, less what is reused", granted, []placement.Device{
			{UUID: "GPU-0", Model: "T4", Mem: 1000, FreeCore: 40, FreeMem: 200, Slots: 254},
			{UUID: "GPU-1", Index: 1, Model: "T4", Mem: 1000, FreeCore: 100, FreeMem: 1000, Slots: 256}}},
		{"not ready", edit(granted, func(l *v1alpha1.SliceLedger) { l.Status.Conditions[0].Status = metav1.ConditionFalse }), nil},
		{"no condition", edit(granted, func(l *v1alpha1.SliceLedger) { l.Status.Conditions = nil }), nil},
		{"an unhealthy device, and one in MIG mode that nobody can cut", edit(granted, func(l *v1alpha1.SliceLedger) {
			l.Status.Devices[0].Healthy = false
			l.Status.Devices[1].MIG = v1alpha1.MIGEnabled
		}), nil},
		{"a cordoned device, another one of the node and one that is gone", edit(granted, func(l *v1alpha1.SliceLedger) {
			l.Spec.Cordons = []v1alpha1.Cordon{{UUID: "GPU-0"}, {UUID: "GPU-gone"}}
		}), []placement.Device{{UUID: "GPU-1", Index: 1, Model: "T4", Mem: 1000, FreeCore: 100, FreeMem: 1000, Slots: 256}}},
		{"a device whose MIG mode was switched on under its slices", edit(granted, func(l *v1alpha1.SliceLedger) {
			l.Status.Devices = l.Status.Devices[:1]
			l.Status.Devices[0].MIG, l.Status.Devices[0].Profiles = v1alpha1.MIGEnabled, profiles
		}), nil},
		{"a device whose MIG mode was switched off under its slices", edit(cut, func(l *v1alpha1.SliceLedger) {
			l.Status.Devices[0].MIG, l.Status.Devices = v1alpha1.MIGDisabled, l.Status.Devices[:1]
		}), nil},
		{"a device that shrank while in use", edit(granted, func(l *v1alpha1.SliceLedger) { l.Status.Devices = l.Status.Devices[:1]; l.Status.Devices[0].Mem = 900 }),
			[]placement.Device{{UUID: "GPU-0", Model: "T4", Mem: 900, FreeCore: 40, FreeMem: 100, Slots: 254}}},
		{"a device that grew while in use", edit(granted, func(l *v1alpha1.SliceLedger) { l.Status.Devices = l.Status.Devices[:1]; l.Status.Devices[0].Mem = 1100 }),
			[]placement.Device{{UUID: "GPU-0", Model: "T4", Mem: 1100, FreeCore: 40, FreeMem: 200, Slots: 254}}},
	}
	for i := range tests { // of none of these more is known than what is granted, and there are no idle slices
		for j := range tests[i].want {
			d := &tests[i].want[j]
			d.FreeIdle, d.FreeIdleMem, d.Idle = 100, d.Mem, d.FreeCore
		}
	}
	busy := v1alpha1.Percent(15)
	overcommitted := tests[:0:0]
	lent := grant(t, edit(granted, func(l *v1alpha1.SliceLedger) {
		l.Status.Devices = l.Status.Devices[:1]
		l.Status.Devices[0].ExpectedBusy = &busy
	}), "i", placement.Grant{UUID: "GPU-0", Mem: 50, Idle: 30})
	tests = append(tests, tests[0])
	tests[len(tests)-1].name, tests[len(tests)-1].ledger = "an idle slice, where less is used than granted", lent
	tests[len(tests)-1].want = []placement.Device{{UUID: "GPU-0", Model: "T4", Mem: 1000, FreeCore: 40, FreeMem: 150, FreeIdle: 70, FreeIdleMem: 950, Idle: 55, Slots: 253}}
	for name, edit := range map[string]func(*v1alpha1.SliceLedger){
		"over-committed, nothing said of use": func(l *v1alpha1.SliceLedger) { l.Status.Devices[0].ExpectedBusy = nil },
		"over-committed, slices not reported": func(*v1alpha1.SliceLedger) {},
		"over-committed, slices reported": func(l *v1alpha1.SliceLedger) {
			for _, s := range l.Spec.Devices[0].Slices {
				l.Status.Slices = append(l.Status.Slices, v1alpha1.SliceStatus{Pod: s.Pod, Ctr: s.Ctr, UUID: "GPU-0"})
			}
		},
	} {
		over := lent.DeepCopy()
		over.Spec.OvercommitCore, over.Spec.Devices[0].Slices[0].Asked = 150, &v1alpha1.Amounts{Core: 90, Mem: 1}
		edit(over)
		var asked v1alpha1.Percent
		for _, s := range over.Spec.Devices[0].Slices {
			asked += s.Of().Core
		}
		want := tests[len(tests)-1]
		want.name, want.ledger, want.want = name, over, slices.Clone(want.want)
		d := &want.want[0]
		d.OvercommitCore, d.Expected = 150, asked+busy
		switch {
		case over.Status.Devices[0].ExpectedBusy == nil:
			d.Expected, d.Idle = asked, 10
		case len(over.Status.Slices) > 0:
			d.Expected = busy
		}
		overcommitted = append(overcommitted, want)
	}
	beyond := grant(t, edit(granted, func(l *v1alpha1.SliceLedger) {
		l.Status.Devices = l.Status.Devices[:1]
		l.Status.Devices[0].Lendable = 400
	}), "i", placement.Grant{UUID: "GPU-0", Mem: 250, Idle: 30})
	tests = append(tests, tests[0])
	tests[len(tests)-1].name, tests[len(tests)-1].ledger = "an idle slice that has lent memory", beyond
	tests[len(tests)-1].want = []placement.Device{{UUID: "GPU-0", Model: "T4", Mem: 1000, FreeCore: 40, FreeMem: -50, FreeIdle: 70, FreeIdleMem: 750, Lendable: 400, Idle: 10, Slots: 253}}
	for _, tt := range append(tests, overcommitted...) {
		t.Run(tt.name, func(t *testing.T) {
			x := New()
			x.Put(tt.ledger)
			var got []placement.Device
			for _, n := range x.Room() {
				got = append(got, n.Devices...)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("got  %+v\nwant %+v", got, tt.want)
			}
		})
	}
}

// A grant just written is counted until the watch shows something newer.
func TestStaleWatchDoesNotUndoAGrant(t *testing.T) {
	x := New()
	before := ledger("n", 9)
	x.Put(before)
	written := grant(t, before, "a", placement.Grant{UUID: "GPU-0", Core: 30, Mem: 400})
	x.Put(written)
	x.Put(before.DeepCopy())
	if got := x.Ledger("n").ResourceVersion; got != "10" {
		t.Errorf("version %s, want 10: 9 is older than 10", got)
	}
	if got := x.Room()[0].Devices[0].FreeCore; got != 70 {
		t.Errorf("free %d, want 70", got)
	}
	if got := x.Holders("a"); !slices.Equal(got, []string{"n"}) {
		t.Errorf("holders %v", got)
	}
	released := before.DeepCopy()
	released.ResourceVersion = "11"
	if !x.Put(released) {
		t.Error("a release must tell that there is room")
	}
	if got := x.Holders("a"); len(got) != 0 {
		t.Errorf("holders %v after the release", got)
	}
}

// What was decided on a room is written on the ledger that showed it, or not.
func TestBehind(t *testing.T) {
	x := New()
	x.Put(ledger("m", 1))
	x.Put(ledger("n", 1))
	room := x.Room()[1]
	if got := x.Behind(room); got != x.Ledger("n") {
		t.Errorf("%+v, want the ledger of n", got)
	}
	x.Put(ledger("n", 2))
	if got := x.Behind(room); got != nil {
		t.Errorf("version %s stands for an older room", got.ResourceVersion)
	}
	x.Delete(x.Ledger("n"))
	if got := x.Behind(room); got != nil {
		t.Error("a ledger that is gone stands for its room")
	}
}

// The room of a draft counts until it was written or dropped, and nothing else of it.
func TestDraft(t *testing.T) {
	x := New()
	known := ledger("n", 1)
	x.Put(known)
	next := grant(t, known, "a", placement.Grant{UUID: "GPU-0", Core: 30, Mem: 400})
	free := func() v1alpha1.Percent { return x.Room()[0].Devices[0].FreeCore }
	if !x.Draft(known, next) || free() != 70 || x.Behind(x.Room()[0]) != known || x.Ledger("n") != known || len(x.Holders("a")) != 0 {
		t.Errorf("free %d of ledger %p, want 70 of %p, held by %v, want nobody", free(), x.Ledger("n"), known, x.Holders("a"))
	}
	x.Put(known.DeepCopy())
	if free() != 70 {
		t.Error("a repeated event took the draft back")
	}
	if !x.Drop(known) || free() != 100 {
		t.Errorf("free %d after the drop, want 100, and it to be sent", free())
	}
	x.Draft(known, next)
	newest := ledger("n", 3)
	x.Put(newest)
	if x.Draft(known, next) || x.Drop(known) || free() != 100 {
		t.Error("a draft of an old version counts")
	}
}

func TestPutTellsWhatHelps(t *testing.T) {
	x := New()
	step := func(name string, version int, want bool, edit func(*v1alpha1.SliceLedger)) {
		t.Helper()
		l := ledger("n", version)
		edit(l)
		if got := x.Put(l); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
	step("new", 1, true, func(*v1alpha1.SliceLedger) {})
	step("unchanged", 2, false, func(*v1alpha1.SliceLedger) {})
	step("unhealthy", 3, false, func(l *v1alpha1.SliceLedger) { l.Status.Devices[0].Healthy = false })
	step("healthy again", 4, true, func(*v1alpha1.SliceLedger) {})
	step("not ready", 5, false, func(l *v1alpha1.SliceLedger) { l.Status.Conditions = nil })
	step("ready again", 6, true, func(*v1alpha1.SliceLedger) {})
	step("one more device", 7, true, func(l *v1alpha1.SliceLedger) {
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: "GPU-2", Mem: 1, Healthy: true})
	})
}

func TestDelete(t *testing.T) {
	x := New()
	x.Put(grant(t, ledger("n", 1), "a", placement.Grant{UUID: "GPU-0", Core: 30, Mem: 400}))
	again := ledger("n", 20)
	again.UID = "again"
	x.Put(again)
	late := ledger("n", 10)
	x.Delete(late)
	if x.Ledger("n") == nil {
		t.Error("the late delete of an earlier ledger took the new one")
	}
	x.Delete(again)
	if x.Ledger("n") != nil || len(x.Room()) != 0 || len(x.Names()) != 0 || len(x.Holders("a")) != 0 {
		t.Error("something is left after the delete")
	}
}

// A device in MIG mode shows what is left of it to be cut; an instance that goes is
// room for those that wait.
func TestRoomOfCutDevice(t *testing.T) {
	x := New()
	l := ledger("n", 1)
	l.Status.Devices[0].MIG = v1alpha1.MIGEnabled
	l.Status.Devices[0].Profiles = []v1alpha1.MIGProfile{{ID: 19, Core: 14, Mem: 100, Size: 1, Starts: []int32{0, 1}, Max: 2}}
	l.Status.Devices[0].Instances = []v1alpha1.MIGInstance{{MIGPlace: v1alpha1.MIGPlace{Profile: 19, Start: 0, Size: 1}}}
	one := &placement.Demand{Containers: []placement.Container{{Name: "c", Mode: v1alpha1.ModeMIG, Share: v1alpha1.Share{GPUs: 1, Core: 10, MemMiB: 50}}}}
	x.Put(l)
	plan, fits := placement.Fit(one, x.Room()[0])
	if !fits || plan.Grants[0].MIG.Start != 1 {
		t.Fatalf("%+v", plan)
	}
	full := grant(t, l, "a", plan.Grants[0])
	if x.Put(full); len(x.Room()) != 1 {
		t.Fatal("the node is gone")
	}
	if plan, fits := placement.Fit(one, x.Room()[0]); fits {
		t.Errorf("Invariant 1: %+v beside %+v", plan.Grants, full.Spec)
	}
	gone := full.DeepCopy()
	gone.ResourceVersion, gone.Status.Devices[0].Instances = "3", nil
	if !x.Put(gone) {
		t.Error("an instance that is gone helps nobody")
	}
}

// What a node would have with nothing granted counts neither slices nor what runs.
func TestEmpty(t *testing.T) {
	x := New()
	used := grant(t, ledger("b", 1), "a", placement.Grant{UUID: "GPU-0", Core: 30, Mem: 400})
	used.Status.Slices = []v1alpha1.SliceStatus{{Pod: "a", Ctr: "c", UUID: "GPU-0"}, {Pod: "lost", Ctr: "c", UUID: "GPU-1"}}
	away := ledger("c", 1)
	away.Status.Conditions = nil
	for _, l := range []*v1alpha1.SliceLedger{used, ledger("a", 1), away} {
		x.Put(l)
	}
	nodes := x.Empty()
	if len(nodes) != 2 || nodes[0].Name != "a" || nodes[1].Name != "b" {
		t.Fatalf("nodes %+v, want a and b", nodes)
	}
	for _, d := range nodes[1].Devices {
		if d.FreeCore != 100 || d.FreeMem != 1000 {
			t.Errorf("%s has %d + %d free, want all", d.UUID, d.FreeCore, d.FreeMem)
		}
	}
	if len(nodes[1].Devices) != 2 || x.Ledger("b") != used || len(used.Status.Slices) != 2 {
		t.Error("the ledger itself was changed, or a device is missing")
	}
}

// Slices in mode mps make a device theirs until the last is gone.
func TestRoomOfMPSDevice(t *testing.T) {
	l := ledger("n", 1)
	if d := Room(l).Devices[0]; d.MPS || d.MPSOnly {
		t.Errorf("on a node without MPS: %+v", d)
	}
	l.Status.Driver.MPS = true
	empty := Room(l)
	if d := empty.Devices[0]; !d.MPS || d.MPSOnly {
		t.Errorf("empty: %+v", d)
	}
	shared := Room(grant(t, l, "a", placement.Grant{UUID: "GPU-0", Core: 10, Mem: 10, Mode: v1alpha1.ModeMPS}))
	if d := shared.Devices[0]; !d.MPSOnly || d.Slots != v1alpha1.MaxMPSSlices-1 {
		t.Errorf("with a slice in mode mps: %+v", d)
	}
	limited := Room(grant(t, l, "a", placement.Grant{UUID: "GPU-0", Core: 10, Mem: 10, Mode: v1alpha1.ModeLimiter}))
	if d := limited.Devices[0]; d.MPS || d.MPSOnly {
		t.Errorf("with a slice of another mode: %+v", d)
	}
	if !roomier(shared, empty) || !roomier(limited, empty) || roomier(empty, shared) {
		t.Error("a device that is empty again helps those who wait")
	}
}

// In which order nodes are taken in decides between those that are equally good: it is
// always the same.
func TestChangedIsSorted(t *testing.T) {
	x := New()
	var want []string
	for i := range 20 {
		want = append(want, fmt.Sprintf("n%02d", i))
		x.Put(ledger(want[i], 1))
	}
	if got := x.Changed(); !slices.Equal(got, want) {
		t.Errorf("%v, want them sorted", got)
	}
}

// Who waits is told which nodes and GPUs are kept back, by whom and why.
func TestWithheld(t *testing.T) {
	l := func(name string, conditions ...metav1.Condition) *v1alpha1.SliceLedger {
		l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: name}}
		l.Status.Conditions, l.Status.Devices = conditions, []v1alpha1.DeviceStatus{{UUID: "GPU-a", Index: 3}}
		return l
	}
	ready := metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue}
	cordoned := l("c", ready)
	cordoned.Spec.Cordons = []v1alpha1.Cordon{{UUID: "GPU-a", By: "ann", Reason: "fans"}, {UUID: "GPU-elsewhere"}}
	for want, all := range map[string][]*v1alpha1.SliceLedger{
		"": {l("a", ready)},
		"2 node(s) grant nothing now, such as a: its pod crashes": {l("b"),
			l("a", ready, metav1.Condition{Type: v1alpha1.ConditionAgentReachable, Status: metav1.ConditionFalse, Message: "its pod crashes"})},
		"1 node(s) grant nothing now, such as b: NVMLFailed; 1 GPU(s) are cordoned, such as c GPU 3, cordoned by ann: fans": {cordoned, l("a", ready),
			l("b", metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "NVMLFailed"})},
	} {
		if got := Withheld(slices.Values(all)); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
