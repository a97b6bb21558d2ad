// SPDX-License-Identifier: Apache-2.0

package grants

import (
	"fmt"
	"math/rand"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

func plan(grants ...placement.Grant) placement.Plan {
	return placement.Plan{Node: "n", Grants: grants}
}

func ledger() *v1alpha1.SliceLedger {
	return &v1alpha1.SliceLedger{
		ObjectMeta: metav1.ObjectMeta{Name: "n"},
		Status: v1alpha1.SliceLedgerStatus{Devices: []v1alpha1.DeviceStatus{
			{UUID: "GPU-0", Mem: 1000, Healthy: true}, {UUID: "GPU-1", Mem: 2000, Healthy: true}}},
	}
}

func mustGrant(t *testing.T, l *v1alpha1.SliceLedger, pod types.UID, p placement.Plan) {
	t.Helper()
	if err := Grant(l, pod, "ns/"+string(pod), p, time.Time{}); err != nil {
		t.Fatal(err)
	}
}

func TestGrantAndRelease(t *testing.T) {
	l := ledger()
	mustGrant(t, l, "a", plan(
		placement.Grant{Container: "x", UUID: "GPU-1", Core: 30, Mem: 400, Mode: v1alpha1.ModeLimiter},
		placement.Grant{Container: "i", UUID: "GPU-1", Core: 40, ReuseCore: 30, Mem: 300, ReuseMem: 300, Mode: v1alpha1.ModeLimiter}))
	mustGrant(t, l, "b", plan(placement.Grant{Container: "x", UUID: "GPU-0", Core: 100, Mem: 1000, Mode: v1alpha1.ModeExclusive}))
	want := []v1alpha1.DeviceLedger{
		{UUID: "GPU-1", Core: 100, Mem: 2000, Slices: []v1alpha1.Slice{
			{Pod: "a", Owner: "ns/a", Ctr: "x", Core: 30, Mem: 400},
			{Pod: "a", Owner: "ns/a", Ctr: "i", Core: 40, ReuseCore: 30, Mem: 300, ReuseMem: 300}}},
		{UUID: "GPU-0", Core: 100, Mem: 1000, Slices: []v1alpha1.Slice{
			{Pod: "b", Owner: "ns/b", Ctr: "x", Core: 100, Mem: 1000, Mode: v1alpha1.ModeExclusive}}},
	}
	if diff := cmp.Diff(want, l.Spec.Devices); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(map[types.UID]string{"a": "ns/a", "b": "ns/b"}, Pods(l)); diff != "" {
		t.Error(diff)
	}
	if Release(l, func(u types.UID) bool { return u == "c" }) {
		t.Error("a release of nothing changed something")
	}
	if !Release(l, func(u types.UID) bool { return u == "a" }) || len(l.Spec.Devices[0].Slices) != 0 || len(l.Spec.Devices[1].Slices) != 1 {
		t.Errorf("after the release of a: %+v", l.Spec.Devices)
	}
}

// The capacity of a device follows the node only while nothing is granted on it.
// What is lent is what slices have beyond their device, each counted once. It ends with them.
func TestLend(t *testing.T) {
	l := ledger()
	lent := func(want v1alpha1.MiB) {
		t.Helper()
		if Lend(l); l.Spec.Devices[0].Lent != want {
			t.Errorf("%d MiB are lent, want %d", l.Spec.Devices[0].Lent, want)
		}
	}
	mustGrant(t, l, "a", plan(
		placement.Grant{Container: "x", UUID: "GPU-0", Core: 30, Mem: 400, Mode: v1alpha1.ModeLimiter},
		placement.Grant{Container: "i", UUID: "GPU-0", Core: 30, ReuseCore: 30, Mem: 900, ReuseMem: 400, Mode: v1alpha1.ModeLimiter}))
	lent(0)
	mustGrant(t, l, "b", plan(placement.Grant{Container: "x", UUID: "GPU-0", Idle: 30, Mem: 100, Mode: v1alpha1.ModeLimiter}))
	lent(0)
	mustGrant(t, l, "c", plan(placement.Grant{Container: "x", UUID: "GPU-0", Idle: 30, Mem: 350, Mode: v1alpha1.ModeLimiter}))
	lent(350)
	Release(l, func(u types.UID) bool { return u == "b" })
	lent(250)
	Release(l, func(u types.UID) bool { return u == "a" })
	lent(0)
}

func TestCapacityIsTakenWithTheFirstGrant(t *testing.T) {
	l := ledger()
	g := placement.Grant{Container: "x", UUID: "GPU-0", Core: 10, Mem: 100}
	mustGrant(t, l, "a", plan(g))
	l.Status.Devices[0].Mem = 900
	mustGrant(t, l, "b", plan(g))
	if got := l.Spec.Devices[0].Mem; got != 1000 {
		t.Errorf("capacity %d changed under a slice", got)
	}
	Release(l, func(types.UID) bool { return true })
	mustGrant(t, l, "c", plan(g))
	if got := l.Spec.Devices[0].Mem; got != 900 {
		t.Errorf("capacity %d, want the node's 900", got)
	}
	if err := Grant(l, "d", "ns/d", plan(placement.Grant{UUID: "GPU-9"}), time.Time{}); err == nil {
		t.Error("a device that the node does not have took a slice")
	}
}

func TestReleaseDropsDevicesThatAreGone(t *testing.T) {
	l := ledger()
	mustGrant(t, l, "a", plan(placement.Grant{Container: "x", UUID: "GPU-0", Core: 10, Mem: 100}, placement.Grant{Container: "x", UUID: "GPU-1", Core: 10, Mem: 100}))
	l.Status.Devices = l.Status.Devices[1:]
	Release(l, func(types.UID) bool { return true })
	if len(l.Spec.Devices) != 1 || l.Spec.Devices[0].UUID != "GPU-1" {
		t.Errorf("%+v, want GPU-1 only", l.Spec.Devices)
	}
}

func TestPlacement(t *testing.T) {
	l := ledger()
	if Placement(l, "a") != nil {
		t.Error("a placement out of nothing")
	}
	mustGrant(t, l, "a", plan(placement.Grant{Container: "x", UUID: "GPU-0", Core: 10, Mem: 100, Mode: v1alpha1.ModeLimiter}, placement.Grant{Container: "x", UUID: "GPU-1", Core: 10, Mem: 100}))
	p := Placement(l, "a")
	text, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"version":"v1alpha1","node":"n","containers":{"x":{"mode":"limiter","devices":[{"uuid":"GPU-0","core":10,"memMiB":100},{"uuid":"GPU-1","core":10,"memMiB":100}]}}}`
	if text != want {
		t.Errorf("got  %s\nwant %s", text, want)
	}
}

func TestServes(t *testing.T) {
	l := ledger()
	mustGrant(t, l, "a", plan(placement.Grant{Container: "x", UUID: "GPU-0", Core: 10, Mem: 100}, placement.Grant{Container: "x", UUID: "GPU-1", Core: 10, Mem: 200}))
	mustGrant(t, l, "b", plan(placement.Grant{Container: "x", UUID: "GPU-1", Core: 30, Mem: 300}))
	percent := v1alpha1.Share{GPUs: 2, Core: 10, MemPercent: 10}
	for name, tt := range map[string]struct {
		pod        types.UID
		containers map[string]v1alpha1.Share
		want       bool
	}{
		"as granted, of devices of two sizes": {"a", map[string]v1alpha1.Share{"x": percent}, true},
		"as granted, in MiB":                  {"b", map[string]v1alpha1.Share{"x": {GPUs: 1, Core: 30, MemMiB: 300}}, true},
		"fewer devices":                       {"a", map[string]v1alpha1.Share{"x": {GPUs: 1, Core: 10, MemPercent: 10}}, false},
		"more devices":                        {"a", map[string]v1alpha1.Share{"x": {GPUs: 3, Core: 10, MemPercent: 10}}, false},
		"less core":                           {"a", map[string]v1alpha1.Share{"x": {GPUs: 2, Core: 9, MemPercent: 10}}, false},
		"more core":                           {"b", map[string]v1alpha1.Share{"x": {GPUs: 1, Core: 31, MemMiB: 300}}, false},
		"other memory, in percent":            {"a", map[string]v1alpha1.Share{"x": {GPUs: 2, Core: 10, MemPercent: 11}}, false},
		"other memory, in MiB":                {"b", map[string]v1alpha1.Share{"x": {GPUs: 1, Core: 30, MemMiB: 301}}, false},
		"the same MiB on unequal devices":     {"a", map[string]v1alpha1.Share{"x": {GPUs: 2, Core: 10, MemMiB: 100}}, false},
		"another container":                   {"a", map[string]v1alpha1.Share{"y": percent}, false},
		"one more":                            {"a", map[string]v1alpha1.Share{"x": percent, "y": {GPUs: 1, Core: 10, MemPercent: 10}}, false},
		"nothing":                             {"c", map[string]v1alpha1.Share{"x": percent}, false},
	} {
		if got := Serves(l, tt.pod, tt.containers); got != tt.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// Gone is what the two sets of pods say, in any order of devices and slices.
func TestGone(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	random := func() *v1alpha1.SliceLedger {
		if r.Intn(10) == 0 {
			return nil
		}
		l := &v1alpha1.SliceLedger{}
		for range r.Intn(4) {
			var d v1alpha1.DeviceLedger
			for range r.Intn(4) {
				d.Slices = append(d.Slices, v1alpha1.Slice{Pod: types.UID(fmt.Sprint("p", r.Intn(6))), Owner: "ns/p"})
			}
			l.Spec.Devices = append(l.Spec.Devices, d)
		}
		return l
	}
	pods := func(l *v1alpha1.SliceLedger) map[types.UID]string {
		if l == nil {
			return nil
		}
		return Pods(l)
	}
	for range 3000 {
		before, after := random(), random()
		want := map[types.UID]string{}
		for pod, owner := range pods(before) {
			if _, still := pods(after)[pod]; !still {
				want[pod] = owner
			}
		}
		got := map[types.UID]string{}
		for pod, owner := range Gone(before, after) {
			got[pod] = owner
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("before %+v, after %+v: %s", before, after, diff)
		}
	}
}

// A slice has the time of its grant, and keeps it as long as it stays on its device.
func TestSince(t *testing.T) {
	l, first, second := ledger(), time.Unix(1000, 7), time.Unix(2000, 0)
	on := func(x, y string) placement.Plan {
		return plan(placement.Grant{Container: "x", UUID: x, Core: 10, Mem: 100}, placement.Grant{Container: "y", UUID: y, Core: 10, Mem: 100})
	}
	since := func(l *v1alpha1.SliceLedger) (text string) {
		for _, d := range l.Spec.Devices {
			for _, s := range d.Slices {
				text += fmt.Sprintf("%s %s ", s.Ctr, d.UUID)
				if s.Since == nil {
					text += "nil; "
				} else {
					text += fmt.Sprintf("%d; ", s.Since.UnixNano()/1e6)
				}
			}
		}
		return text
	}
	if err := Grant(l, "a", "ns/a", on("GPU-0", "GPU-0"), first); err != nil {
		t.Fatal(err)
	}
	if got := since(l); got != "x GPU-0 1000000; y GPU-0 1000000; " {
		t.Errorf("granted: %s", got)
	}
	for name, tt := range map[string]struct {
		before *v1alpha1.SliceLedger
		keep   map[string][]placement.Has
		want   string
	}{
		"one moves":                     {l, nil, "x GPU-0 1000000; y GPU-1 2000000; "},
		"one was lost and one moves":    {ledger(), map[string][]placement.Has{"x": {{UUID: "GPU-0"}}}, "x GPU-0 nil; y GPU-1 2000000; "},
		"one is where it was all along": {l, map[string][]placement.Has{"y": {{UUID: "GPU-1"}}}, "x GPU-0 1000000; y GPU-1 nil; "},
	} {
		now := ledger()
		if err := Regrant(now, tt.before, "a", "ns/a", on("GPU-0", "GPU-1"), tt.keep, second); err != nil {
			t.Fatal(err)
		}
		if got := since(now); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
}

// Left is what the ledger before has of a device and the one after does not, of any container.
func TestLeft(t *testing.T) {
	before, after := ledger(), ledger()
	g := func(ctr, uuid string) placement.Grant {
		return placement.Grant{Container: ctr, UUID: uuid, Core: 10, Mem: 100}
	}
	mustGrant(t, before, "a", plan(g("x", "GPU-0"), g("y", "GPU-0")))
	mustGrant(t, before, "b", plan(g("x", "GPU-1")))
	mustGrant(t, before, "c", plan(g("x", "GPU-0"), g("x", "GPU-1")))
	mustGrant(t, after, "a", plan(g("x", "GPU-0"), g("y", "GPU-1"), g("z", "GPU-0")))
	mustGrant(t, after, "b", plan(g("x", "GPU-1")))
	left := ledger()
	mustGrant(t, left, "a", plan(g("y", "GPU-0")))
	mustGrant(t, left, "c", plan(g("x", "GPU-0"), g("x", "GPU-1")))
	if diff := cmp.Diff(left.Spec, Left(before, after).Spec); diff != "" {
		t.Error(diff)
	}
	if n := len(before.Spec.Devices[0].Slices); n != 3 {
		t.Errorf("the ledger before has %d slices of GPU-0, want its 3", n)
	}
}
