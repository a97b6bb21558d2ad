// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
)

var testLevels = []v1alpha1.TopologyLevel{v1alpha1.TopologyNVLink, v1alpha1.TopologyPCIe, v1alpha1.TopologyNUMA, v1alpha1.TopologyRDMA}

// setBit is a device's word of the level.
func setBit(n *v1alpha1.Near, level v1alpha1.TopologyLevel) *uint32 {
	return map[v1alpha1.TopologyLevel]*uint32{v1alpha1.TopologyNVLink: &n.NVLink, v1alpha1.TopologyPCIe: &n.PCIe,
		v1alpha1.TopologyNUMA: &n.NUMA, v1alpha1.TopologyRDMA: &n.RDMA}[level]
}

// nearby gives the node random sets: of each level none or some, which may overlap. It
// returns them as positions.
func nearby(r *rand.Rand, n *Node) map[v1alpha1.TopologyLevel][][]int {
	sets := map[v1alpha1.TopologyLevel][][]int{}
	for _, level := range testLevels {
		for k := range r.Intn(4) {
			if level == v1alpha1.TopologyRDMA && k > 0 {
				break
			}
			var set []int
			for d := range n.Devices {
				if r.Intn(2) == 0 {
					set = append(set, d)
					*setBit(&n.Devices[d].Near, level) |= 1 << k
				}
			}
			if len(set) > 0 {
				sets[level] = append(sets[level], set)
			}
		}
	}
	return sets
}

// topologyCase is a small pod with a wish, and a node of up to four devices with sets.
func topologyCase(r *rand.Rand) (*Demand, *Node, map[v1alpha1.TopologyLevel][][]int) {
	d, n := randomCase(r)
	d.Containers = d.Containers[:min(len(d.Containers), 3)]
	for i := range d.Containers {
		d.Containers[i].Share.Core /= 2
	}
	for len(n.Devices) < 4 && r.Intn(3) > 0 {
		dev := n.Devices[r.Intn(len(n.Devices))]
		dev.UUID, dev.Index = string(rune('a'+len(n.Devices))), int32(len(n.Devices))
		if r.Intn(2) == 0 {
			dev.FreeCore, dev.FreeMem, dev.Slots = v1alpha1.WholeGPU, dev.Mem, v1alpha1.MaxSlicesPerDevice
		}
		n.Devices = append(n.Devices, dev)
	}
	return d, n, nearby(r, n)
}

// allowedSets are those of which the pod has to be within one at the level.
func allowedSets(d *Demand, n *Node, level v1alpha1.TopologyLevel, sets map[v1alpha1.TopologyLevel][][]int) [][]int {
	all := slices.Clone(sets[level])
	one := !slices.ContainsFunc(d.Containers, func(c Container) bool { return c.Share.GPUs > 1 })
	if level != v1alpha1.TopologyRDMA && one {
		for i := range n.Devices {
			if d.SameGPU || len(d.Containers) == 1 || !slices.ContainsFunc(sets[level], func(set []int) bool { return slices.Contains(set, i) }) {
				all = append(all, []int{i})
			}
		}
	}
	return all
}

// only is the node with no room but on these devices.
func only(n *Node, devices []int) *Node {
	m := &Node{Name: n.Name, Devices: slices.Clone(n.Devices)}
	for i := range m.Devices {
		if !slices.Contains(devices, i) {
			m.Devices[i].Slots = 0
		}
	}
	return m
}

// devicesOf are the positions of the plan's devices.
func devicesOf(n *Node, plan *Plan) (devices []int) {
	for _, g := range plan.Grants {
		i := slices.IndexFunc(n.Devices, func(d Device) bool { return d.UUID == g.UUID })
		if !slices.Contains(devices, i) {
			devices = append(devices, i)
		}
	}
	return devices
}

// wholeAfter counts the sets of which no device is in use once those are.
func wholeAfter(n *Node, used []int, sets map[v1alpha1.TopologyLevel][][]int) (whole int) {
	for level, of := range sets {
		for _, set := range of {
			if level != v1alpha1.TopologyRDMA && !slices.ContainsFunc(set, func(d int) bool {
				return slices.Contains(used, d) || n.Devices[d].FreeCore < v1alpha1.WholeGPU || n.Devices[d].FreeMem < n.Devices[d].Mem
			}) {
				whole++
			}
		}
	}
	return whole
}

// A pod that requires a level is placed if and only if some choice of devices within one set
// holds, and of the sets that would do it gets one that leaves most sets wholly free.
func TestFitWithinASet(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	fits, choices := 0, 0
	const cases = 10_000
	for range cases {
		d, n, sets := topologyCase(r)
		level := testLevels[r.Intn(len(testLevels))]
		d.Topology = v1alpha1.TopologyRequest{Level: level, Required: true}
		bare := *d
		bare.Topology = v1alpha1.TopologyRequest{}
		want, most, able := false, -1, 0
		for _, set := range allowedSets(d, n, level, sets) {
			in := only(n, set)
			if !bruteForce(&bare, in, nil) {
				continue
			}
			want = true
			able++
			plan, ok := Fit(&bare, in)
			if !ok {
				t.Fatalf("%+v on %+v: nothing within %v", d, n, set)
			}
			most = max(most, wholeAfter(n, devicesOf(n, &plan), sets))
		}
		plan, ok := Fit(d, n)
		if ok != want || Fits(d, n) != want {
			t.Fatalf("%+v on %+v with %v: fits %v, a look says %v, want %v", d, n, sets, ok, Fits(d, n), want)
		}
		if !ok {
			if text := Explain(d, []*Node{n}).String(); text == "" {
				t.Fatal("no explanation")
			}
			continue
		}
		fits++
		if able > 1 {
			choices++
		}
		checkPlan(t, d, n, plan)
		used := devicesOf(n, &plan)
		if !slices.ContainsFunc(allowedSets(d, n, level, sets), func(set []int) bool {
			return !slices.ContainsFunc(used, func(d int) bool { return !slices.Contains(set, d) })
		}) {
			t.Fatalf("%+v on %+v with %v: %v is within no set", d, n, sets, used)
		}
		// A pod on one device takes it by room first.
		if got := wholeAfter(n, used, sets); got < most && d.Levels() != nil {
			t.Fatalf("%+v on %+v with %v: %v leaves %d sets wholly free, of another set it is %d", d, n, sets, used, got, most)
		}
	}
	if fits < cases/10 || fits > cases*9/10 || choices < cases/50 {
		t.Errorf("%d of %d cases fit, %d with a choice: the test no longer looks at both", fits, cases, choices)
	}
}

// A pod that prefers a level has the nearest that is to be had, and fits where it would without.
func TestFitPrefers(t *testing.T) {
	r := rand.New(rand.NewSource(4))
	for range 5_000 {
		d, n, sets := topologyCase(r)
		d.Topology = v1alpha1.TopologyRequest{Level: testLevels[r.Intn(len(testLevels))]}
		plan, ok := Fit(d, n)
		if want := bruteForce(d, n, nil); ok != want {
			t.Fatalf("%+v on %+v: fits %v, want %v", d, n, ok, want)
		}
		if !ok || d.Levels() == nil {
			continue
		}
		checkPlan(t, d, n, plan)
		levels := d.Topology.Levels()
		first := slices.IndexFunc(levels, func(l v1alpha1.TopologyLevel) bool { return Fits(d.At(l), n) })
		if plan.level != first {
			t.Fatalf("%+v on %+v with %v: the plan has level %d, want %s", d, n, sets, plan.level, levels[first])
		}
	}
}

// The node of the asked level goes before the fuller one.
func TestRankByLevel(t *testing.T) {
	node := func(name string, free v1alpha1.Percent, near ...v1alpha1.Near) *Node {
		n := &Node{Name: name}
		for i, of := range near {
			n.Devices = append(n.Devices, Device{UUID: fmt.Sprint(name, i), Index: int32(i), Mem: 100, FreeCore: free, FreeMem: 100, Slots: 9, Near: of})
		}
		return n
	}
	nodes := []*Node{
		node("fuller", 60, v1alpha1.Near{}, v1alpha1.Near{}),
		node("numa", 80, v1alpha1.Near{NUMA: 1}, v1alpha1.Near{NUMA: 1}),
		node("linked", 100, v1alpha1.Near{NVLink: 1}, v1alpha1.Near{NVLink: 1}),
	}
	d := &Demand{Containers: []Container{{Name: "c", Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: 2, Core: 50, MemMiB: 10}}}}
	for text, want := range map[string]string{
		"": "fuller numa linked", "nvlink": "linked numa fuller", "pcie": "numa fuller linked", "numa": "numa fuller linked", "nvlink:required": "linked", "rdma": "fuller numa linked", "pcie:required": "",
	} {
		d.Topology, _ = v1alpha1.ParseTopology(text)
		got := ""
		for _, p := range Rank(d, nodes) {
			got += " " + p.Node
		}
		if got != "" {
			got = got[1:]
		}
		if got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// eight are devices in pairs, two pairs to a NUMA node, all linked, with so much free.
func eight(free ...v1alpha1.Percent) *Node {
	n := &Node{Name: "n"}
	for i, f := range free {
		n.Devices = append(n.Devices, Device{UUID: fmt.Sprint("g", i), Index: int32(i), Mem: 100, FreeCore: f, FreeMem: v1alpha1.MiB(f), Slots: 9,
			Near: v1alpha1.Near{NUMA: 1 << (i / 4), PCIe: 1 << (i / 2), NVLink: 1}})
	}
	return n
}

// Sets stay whole: what is as good to take is taken where others are in use already.
func TestSetsStayWhole(t *testing.T) {
	const free, used = 100, 0
	for name, c := range map[string]struct {
		node *Node
		gpus v1alpha1.DeviceCount
		wish string
		want []int
	}{
		"one beside what is in use":           {eight(free, free, free, free, free, used, free, free), 1, "", []int{4}},
		"one in the NUMA node in use":         {eight(free, free, free, free, used, used, free, free), 1, "", []int{6}},
		"two make a pair":                     {eight(free, free, free, free, free, used, free, free), 2, "pcie", []int{6, 7}},
		"two anywhere, the broken pair first": {eight(free, free, free, free, free, used, free, used), 2, "", []int{4, 6}},
		"two on one NUMA node":                {eight(free, free, free, used, free, free, free, free), 2, "numa", []int{2, 0}},
		"four on a NUMA node that is whole":   {eight(free, free, free, used, free, free, free, free), 4, "numa", []int{4, 5, 6, 7}},
		"four anywhere that are linked":       {eight(free, free, free, used, free, free, free, free), 4, "nvlink", []int{2, 0, 1, 4}},
	} {
		d := &Demand{Containers: []Container{{Name: "c", Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: c.gpus, Core: 100, MemPercent: 100}}}}
		d.Topology, _ = v1alpha1.ParseTopology(c.wish)
		plan, ok := Fit(d, c.node)
		if got := devicesOf(c.node, &plan); !ok || !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}

// Containers that have their devices keep the others near these.
func TestRefitWithinASet(t *testing.T) {
	n := eight(100, 100, 100, 100, 100, 100, 100, 100)
	d := &Demand{Containers: []Container{
		{Name: "a", Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: 1, Core: 100, MemPercent: 100}},
		{Name: "b", Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: 1, Core: 100, MemPercent: 100}}}}
	has := map[string][]Has{"a": {{UUID: "g5"}}}
	for wish, want := range map[string]int{"pcie:required": 4, "pcie": 4} {
		d.Topology, _ = v1alpha1.ParseTopology(wish)
		plan, ok := Refit(d, n, has)
		if got := devicesOf(n, &plan); !ok || !slices.Equal(got, []int{5, want}) {
			t.Errorf("%s: %v", wish, got)
		}
	}
	n.Devices[4].Slots = 0
	d.Topology, _ = v1alpha1.ParseTopology("pcie")
	if plan, ok := Refit(d, n, has); !ok || !slices.Equal(devicesOf(n, &plan), []int{5, 6}) {
		t.Errorf("one that prefers its pair does not go on: %v %v", ok, plan)
	}
	d.Topology.Required = true
	if plan, ok := Refit(d, n, has); ok {
		t.Errorf("one that requires its pair got %v", devicesOf(n, &plan))
	}
	if _, ok := Rebook(d, n, map[string][]Has{"a": {{UUID: "g5"}}, "b": {{UUID: "g0"}}}); !ok {
		t.Error("what runs apart cannot be written down")
	}
}

// Containers do not come together where that is less near to the pod's others.
func TestTogetherKeepsTheLevel(t *testing.T) {
	n := eight(100, 100, 100, 100, 100, 50, 100, 100)
	d := &Demand{Containers: []Container{
		{Name: "a", Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: 2, Core: 100, MemPercent: 100}},
		{Name: "b", Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: 1, Core: 60, MemPercent: 10}},
		{Name: "c", Mode: v1alpha1.ModeLimiter, Share: v1alpha1.Share{GPUs: 1, Core: 40, MemPercent: 10}}}}
	d.Topology, _ = v1alpha1.ParseTopology("numa:required")
	plan, ok := Fit(d, n)
	if !ok {
		t.Fatal("does not fit")
	}
	for _, other := range together(d, n, &plan) {
		if used := devicesOf(n, &other); slices.ContainsFunc(used, func(i int) bool { return i/4 != used[0]/4 }) {
			t.Errorf("brought together on %v", used)
		}
	}
}
