// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"strings"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
)

// ofClass has the container ask for units of a class of these models.
func ofClass(t *testing.T, c Container, class, models string) Container {
	t.Helper()
	list, err := v1alpha1.ParseAllowList(models)
	if err != nil {
		t.Fatal(err)
	}
	c.Class, c.Models = class, list
	return c
}

// Each container goes to devices of its own class, whatever the others are of, on a node that has
// both; the pod's own list restricts all of them.
func TestClasses(t *testing.T) {
	model := func(d Device, model string) Device { d.Model = model; return d }
	mixed := node("mixed", model(dev(0, 100, gib80), "H100"), model(dev(1, 100, gib80), "T4"), model(dev(2, 100, gib80), "H100"))
	gold, silver := ofClass(t, ctr("g", App, 1, 60, 100), "gold", "H100"), ofClass(t, ctr("s", App, 1, 60, 100), "silver", "T4,L4")
	two := gold
	two.Share.GPUs = 2
	three := gold
	three.Share.GPUs = 3
	h100, err := v1alpha1.ParseAllowList("!T4")
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		demand *Demand
		want   map[string]string // model by container
		lacks  string
	}{
		"gold":               {demand: demand(gold), want: map[string]string{"g": "H100"}},
		"silver":             {demand: demand(silver), want: map[string]string{"s": "T4"}},
		"both":               {demand: demand(gold, silver), want: map[string]string{"g": "H100", "s": "T4"}},
		"beside no class":    {demand: demand(silver, ctr("x", App, 1, 100, 100), ofClass(t, ctr("h", App, 1, 50, 100), "gold", "H100")), want: map[string]string{"s": "T4", "x": "H100", "h": "H100"}},
		"two of a class":     {demand: demand(two, silver), want: map[string]string{"g": "H100", "s": "T4"}},
		"more than there is": {demand: demand(three), lacks: "container g of GPUClass gold needs 60 % compute and 100 MiB on each of 3 GPUs of one node; nearest: mixed has room on 2, and no other that the pod may use"},
		"a class of none":    {demand: demand(gold, ofClass(t, ctr("b", App, 1, 10, 100), "bronze", "V100,P100")), lacks: "container b of GPUClass bronze: none of the 3 GPUs is of the class's models (V100,P100) and allowed by the pod's annotations: there are 2 x H100, 1 x T4"},
		"narrowed to none":   {demand: &Demand{Containers: []Container{silver}, Models: h100}, lacks: "container s of GPUClass silver: none of the 3 GPUs is of the class's models (T4,L4) and allowed by the pod's annotations"},
		"both on one GPU":    {demand: &Demand{Containers: []Container{gold, silver}, SameGPU: true}, lacks: "on one GPU together"},
	} {
		t.Run(name, func(t *testing.T) {
			plan, fits := Fit(tt.demand, mixed)
			if fits != (tt.lacks == "") {
				t.Fatalf("fits: %v, %+v", fits, plan)
			}
			if !fits {
				if text := Explain(tt.demand, []*Node{mixed}).String(); !strings.Contains(text, tt.lacks) {
					t.Errorf("%s, want %s", text, tt.lacks)
				}
				return
			}
			for _, g := range plan.Grants {
				if got := mixed.Device(g.UUID).Model; got != tt.want[g.Container] {
					t.Errorf("container %s is on a %s", g.Container, got)
				}
			}
		})
	}
}
