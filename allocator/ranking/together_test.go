// SPDX-License-Identifier: Apache-2.0

package ranking

import (
	"fmt"
	"testing"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
)

// Containers go on one device of the node that was chosen, where that is worth no less, and
// nowhere else. What a pod with one container gets does not change.
func TestTogether(t *testing.T) {
	same, dearer := 0, 0
	for seed := range int64(20) {
		c := newCluster(t, seed)
		for i := range 600 {
			c.event(i)
			c.shown()
			if i%10 == 0 {
				c.ranking.Reprice()
			}
			a := c.ask()
			for len(a.Containers) < 2+i%2 {
				a.Containers = append(a.Containers, placement.Container{Name: fmt.Sprint("d", len(a.Containers)), Mode: a.Containers[0].Mode,
					Share: v1alpha1.Share{GPUs: 1, Core: v1alpha1.Percent(c.Intn(60)), MemMiB: v1alpha1.MiB(1 + c.Intn(600))}})
			}
			for plan, room := range c.ranking.Plans(a) {
				got := c.ranking.Together(a, plan, room)
				others := placement.Together(a.Demand, room, &plan) // weighs the plan by all levels
				before, priced := c.ranking.kept(a, &plan, room)
				after, stillPriced := c.ranking.kept(a, &got, room)
				devices := map[string][]placement.Has{}
				for _, g := range got.Grants {
					devices[g.Container] = append(devices[g.Container], placement.Has{UUID: g.UUID, MIG: g.MIG})
				}
				if _, ok := placement.Rebook(a.Demand, room, devices); got.Node != plan.Node || !ok {
					t.Fatalf("Invariant 1: %+v of %+v does not fit into %+v", got, a.Demand, room)
				}
				if priced != stillPriced || priced && after < before || !priced && a.Compare(&plan, &got) < 0 {
					t.Fatalf("%+v of %+v: worth %d, was %d", got, a.Demand, after, before)
				}
				if len(others) == 0 || on(a, &got) == 1 {
					same += len(others)
					break
				}
				for j := range others {
					worth, priced := c.ranking.kept(a, &others[j], room)
					if priced && worth >= before || !priced && a.Compare(&others[j], &plan) <= 0 {
						t.Fatalf("%+v of %+v although %+v is worth %d, not %d", got, a.Demand, others[j], worth, before)
					}
				}
				dearer++
				break
			}
		}
	}
	if same < 100 || dearer < 100 {
		t.Errorf("%d pods were put on one device, for %d that was dearer: the test no longer looks at both", same, dearer)
	}
}

// on is on how many devices the containers are that ask for one.
func on(a *Ask, plan *placement.Plan) int {
	devices := map[string]bool{}
	for i := range a.Containers {
		for _, g := range plan.Grants {
			if c := &a.Containers[i]; c.Share.GPUs == 1 && g.Container == c.Name {
				devices[g.UUID] = true
			}
		}
	}
	return len(devices)
}
