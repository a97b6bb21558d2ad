// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
)

const gib80 = v1alpha1.MiB(81920)

// dev is a device of 80 GiB with that much free.
func dev(index int32, core v1alpha1.Percent, mem v1alpha1.MiB) Device {
	return Device{
		UUID: fmt.Sprintf("GPU-%d", index), Model: "NVIDIA A100-SXM4-80GB", Index: index,
		Mem: gib80, FreeCore: core, FreeMem: mem, Slots: v1alpha1.MaxSlicesPerDevice,
	}
}

func node(name string, devices ...Device) *Node { return &Node{Name: name, Devices: devices} }

// ctr is a container that needs gpus devices with core and memMiB on each.
func ctr(name string, kind Kind, gpus v1alpha1.DeviceCount, core v1alpha1.Percent, mem v1alpha1.MiB) Container {
	return Container{Name: name, Kind: kind, Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: gpus, Core: core, MemMiB: mem}}
}

func demand(containers ...Container) *Demand {
	return &Demand{Containers: containers, Policy: v1alpha1.PolicyPack}
}

// oneGPU is a demand of containers that have to be on one device.
func oneGPU(containers ...Container) *Demand {
	return &Demand{Containers: containers, Policy: v1alpha1.PolicyPack, SameGPU: true}
}

func allow(t *testing.T, list string) v1alpha1.AllowList {
	t.Helper()
	l, err := v1alpha1.ParseAllowList(list)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// short is a plan as text: node, then container@GPU core-reuse/mem-reuse.
func short(p Plan) string {
	parts := []string{p.Node}
	for _, g := range p.Grants {
		parts = append(parts, fmt.Sprintf("%s@%d %d-%d/%d-%d", g.Container, g.Index, g.Core, g.ReuseCore, g.Mem, g.ReuseMem))
	}
	return strings.Join(parts, " ")
}

func TestRank(t *testing.T) {
	a := node("a", dev(0, 100, gib80), dev(1, 40, 40000))
	b := node("b", dev(0, 35, 40000), dev(1, 100, gib80))
	spread := func(c ...Container) *Demand {
		return &Demand{Containers: c, Policy: v1alpha1.PolicySpread}
	}
	tests := []struct {
		name   string
		demand *Demand
		nodes  []*Node
		want   string
	}{
		{"pack takes the device that is left with least", demand(ctr("x", App, 1, 30, 20480)), []*Node{a, b}, "b x@0 30-0/20480-0"},
		{"spread takes the emptiest", spread(ctr("x", App, 1, 30, 20480)), []*Node{b, a}, "a x@0 30-0/20480-0"},
		{"equal nodes by name", demand(ctr("x", App, 1, 10, 1000)),
			[]*Node{node("n2", dev(0, 100, gib80)), node("n1", dev(0, 100, gib80))}, "n1 x@0 10-0/1000-0"},
		{"pack fills the fuller node when devices are equal", demand(ctr("x", App, 1, 10, 1000)),
			[]*Node{node("n1", dev(0, 50, 50000), dev(1, 100, gib80)), node("n2", dev(0, 50, 50000), dev(1, 20, 20000))},
			"n2 x@1 10-0/1000-0"},
		{"a container's devices are distinct", demand(ctr("x", App, 2, 30, 20480)), []*Node{a}, "a x@1 30-0/20480-0 x@0 30-0/20480-0"},
		{"memory without compute", demand(ctr("x", App, 1, 0, 30000)), []*Node{node("n", dev(0, 0, 30000))}, "n x@0 0-0/30000-0"},
		{"compute free, memory not", demand(ctr("x", App, 1, 10, 30000)), []*Node{node("n", dev(0, 100, 29999))}, ""},
		{"percent of each device's own memory",
			demand(Container{Name: "x", Share: v1alpha1.Share{GPUs: 1, Core: 1, MemPercent: 33}}),
			[]*Node{node("n", Device{UUID: "GPU-0", Mem: 101, FreeCore: 100, FreeMem: 101, Slots: 1})}, "n x@0 1-0/33-0"},
		{"a percent that rounds to nothing is no slice",
			demand(Container{Name: "x", Share: v1alpha1.Share{GPUs: 1, Core: 1, MemPercent: 1}}),
			[]*Node{node("n", Device{UUID: "GPU-0", Mem: 99, FreeCore: 100, FreeMem: 99, Slots: 1})}, ""},
		{"no slot left", demand(ctr("x", App, 1, 1, 1)),
			[]*Node{node("n", Device{UUID: "GPU-0", Mem: gib80, FreeCore: 100, FreeMem: gib80})}, ""},
		{"an init container reuses the app's room", demand(ctr("load", Init, 1, 30, 70000), ctr("x", App, 1, 60, 40000)),
			[]*Node{node("n", dev(0, 100, gib80), dev(1, 60, 70000))}, "n load@1 30-30/70000-40000 x@1 60-0/40000-0"},
		{"a sidecar runs beside later init containers",
			demand(ctr("first", Init, 1, 80, 100), ctr("side", Sidecar, 1, 30, 100), ctr("second", Init, 1, 70, 100), ctr("x", App, 1, 20, 100)),
			[]*Node{node("n", dev(0, 100, gib80))},
			"n first@0 80-50/100-100 side@0 30-0/100-0 second@0 70-50/100-100 x@0 20-0/100-0"},
		{"a sidecar and a later init container exceed the device",
			demand(ctr("side", Sidecar, 1, 30, 100), ctr("second", Init, 1, 71, 100)), []*Node{node("n", dev(0, 100, gib80))}, ""},
		{"containers go back when a later one finds no room",
			demand(ctr("x", App, 1, 50, 10), ctr("y", App, 1, 40, 60)),
			[]*Node{node("n", dev(0, 60, 30), dev(1, 50, 100))}, "n x@0 50-0/10-0 y@1 40-0/60-0"},
		{"exclusive wants an empty device",
			demand(Container{Name: "x", Mode: v1alpha1.ModeExclusive, Share: v1alpha1.Share{GPUs: 1, Core: 100, MemPercent: 100}}),
			[]*Node{node("n", dev(0, 100, gib80-1), dev(1, 99, gib80), dev(2, 100, gib80))}, "n x@2 100-0/81920-0"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ""
			if plans := Rank(tt.demand, tt.nodes); len(plans) > 0 {
				got = short(plans[0])
			}
			if got != tt.want {
				t.Errorf("got  %q\nwant %q", got, tt.want)
			}
		})
	}
}

func TestAllowLists(t *testing.T) {
	t4 := dev(1, 100, gib80)
	t4.Model = "Tesla T4"
	n := node("n", dev(0, 100, gib80), t4)
	for _, tt := range []struct {
		models, uuids string
		want          []int32
	}{
		{"", "", []int32{0, 1}},
		{"A100", "", []int32{0}},
		{"!A100", "", []int32{1}},
		{"", "GPU-1", []int32{1}},
		{"A100", "GPU-1", nil},
	} {
		var got []int32
		for _, d := range n.Devices {
			dm := demand(ctr("x", App, 1, 1, 1))
			dm.Models, dm.UUIDs = allow(t, tt.models), allow(t, tt.uuids)
			if _, ok := Fit(dm, node("n", d)); ok {
				got = append(got, d.Index)
			}
		}
		if !slices.Equal(got, tt.want) {
			t.Errorf("models %q, uuids %q: got %v, want %v", tt.models, tt.uuids, got, tt.want)
		}
	}
}

func TestExplain(t *testing.T) {
	full := dev(1, 25, 40960)
	nodes := []*Node{node("gpu-1", dev(0, 5, 1000)), node("gpu-2", dev(0, 100, 100), full)}
	little := dev(0, 100, 1000)
	little.Mem = 1000
	h100 := dev(0, 100, gib80)
	h100.Model = "NVIDIA H100"
	noSlots := dev(0, 100, gib80)
	noSlots.Slots = 0
	tests := []struct {
		name   string
		demand *Demand
		nodes  []*Node
		want   string
	}{
		{"one device", demand(ctr("train", App, 1, 30, 20480)), nodes,
			"container train needs 30 % compute and 20,480 MiB on one GPU; nearest: gpu-2 GPU 1 has 25 % and 40,960 MiB free"},
		{"percent on the device that comes closest",
			demand(Container{Name: "train", Share: v1alpha1.Share{GPUs: 1, Core: 30, MemPercent: 25}}), nodes,
			"container train needs 30 % compute and 20,480 MiB on one GPU; nearest: gpu-2 GPU 1 has 25 % and 40,960 MiB free"},
		{"the largest that fits nowhere is named", demand(ctr("small", App, 1, 26, 30000), ctr("big", App, 1, 90, 30000)), nodes,
			"container big needs 90 % compute and 30,000 MiB on one GPU; nearest: gpu-2 GPU 1 has 25 % and 40,960 MiB free"},
		{"several devices", demand(ctr("train", App, 2, 20, 100)), nodes[1:], ""},
		{"several devices, one does", demand(ctr("train", App, 2, 20, 1000)), nodes,
			"container train needs 20 % compute and 1,000 MiB on each of 2 GPUs of one node; nearest: gpu-2 has room on 1; the next, GPU 0, has 100 % and 100 MiB free"},
		{"more devices than there are",
			demand(Container{Name: "train", Share: v1alpha1.Share{GPUs: 3, Core: 20, MemPercent: 10}}),
			[]*Node{node("n", dev(0, 100, gib80), dev(1, 100, gib80))},
			"container train needs 20 % compute and 8,192 MiB on each of 3 GPUs of one node; nearest: n has room on 2, and no other that the pod may use"},
		{"together", demand(ctr("x", App, 1, 60, 100), ctr("y", App, 1, 60, 100)), []*Node{node("n", dev(0, 100, gib80))},
			"the containers together need 120 % compute and 200 MiB on one node, and each fits alone; nearest: n has 100 % and 81,920 MiB free on its GPUs together"},
		{"no slots", demand(ctr("x", App, 1, 1, 1)), []*Node{node("n", noSlots)},
			"container x needs 1 % compute and 1 MiB on one GPU; nearest: n GPU 0 has 100 % and 81,920 MiB free, and 256 slices, the most that a GPU takes"},
		{"larger than any", demand(ctr("x", App, 1, 10, gib80+1)), []*Node{node("m", little), node("n", dev(1, 50, gib80))},
			"container x needs 10 % compute and 81,921 MiB of a GPU, and none has so much: the largest is n GPU 1 with 81,920 MiB"},
		{"on one device", oneGPU(ctr("x", App, 1, 20, 30000), ctr("y", App, 1, 6, 30000)), nodes,
			"the containers need 26 % compute and 60,000 MiB on one GPU together, as vernier.dev/same-gpu says, and each fits alone; nearest: gpu-2 GPU 1 has 25 % and 40,960 MiB free"},
		{"on one device, one fits nowhere", oneGPU(ctr("x", App, 1, 90, 30000), ctr("y", App, 1, 6, 30000)), nodes,
			"container x needs 90 % compute and 30,000 MiB on one GPU; nearest: gpu-2 GPU 1 has 25 % and 40,960 MiB free"},
		{"on one device, larger than any", oneGPU(ctr("x", App, 1, 0, 41000), ctr("y", App, 1, 0, 41000)), []*Node{node("n", dev(0, 100, gib80), dev(1, 100, gib80))},
			"the containers need 82,000 MiB on one GPU together, as vernier.dev/same-gpu says, and none has so much: the largest is n GPU 0 with 81,920 MiB"},
		{"on one device, what does not run together", oneGPU(ctr("i", Init, 1, 26, 10), ctr("x", App, 1, 20, 10), ctr("y", App, 1, 20, 10)), []*Node{node("n", dev(0, 39, gib80), dev(1, 39, gib80))},
			"the containers need 40 % compute and 20 MiB on one GPU together, as vernier.dev/same-gpu says, and each fits alone; nearest: n GPU 0 has 39 % and 81,920 MiB free"},
		{"no node", demand(ctr("x", App, 1, 1, 1)), nil, "no node has a GPU that takes slices"},
		{"not allowed", &Demand{Containers: []Container{ctr("x", App, 1, 1, 1)}, Models: allow(t, "H100")}, nodes,
			"none of the 3 GPUs is allowed by the pod's vernier.dev/gpu-model: there are 3 x NVIDIA A100-SXM4-80GB"},
		{"neither annotation allows any", &Demand{Containers: []Container{ctr("x", App, 1, 1, 1)}, Models: allow(t, "H100"), UUIDs: allow(t, "GPU-9")}, nodes,
			"none of the 3 GPUs is allowed by the pod's vernier.dev/gpu-model and vernier.dev/gpu-uuid: there are 3 x NVIDIA A100-SXM4-80GB"},
		{"another device has room", &Demand{Containers: []Container{ctr("x", App, 1, 50, 100)}, UUIDs: allow(t, "GPU-1")}, nodes,
			"container x needs 50 % compute and 100 MiB on one GPU; nearest: gpu-2 GPU 1 has 25 % and 40,960 MiB free; gpu-2 GPU 0 has room and is excluded by vernier.dev/gpu-uuid"},
		{"a device of another model has room", &Demand{Containers: []Container{ctr("x", App, 1, 50, 100)}, Models: allow(t, "A100")}, []*Node{nodes[0], node("gpu-3", h100)},
			"container x needs 50 % compute and 100 MiB on one GPU; nearest: gpu-1 GPU 0 has 5 % and 1,000 MiB free; gpu-3 GPU 0 has room and is excluded by vernier.dev/gpu-model"},
		{"no device has room", &Demand{Containers: []Container{ctr("x", App, 1, 50, 200)}, UUIDs: allow(t, "GPU-1")}, nodes,
			"container x needs 50 % compute and 200 MiB on one GPU; nearest: gpu-2 GPU 1 has 25 % and 40,960 MiB free"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if slices.ContainsFunc(tt.nodes, func(n *Node) bool { return Fits(tt.demand, n) }) != (tt.want == "") {
				t.Fatalf("fits: %v", tt.want != "")
			}
			if tt.want == "" {
				return
			}
			if got := Explain(tt.demand, tt.nodes).String(); got != tt.want {
				t.Errorf("got  %s\nwant %s", got, tt.want)
			}
		})
	}
}

// The search on one node ends, however many ways there are to go about it.
func TestSearchIsBounded(t *testing.T) {
	node := &Node{Name: "n"}
	for i := range 24 {
		mem := v1alpha1.MiB(1000 + i) // none is like another
		node.Devices = append(node.Devices, Device{UUID: fmt.Sprint(i), Mem: mem, FreeCore: 90, FreeMem: mem, Slots: 9})
	}
	// Any twelve of the devices will do for the first, none for the second.
	demand := &Demand{Containers: []Container{
		{Name: "a", Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: 12, Core: 50, MemMiB: 100}},
		{Name: "b", Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: 1, Core: 95, MemMiB: 100}},
	}}
	s := newSearch(demand, node)
	if s.place(0) {
		t.Fatal("what does not fit was placed")
	}
	if s.steps < maxSteps || s.steps > maxSteps+100 {
		t.Errorf("%d steps, want about %d and no more", s.steps, maxSteps)
	}
	// So it does where there are many sets of devices to look in.
	for i := range node.Devices {
		node.Devices[i].Near.NVLink = 1<<24 - 1
	}
	demand.Topology = v1alpha1.TopologyRequest{Level: v1alpha1.TopologyNVLink}
	demand.Containers[1].Share = v1alpha1.Share{GPUs: 13, Core: 50, MemMiB: 100} // each has room alone
	sum, before := 0, 0
	if _, fits := within(demand, node, func(s *search) bool {
		before = s.steps
		fits := s.place(0)
		sum += s.steps - before
		return fits
	}); fits || sum > 4*maxSteps+400 {
		t.Errorf("with sets of devices: fits %t after %d steps", fits, sum)
	}
}
