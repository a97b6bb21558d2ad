// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"fmt"
	"math/rand"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/api/cause"
	"vernier.dev/vernier/api/v1alpha1"
)

// h200 is what NVML says of an H200: percent, MiB, memory slices and starts.
var h200 = []v1alpha1.MIGProfile{
	{ID: 19, Core: 14, Mem: 16384, Size: 1, Starts: []int32{0, 1, 2, 3, 4, 5, 6}, Max: 7},
	{ID: 20, Core: 14, Mem: 16384, Size: 1, Starts: []int32{0, 1, 2, 3, 4, 5, 6}, Max: 1},
	{ID: 15, Core: 14, Mem: 33024, Size: 2, Starts: []int32{0, 2, 4, 6}, Max: 4},
	{ID: 14, Core: 28, Mem: 33024, Size: 2, Starts: []int32{0, 2, 4}, Max: 3},
	{ID: 9, Core: 42, Mem: 71424, Size: 4, Starts: []int32{0, 4}, Max: 2},
	{ID: 5, Core: 57, Mem: 71424, Size: 4, Starts: []int32{0}, Max: 1},
	{ID: 0, Core: 100, Mem: 143360, Size: 8, Starts: []int32{0}, Max: 1},
}

const h200Mem = v1alpha1.MiB(143360)

// migDev is an H200 in MIG mode.
func migDev(index int32, instances ...v1alpha1.MIGInstance) Device {
	d := dev(index, 100, h200Mem)
	d.Mem, d.Cut = h200Mem, NewCut(h200, instances, nil)
	return d
}

func mode(m v1alpha1.Mode, c Container) Container {
	c.Mode = m
	return c
}

func at(g Grant) string { return fmt.Sprintf("%d@%d", g.MIG.Profile, g.MIG.Start) }

// A share goes onto the smallest instance that holds it, at the place that leaves
// the largest instances possible.
func TestInstanceOf(t *testing.T) {
	for _, c := range []struct {
		core v1alpha1.Percent
		mem  v1alpha1.MiB
		want string
	}{
		{14, 16384, "19@6"}, {1, 1, "19@6"}, {0, 16384, "19@6"},
		{20, 16384, "14@4"}, // more compute than the smallest has
		{10, 18000, "15@6"}, // more memory
		{28, 33024, "14@4"}, {29, 1, "9@4"}, {43, 1, "5@0"}, {58, 1, "0@0"}, {100, 143360, "0@0"},
	} {
		plan, ok := Fit(demand(mode(v1alpha1.ModeMIG, ctr("main", App, 1, c.core, c.mem))), node("n", migDev(0)))
		if !ok || at(plan.Grants[0]) != c.want || plan.Grants[0].Mode != v1alpha1.ModeMIG || plan.Grants[0].Core != c.core {
			t.Errorf("%d core + %d MiB: %+v, want %s", c.core, c.mem, plan.Grants, c.want)
		}
	}
}

// One after the other, small instances leave room for large ones as long as there
// can be any.
func TestInstancesInTurn(t *testing.T) {
	for _, c := range []struct {
		cores []v1alpha1.Percent
		want  string
	}{
		{[]v1alpha1.Percent{10, 10, 10, 57}, "19@6 19@4 19@5 5@0"},
		{[]v1alpha1.Percent{20, 20, 20}, "14@4 14@0 14@2"},
		{[]v1alpha1.Percent{10, 20, 57}, "19@6 14@4 5@0"},
		{[]v1alpha1.Percent{42, 57, 1}, "9@4 5@0 -"},
		{[]v1alpha1.Percent{10, 10, 10, 10, 10, 10, 10, 10}, "19@6 19@4 19@5 19@0 19@1 19@2 19@3 -"},
	} {
		n := node("n", migDev(0))
		var got []string
		for _, core := range c.cores {
			plan, ok := Fit(demand(mode(v1alpha1.ModeAuto, ctr("main", App, 1, core, 1))), n)
			if !ok {
				got = append(got, "-")
				continue
			}
			got = append(got, at(plan.Grants[0]))
			n = n.Without(&plan)
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%v: %v, want %s", c.cores, got, c.want)
		}
	}
}

// Instances of others are used where they are and are in the way of what would
// overlap them; ours go by themselves.
func TestInstancesThatAreThere(t *testing.T) {
	there := func(profile, start, size int32, uuid string, own bool) v1alpha1.MIGInstance {
		return v1alpha1.MIGInstance{MIGPlace: v1alpha1.MIGPlace{Profile: profile, Start: start, Size: size}, UUID: uuid, Own: own}
	}
	for name, c := range map[string]struct {
		there v1alpha1.MIGInstance
		core  v1alpha1.Percent
		want  string
	}{
		"used":                {there(19, 2, 1, "MIG-x", false), 10, "19@2"},
		"in the way":          {there(19, 2, 1, "MIG-x", false), 57, ""},
		"beside it":           {there(19, 2, 1, "MIG-x", false), 42, "9@4"},
		"cut up further":      {there(19, 6, 1, "", false), 10, "19@4"},
		"ours":                {there(19, 2, 1, "MIG-x", true), 57, "5@0"},
		"the kind's only one": {there(5, 0, 4, "", false), 57, ""},
	} {
		plan, ok := Fit(demand(mode(v1alpha1.ModeMIG, ctr("main", App, 1, c.core, 1))), node("n", migDev(0, c.there)))
		if ok != (c.want != "") || ok && at(plan.Grants[0]) != c.want {
			t.Errorf("%s: %+v, want %q", name, plan.Grants, c.want)
		}
	}
}

// auto takes an instance where there is one, on the node and among nodes, and every
// mode keeps to its devices.
func TestModeOfDevice(t *testing.T) {
	plain := dev(1, 100, gib80)
	both, whole := node("both", plain, migDev(0)), node("a-plain", dev(0, 100, gib80))
	for _, c := range []struct {
		mode v1alpha1.Mode
		gpus v1alpha1.DeviceCount
		want v1alpha1.Mode
		on   string
	}{
		{v1alpha1.ModeAuto, 1, v1alpha1.ModeMIG, "GPU-0"}, {v1alpha1.ModeMIG, 1, v1alpha1.ModeMIG, "GPU-0"},
		{v1alpha1.ModeLimiter, 1, v1alpha1.ModeLimiter, "GPU-1"}, {v1alpha1.ModeExclusive, 1, v1alpha1.ModeExclusive, "GPU-1"},
		{v1alpha1.ModeAuto, 2, "", ""}, {v1alpha1.ModeMIG, 2, "", ""},
	} {
		plan, ok := Fit(demand(mode(c.mode, ctr("main", App, c.gpus, 10, 1000))), both)
		if ok != (c.want != "") || ok && (plan.Grants[0].Mode != c.want || plan.Grants[0].UUID != c.on) {
			t.Errorf("%s over %d: %+v, want %s on %s", c.mode, c.gpus, plan.Grants, c.want, c.on)
		}
	}
	if plans := Rank(demand(mode(v1alpha1.ModeAuto, ctr("main", App, 1, 10, 1000))), []*Node{whole, both}); len(plans) != 2 || plans[0].Node != "both" {
		t.Errorf("%+v", plans)
	}
}

// An instance is one container's for the life of the pod: no init container borrows
// it, and nothing is booked as reused.
func TestInstancesAreNotReused(t *testing.T) {
	d := demand(mode(v1alpha1.ModeMIG, ctr("init", Init, 1, 42, 1)), mode(v1alpha1.ModeMIG, ctr("main", App, 1, 57, 1)))
	plan, ok := Fit(d, node("n", migDev(0)))
	if !ok || at(plan.Grants[0]) != "9@4" || at(plan.Grants[1]) != "5@0" || plan.Grants[0].ReuseCore != 0 || plan.Grants[0].ReuseMem != 0 {
		t.Errorf("%+v", plan.Grants)
	}
	d.Containers[0].Share.Core = 57
	if plan, ok := Fit(d, node("n", migDev(0))); ok {
		t.Errorf("%+v", plan.Grants)
	}
}

// What runs is booked where it runs, and the rest beside it.
func TestRebookInstances(t *testing.T) {
	d := demand(mode(v1alpha1.ModeMIG, ctr("big", App, 1, 42, 1)), mode(v1alpha1.ModeMIG, ctr("small", App, 1, 10, 1)))
	runs := v1alpha1.MIGPlace{Profile: 19, Start: 5, Size: 1}
	plan, ok := Rebook(d, node("n", migDev(0)), map[string][]Has{"big": {{UUID: "GPU-0"}}, "small": {{UUID: "GPU-0", MIG: runs}}})
	if !ok || at(plan.Grants[0]) != "9@0" || plan.Grants[1].MIG != runs {
		t.Errorf("%+v", plan.Grants)
	}
	if _, ok := Rebook(d, node("n", migDev(0)), map[string][]Has{"big": {{UUID: "GPU-0", MIG: runs}}, "small": {{UUID: "GPU-0", MIG: runs}}}); ok {
		t.Error("Invariant 1: two containers on one instance")
	}
}

func TestShortfallOfInstances(t *testing.T) {
	taken := migDev(0, v1alpha1.MIGInstance{MIGPlace: v1alpha1.MIGPlace{Profile: 19, Start: 0, Size: 1}, UUID: "MIG-x"})
	for want, c := range map[string]struct {
		mode v1alpha1.Mode
		gpus v1alpha1.DeviceCount
		on   Device
	}{
		"no place for an instance of that much": {v1alpha1.ModeMIG, 1, taken},
		"where a share is one instance":         {v1alpha1.ModeLimiter, 1, taken},
		"not in MIG mode":                       {v1alpha1.ModeMIG, 1, dev(0, 100, gib80)},
	} {
		short := Explain(demand(mode(c.mode, ctr("main", App, c.gpus, 57, 1))), []*Node{node("n", c.on)})
		if text := short.String(); !strings.Contains(text, want) {
			t.Errorf("%q, want %q", text, want)
		}
		// To wait or to ask for less does not help where no GPU is in MIG mode.
		if of := short.Cause(); (of == cause.Excluded) != (want == "not in MIG mode") {
			t.Errorf("%q: the cause is %s", want, of)
		}
	}
}

// Invariant 1: whatever comes and goes, no plan lays instances where the driver's
// own rules refuse them; and a pod is placed whenever some layout of its containers
// keeps to them.
func TestLayoutsAgainstTheRules(t *testing.T) {
	r := rand.New(rand.NewSource(3))
	const cases = 3000
	placed := 0
	for range cases {
		n := node("n", migDev(0))
		var held []v1alpha1.MIGPlace
		for range r.Intn(8) {
			if len(held) > 0 && r.Intn(3) == 0 {
				held = slices.Delete(held, 0, 1)
			}
			var d Demand
			for i := range 1 + r.Intn(3) {
				d.Containers = append(d.Containers, mode(v1alpha1.ModeMIG, ctr(fmt.Sprint(i), App, 1, v1alpha1.Percent(r.Intn(60)), 1+v1alpha1.MiB(r.Intn(40000)))))
			}
			n.Devices[0].Cut = NewCut(h200, nil, held)
			plan, ok := Fit(&d, n)
			if want := layoutExists(&d, held, 0); ok != want {
				t.Fatalf("%+v beside %v: placed %v, want %v", d.Containers, held, ok, want)
			}
			if got := Fits(&d, n); got != ok {
				t.Fatalf("%+v beside %v: placed %v, a look says %v", d.Containers, held, ok, got)
			}
			if !ok {
				continue
			}
			placed++
			for _, g := range plan.Grants {
				if !ruled(g.MIG, held) {
					t.Fatalf("%+v beside %v", g, held)
				}
				held = append(held, g.MIG)
			}
		}
	}
	if placed < cases {
		t.Errorf("only %d placed", placed)
	}
}

// ruled is the driver's own rule, written without the package's Cut.
func ruled(p v1alpha1.MIGPlace, held []v1alpha1.MIGPlace) bool {
	same, covered := int32(1), map[int32]bool{}
	for _, h := range held {
		for s := h.Start; s < h.Start+h.Size; s++ {
			covered[s] = true
		}
		if h.Profile == p.Profile {
			same++
		}
	}
	for s := p.Start; s < p.Start+p.Size; s++ {
		if covered[s] {
			return false
		}
	}
	i := slices.IndexFunc(h200, func(q v1alpha1.MIGProfile) bool { return q.ID == p.Profile })
	return i >= 0 && h200[i].Size == p.Size && slices.Contains(h200[i].Starts, p.Start) && same <= h200[i].Max
}

// layoutExists tries every instance at every place for each container.
func layoutExists(d *Demand, held []v1alpha1.MIGPlace, i int) bool {
	if i == len(d.Containers) {
		return true
	}
	s := d.Containers[i].Share
	for k := range h200 {
		if h200[k].Core < s.Core || h200[k].Mem < s.MemMiB {
			continue
		}
		for _, start := range h200[k].Starts {
			if p := h200[k].Place(start); ruled(p, held) && layoutExists(d, append(held[:len(held):len(held)], p), i+1) {
				return true
			}
		}
	}
	return false
}
