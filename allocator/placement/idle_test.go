// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
)

// An idle slice needs compute and memory that are lent, and has none of what is promised. What is missing
// says how much of both the nearest device lends.
func TestIdleSlice(t *testing.T) {
	demand := &Demand{Containers: []Container{{Name: "main", Share: v1alpha1.Share{GPUs: 1, Idle: 30, MemMiB: 300}, Mode: v1alpha1.ModeLimiter}}}
	full := Device{UUID: "GPU-0", Model: "A", Mem: 1000, FreeMem: 500, FreeIdle: 70, FreeIdleMem: 400, Slots: 9}
	for name, tt := range map[string]struct {
		edit func(*Device)
		want string
	}{
		"no compute is free":    {func(*Device) {}, ""},
		"others are idle there": {func(d *Device) { d.FreeIdle = 29 }, "container main needs an idle slice of 30 % compute and 300 MiB on one GPU; nearest: n GPU 0 has 29 % and 400 MiB free for idle slices"},
		"its tide lends little": {func(d *Device) { d.FreeIdleMem = 299 }, "container main needs an idle slice of 30 % compute and 300 MiB on one GPU; nearest: n GPU 0 has 70 % and 299 MiB free for idle slices"},
		"memory is promised":    {func(d *Device) { d.FreeMem = 200 }, "container main needs an idle slice of 30 % compute and 300 MiB on one GPU; nearest: n GPU 0 has 70 % and 200 MiB free for idle slices"},
		"memory is lent":        {func(d *Device) { d.FreeMem, d.Lendable = -50, 350 }, ""},
		"too little is lent":    {func(d *Device) { d.FreeMem, d.Lendable = -50, 349 }, "container main needs an idle slice of 30 % compute and 300 MiB on one GPU; nearest: n GPU 0 has 70 % and 299 MiB free for idle slices"},
		"its tide lends less":   {func(d *Device) { d.FreeMem, d.Lendable, d.FreeIdleMem = -50, 900, 299 }, "container main needs an idle slice of 30 % compute and 300 MiB on one GPU; nearest: n GPU 0 has 70 % and 299 MiB free for idle slices"},
		"MPS":                   {func(d *Device) { d.MPSOnly = true }, "container main needs an idle slice of 30 % compute and 300 MiB on one GPU; nearest: n GPU 0 has 70 % and 400 MiB free for idle slices, and is shared by MPS, which takes no slices of other modes"},
	} {
		t.Run(name, func(t *testing.T) {
			d := full
			tt.edit(&d)
			node := &Node{Name: "n", Devices: []Device{d}}
			plan, fits := Fit(demand, node)
			if fits != (tt.want == "") {
				t.Fatalf("fits: %v", fits)
			}
			if !fits {
				if got := Explain(demand, []*Node{node}).String(); got != tt.want {
					t.Errorf("got  %s\nwant %s", got, tt.want)
				}
				return
			}
			if g := plan.Grants[0]; g.Core != 0 || g.Mem != 300 || g.Idle != 30 || g.Mode != v1alpha1.ModeLimiter {
				t.Errorf("granted %+v", g)
			}
			rest := node.Without(&plan)
			if left := rest.Devices[0]; left.FreeIdle != 40 || left.FreeIdleMem != 100 || left.FreeMem != d.FreeMem-300 || left.FreeCore != 0 || !node.Holds(&plan) || rest.Holds(&plan) {
				t.Errorf("left %+v", left)
			}
		})
	}
}

// What is lent is for idle slices alone, and none of it where room is reserved: others wait for that.
func TestLentMemory(t *testing.T) {
	share := &Demand{Containers: []Container{{Name: "main", Share: v1alpha1.Share{GPUs: 1, Core: 10, MemMiB: 1}, Mode: v1alpha1.ModeLimiter}}}
	idle := &Demand{Containers: []Container{{Name: "main", Share: v1alpha1.Share{GPUs: 1, Idle: 30, MemMiB: 300}, Mode: v1alpha1.ModeLimiter}}}
	node := &Node{Name: "n", Devices: []Device{{UUID: "GPU-0", Model: "A", Mem: 1000, FreeCore: 50, FreeMem: 0, FreeIdle: 70, FreeIdleMem: 1000, Lendable: 500, Slots: 9}}}
	if Fits(share, node) || !Fits(idle, node) {
		t.Errorf("a share fits: %v, an idle slice: %v", Fits(share, node), Fits(idle, node))
	}
	reserved := Reserved{UUID: "GPU-0", Grants: []Grant{{Container: "main", UUID: "GPU-0", Core: 10, Mem: 1}}, Leaving: Amount{Mem: 1}}
	if Fits(idle, node.Hide([]Reserved{reserved})) {
		t.Error("an idle slice takes what leaves for others")
	}
}
