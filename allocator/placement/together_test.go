// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"math/rand"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
)

// What fails is replaced on one device for all, and beside what stays.
func TestRefitSameGPU(t *testing.T) {
	d := oneGPU(ctr("x", App, 1, 30, 100), ctr("y", App, 1, 30, 100))
	for name, c := range map[string]struct {
		devices []Device
		kept    map[string][]Has
		want    string
	}{
		"all move":                  {[]Device{dev(0, 40, gib80), dev(1, 70, gib80), dev(2, 40, gib80)}, nil, "n x@1 30-0/100-0 y@1 30-0/100-0"},
		"no device for all":         {[]Device{dev(0, 40, gib80), dev(1, 40, gib80)}, nil, ""},
		"beside the one that stays": {[]Device{dev(0, 60, gib80), dev(1, 30, gib80)}, map[string][]Has{"x": {{UUID: "GPU-0"}}}, "n x@0 30-0/100-0 y@0 30-0/100-0"},
		"no room beside it":         {[]Device{dev(0, 50, gib80), dev(1, 100, gib80)}, map[string][]Has{"x": {{UUID: "GPU-0"}}}, ""},
	} {
		got := ""
		if plan, ok := Refit(d, node("n", c.devices...), c.kept); ok {
			got = short(plan)
		}
		if got != c.want {
			t.Errorf("%s: got %q, want %q", name, got, c.want)
		}
	}
	// What runs is booked where it runs, whatever the pod asks for.
	apart := map[string][]Has{"x": {{UUID: "GPU-0"}}, "y": {{UUID: "GPU-1"}}}
	if _, ok := Rebook(d, node("n", dev(0, 50, gib80), dev(1, 50, gib80)), apart); !ok {
		t.Error("containers that run on two devices are not booked there")
	}
}

// Together has every device on which all containers that ask for one fit, the others where
// they are, and no other plan.
func TestTogetherAgainstBruteForce(t *testing.T) {
	r := rand.New(rand.NewSource(4))
	found := 0
	for range 20_000 {
		d, n := randomCase(r)
		d.SameGPU = false
		plan, ok := within(d, n, func(s *search) bool { return s.place(0) })
		if !ok {
			continue
		}
		at := map[string][]int{}
		for _, g := range plan.Grants {
			for k := range n.Devices {
				if n.Devices[k].UUID == g.UUID {
					at[g.Container] = append(at[g.Container], k)
				}
			}
		}
		apart, want := map[int]bool{}, map[int]bool{}
		for i := range d.Containers {
			if c := &d.Containers[i]; c.Share.GPUs == 1 {
				apart[at[c.Name][0]] = true
			}
		}
		for k := range n.Devices {
			var chosen [][]int
			for i := range d.Containers {
				if c := &d.Containers[i]; c.Share.GPUs == 1 {
					chosen = append(chosen, []int{k})
				} else {
					chosen = append(chosen, at[c.Name])
				}
			}
			if len(apart) > 1 && holds(d, n, chosen) {
				want[k] = true
			}
		}
		others := together(d, n, &plan)
		for i := range others {
			checkPlan(t, d, n, others[i])
			if i > 0 && d.Compare(&others[i-1], &others[i]) > 0 {
				t.Fatalf("%+v on %+v: %s before %s", d, n, short(others[i-1]), short(others[i]))
			}
			for _, g := range others[i].Grants {
				for j := range d.Containers {
					for k := range n.Devices {
						if d.Containers[j].Name == g.Container && d.Containers[j].Share.GPUs == 1 && n.Devices[k].UUID == g.UUID {
							delete(want, k)
						}
					}
				}
			}
		}
		if len(want) > 0 || len(apart) < 2 && len(others) > 0 {
			t.Fatalf("%+v on %+v, %s: %d others, and none on %v", d, n, short(plan), len(others), want)
		}
		found += len(others)
	}
	if found < 200 {
		t.Errorf("only %d plans: the test no longer looks at any", found)
	}
}

// Of instances of MIG a container keeps its own kind.
func TestTogetherInstances(t *testing.T) {
	d := demand(mode(v1alpha1.ModeMIG, ctr("x", App, 1, 14, 100)), mode(v1alpha1.ModeMIG, ctr("y", App, 1, 42, 100)))
	n := node("n", migDev(0), migDev(1))
	plan, ok := Rebook(d, n, map[string][]Has{"x": {{UUID: "GPU-0"}}, "y": {{UUID: "GPU-1"}}})
	if !ok {
		t.Fatal("does not fit")
	}
	others := together(d, n, &plan)
	if len(others) != 2 || others[0].Grants[0].UUID != others[0].Grants[1].UUID || others[0].instances() != plan.instances() {
		t.Errorf("%+v", others)
	}
}
