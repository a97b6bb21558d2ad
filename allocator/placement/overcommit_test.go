// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"testing"

	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

// A burstable container has a part of its compute where the device is over-committed, and what is
// expected of all there fits. Anywhere else it has all that it asks for. Memory is never less.
func TestOvercommit(t *testing.T) {
	share := v1alpha1.Share{GPUs: 1, Core: 50, MemMiB: 300}
	burstable := Container{Name: "main", Share: share, Mode: v1alpha1.ModeLimiter, Burstable: true}
	for name, tt := range map[string]struct {
		edit      func(*Container, *Device)
		has, asks v1alpha1.Percent // nothing for a container that does not fit
	}{
		"over-committed":            {func(*Container, *Device) {}, 33, 50},
		"guaranteed":                {func(c *Container, _ *Device) { c.Burstable = false }, 50, 50},
		"not over-committed":        {func(_ *Container, d *Device) { d.OvercommitCore = 0 }, 50, 50},
		"just what is expected":     {func(_ *Container, d *Device) { d.Expected = 50 }, 33, 50},
		"more is expected":          {func(_ *Container, d *Device) { d.Expected = 51 }, 50, 50},
		"full of guarantees":        {func(_ *Container, d *Device) { d.FreeCore = 33 }, 33, 50},
		"too full":                  {func(_ *Container, d *Device) { d.FreeCore = 32 }, 0, 0},
		"expected in full, no room": {func(_ *Container, d *Device) { d.Expected, d.FreeCore = 60, 49 }, 0, 0},
		"one percent":               {func(c *Container, _ *Device) { c.Share.Core = 1 }, 1, 1},
		"resized":                   {func(c *Container, _ *Device) { c.Asked, c.Share.Core = share, 40 }, 40, 50},
		"no quota":                  {func(c *Container, _ *Device) { c.Share.Core = 0 }, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			c, d := burstable, Device{UUID: "GPU-0", Mem: 1000, FreeCore: 100, FreeMem: 1000, Slots: 9, OvercommitCore: 150}
			tt.edit(&c, &d)
			node := &Node{Name: "n", Devices: []Device{d}}
			plan, fits := Fit(&Demand{Containers: []Container{c}}, node)
			if want := tt.has > 0 || c.Share.Core == 0; fits != want {
				t.Fatalf("fits: %v", fits)
			}
			if !fits {
				return
			}
			g := plan.Grants[0]
			if g.Core != tt.has || g.Mem != 300 || g.asks() != tt.asks || (g.Asked != nil) != (tt.has < tt.asks) {
				t.Errorf("granted %+v", g)
			}
			if left := node.Without(&plan).Devices[0]; left.Expected != d.Expected+tt.asks || left.FreeCore != d.FreeCore-tt.has {
				t.Errorf("left %+v", left)
			}
		})
	}
}

// On over-committed devices a burstable pod keeps the part that it was placed with, whatever another
// would have now.
func TestGrantedDemand_Burstable(t *testing.T) {
	node := &Node{Name: "n", Devices: []Device{{UUID: "GPU-0", Mem: 1000, FreeCore: 100, FreeMem: 1000, Slots: 9, OvercommitCore: 150}}}
	for _, placed := range []v1alpha1.Percent{50, 33} {
		p := newPod(t, map[string]v1alpha1.Share{"a": {GPUs: 1, Core: 50, MemMiB: 100}})
		p.Annotations[v1alpha1.AnnotationQoS] = string(v1alpha1.QoSBurstable)
		doc := v1alpha1.Placement{Version: v1alpha1.Version, Node: "n", Containers: map[string]v1alpha1.PlacedShare{"a": {
			Mode: v1alpha1.ModeLimiter, Resized: placed < 50, Devices: []v1alpha1.PlacedDevice{{UUID: "GPU-0", Core: placed, MemMiB: 100}}}}}
		p.Annotations[v1alpha1.AnnotationPlacement] = must.Get(doc.Encode())(t)
		plan, fits := Fit(must.Get(GrantedDemand(podrequest.Of(p)))(t), node)
		if !fits || plan.Grants[0].Core != placed || plan.Grants[0].asks() != 50 {
			t.Errorf("placed with %d, granted %+v", placed, plan.Grants)
		}
	}
}
