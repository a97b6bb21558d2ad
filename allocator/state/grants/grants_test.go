// SPDX-License-Identifier: Apache-2.0

package grants

import (
	"fmt"
	"math/rand"
	"testing"

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
	if err := Grant(l, pod, "ns/"+string(pod), p); err != nil {
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
	if err := Grant(l, "d", "ns/d", plan(placement.Grant{UUID: "GPU-9"})); err == nil {
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
