// SPDX-License-Identifier: Apache-2.0

package leaving

import (
	"math/rand"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/v1alpha1"
)

// Whatever tenants make, a search ends after so many steps and rooms. Where the pod fits at all,
// it finds a choice all the same, unless budgets are what is short.
func TestSearchIsBounded(t *testing.T) {
	mig := func() *v1alpha1.SliceLedger {
		l := newLedger(8)
		for i := range l.Status.Devices {
			l.Status.Devices[i].MIG, l.Status.Devices[i].Profiles = v1alpha1.MIGEnabled, profiles
		}
		return l
	}
	fill := func(l *v1alpha1.SliceLedger, pod *placement.Demand, each func(i int) Pod) *world {
		w := &world{ledger: l, c: &Candidates{Pods: map[types.UID]Pod{}}}
		for i := 0; ; i++ {
			p := each(i)
			if !place(l, p.UID, pod) {
				return w
			}
			w.c.Pods[p.UID] = p
		}
	}
	uid := func(i int) types.UID {
		return types.UID(string(rune('a'+i/26/26)) + string(rune('a'+i/26%26)) + string(rune('a'+i%26)))
	}
	r := rand.New(rand.NewSource(1))
	equal := func(i int) Pod {
		return Pod{UID: uid(i), Cost: Cost{Pods: 1, Loss: float64(r.Intn(100))}, Gang: -1, Budget: -1}
	}
	levels := func(i int) Pod { p := equal(i); p.Priority = int32(r.Intn(1000)); return p }
	budget := func(i int) Pod { p := equal(i); p.Budget = i % 2; return p }
	// Each can spare some, which is not enough.
	gang := func(i int) Pod { p := equal(i); p.Gang = i % 10; return p }
	small, instance := single(1, 1), single(1, 10)
	for name, tt := range map[string]struct {
		world    *world
		demand   *placement.Demand
		budgets  []int
		possible bool
	}{
		"instances, equal pods, one instance":       {fill(mig(), instance, equal), single(1, 40), nil, true},
		"instances, many priorities, one instance":  {fill(mig(), instance, levels), single(1, 40), nil, true},
		"instances, many priorities, the largest":   {fill(mig(), instance, levels), single(1, 90), nil, true},
		"slices, equal pods, one device":            {fill(newLedger(8), small, equal), single(1, 50), nil, true},
		"slices, many priorities, one device":       {fill(newLedger(8), small, levels), single(1, 50), nil, true},
		"slices, many priorities, several devices":  {fill(newLedger(8), small, levels), single(4, 50), nil, true},
		"slices, many priorities, all devices":      {fill(newLedger(8), small, levels), single(8, 100), nil, true},
		"slices, budgets that suffice":              {fill(newLedger(8), small, budget), single(4, 50), []int{100, 100}, true},
		"slices, budgets that do not suffice":       {fill(newLedger(8), small, budget), single(4, 50), []int{99, 99}, false},
		"slices, a budget for one device":           {fill(newLedger(8), small, budget), single(1, 50), []int{0, 50}, true},
		"slices, a budget too small for one device": {fill(newLedger(8), small, budget), single(1, 50), []int{25, 24}, false},
		"slices, gangs, one device":                 {fill(newLedger(8), small, gang), single(1, 50), nil, true},
		"slices, gangs, several devices":            {fill(newLedger(8), small, gang), single(4, 50), nil, true},
		"instances, budgets that do not suffice":    {fill(mig(), instance, budget), single(1, 90), []int{4, 2}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := tt.world
			w.demand, w.c.Budgets = tt.demand, tt.budgets
			for _, p := range w.c.Pods {
				if p.Gang >= 0 {
					w.c.Gangs = slices.Grow(w.c.Gangs, 10)[:10]
					w.c.Gangs[p.Gang].Spare, w.c.Gangs[p.Gang].Whole = 2, true
					w.c.Gangs[p.Gang].Pods = append(w.c.Gangs[p.Gang].Pods, p)
				}
			}
			w.room = func(l *v1alpha1.SliceLedger) *placement.Node { w.calls++; return index.Room(l) }
			choice, ok := w.c.Search(w.demand, w.ledger, w.room)
			t.Logf("%d pods: %+v after %d rooms", len(w.c.Pods), choice.Cost, w.calls)
			if ok != tt.possible {
				t.Errorf("found: %v", ok)
			}
			if w.calls > 2*maxLooks {
				t.Errorf("asked for %d rooms", w.calls)
			}
			if ok {
				w.check(t, choice)
			}
		})
	}
}
