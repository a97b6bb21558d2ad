// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"strings"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
)

// mpsDev is a device of a node that has MPS, with slices of one kind or the other.
func mpsDev(index int32, only bool) Device {
	d := dev(index, 100, gib80)
	d.MPS, d.MPSOnly = true, only
	return d
}

// Slices in mode mps and slices in other modes are never on one device, and no node
// without MPS has any of the former.
func TestMPSKeepsToItself(t *testing.T) {
	empty, shared, others := mpsDev(0, false), mpsDev(1, true), dev(2, 100, gib80)
	cut := migDev(3)
	cut.MPS = true
	for _, c := range []struct {
		name    string
		mode    v1alpha1.Mode
		gpus    v1alpha1.DeviceCount
		devices []Device
		want    string
	}{
		{"an empty device", v1alpha1.ModeMPS, 1, []Device{empty}, "GPU-0"},
		{"beside its like", v1alpha1.ModeMPS, 1, []Device{shared}, "GPU-1"},
		{"beside others, or without MPS", v1alpha1.ModeMPS, 1, []Device{others}, ""},
		{"in MIG mode", v1alpha1.ModeMPS, 1, []Device{cut}, ""},
		{"two devices", v1alpha1.ModeMPS, 2, []Device{empty, shared}, ""},
		{"limiter, empty", v1alpha1.ModeLimiter, 1, []Device{shared, empty}, "GPU-0"},
		{"limiter, shared by MPS", v1alpha1.ModeLimiter, 1, []Device{shared}, ""},
		{"auto, shared by MPS", v1alpha1.ModeAuto, 1, []Device{shared}, ""},
		{"auto, empty: not mps", v1alpha1.ModeAuto, 1, []Device{empty}, "GPU-0"},
		{"exclusive, shared by MPS", v1alpha1.ModeExclusive, 1, []Device{shared}, ""},
	} {
		plan, ok := Fit(demand(mode(c.mode, ctr("main", App, c.gpus, 10, 10))), node("n", c.devices...))
		if ok != (c.want != "") || ok && plan.Grants[0].UUID != c.want {
			t.Errorf("%s: %+v, want %q", c.name, plan.Grants, c.want)
		}
		if ok && (plan.Grants[0].Mode == v1alpha1.ModeMPS) != (c.mode == v1alpha1.ModeMPS) {
			t.Errorf("%s: in mode %s", c.name, plan.Grants[0].Mode)
		}
	}
}

// The first slice of an empty device says which kind it takes from then on.
func TestMPSFirstComes(t *testing.T) {
	mps, limiter := demand(mode(v1alpha1.ModeMPS, ctr("main", App, 1, 10, 10))), demand(mode(v1alpha1.ModeAuto, ctr("main", App, 1, 10, 10)))
	for name, c := range map[string]struct{ first, like, other *Demand }{
		"mps": {mps, mps, limiter}, "limiter": {limiter, limiter, mps},
	} {
		n := node("n", mpsDev(0, false))
		plan, ok := Fit(c.first, n)
		if !ok {
			t.Fatalf("%s: an empty device does not take it", name)
		}
		left := n.Without(&plan)
		if _, ok := Fit(c.like, left); !ok {
			t.Errorf("%s: its like has no room beside it", name)
		}
		if _, ok := Fit(c.other, left); ok {
			t.Errorf("%s: the other kind is beside it", name)
		}
		if why := Explain(c.other, []*Node{left}).String(); !strings.Contains(why, "mps") && !strings.Contains(why, "MPS") {
			t.Errorf("%s: %s", name, why)
		}
	}
}

// An MPS server takes 48 clients, also of those that are decided on in one go.
func TestMPSTakesSoMany(t *testing.T) {
	one := demand(mode(v1alpha1.ModeMPS, ctr("main", App, 1, 1, 10)))
	n := node("n", mpsDev(0, false))
	for i := range v1alpha1.MaxMPSSlices {
		plan, ok := Fit(one, n)
		if !ok {
			t.Fatalf("slice %d finds no room", i)
		}
		n = n.Without(&plan)
	}
	if _, ok := Fit(one, n); ok {
		t.Errorf("more than %d slices", v1alpha1.MaxMPSSlices)
	}
	if why, want := Explain(one, []*Node{n}).String(), "GPU 0 has 52 % and 81,440 MiB free, and 48 slices, the most that MPS takes"; !strings.HasSuffix(why, want) {
		t.Errorf("%q, want %q", why, want)
	}
}
