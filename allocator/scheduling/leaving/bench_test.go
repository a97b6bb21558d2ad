// SPDX-License-Identifier: Apache-2.0

package leaving

import (
	"cmp"
	"fmt"
	"math/rand"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/v1alpha1"
)

// full is a ledger whose devices have that many slices each, of 1 to 5 %, and little free.
func full(r *rand.Rand, name string, devices, each int, c *Candidates) *v1alpha1.SliceLedger {
	l := newLedger(devices)
	l.Name = name
	for i := range l.Status.Devices {
		seen := &l.Status.Devices[i]
		seen.UUID = fmt.Sprintf("GPU-%s-%d-4f1c-8a52-d0e6", name, i)
		d := v1alpha1.DeviceLedger{UUID: seen.UUID, Core: v1alpha1.WholeGPU, Mem: seen.Mem}
		core := v1alpha1.WholeGPU
		for j := range each {
			share := min(v1alpha1.Percent(1+r.Intn(5)), core-v1alpha1.Percent(each-j-1))
			core -= share
			p := Pod{UID: types.UID(fmt.Sprintf("%s-%d-%d-7c1e-4f1c-8a52-d0e6f3a4b5c6", name, i, j)), Cost: Cost{Priority: int32(r.Intn(3)), Pods: 1, Loss: r.Float64()}, Gang: -1, Budget: -1}
			c.Pods[p.UID] = p
			d.Slices = append(d.Slices, v1alpha1.Slice{Pod: p.UID, Owner: "ns/p", Ctr: "main", Core: share, Mem: seen.Mem * v1alpha1.MiB(share) / 100})
			l.Status.Slices = append(l.Status.Slices, v1alpha1.SliceStatus{Pod: p.UID, Ctr: "main", UUID: seen.UUID, Mode: v1alpha1.ModeLimiter})
		}
		l.Spec.Devices = append(l.Spec.Devices, d)
	}
	return l
}

func single(gpus int, percent v1alpha1.Percent) *placement.Demand {
	return &placement.Demand{Containers: []placement.Container{{Name: "main", Mode: v1alpha1.ModeAuto,
		Share: v1alpha1.Share{GPUs: v1alpha1.DeviceCount(gpus), Core: percent, MemPercent: percent}}}}
}

// BenchmarkVictims is one look: the bounds of 5,000 full nodes, and the search on the best 100.
// Weights are made once for a version of a ledger.
func BenchmarkVictims(b *testing.B) {
	r := rand.New(rand.NewSource(1))
	c := &Candidates{Pods: map[types.UID]Pod{}}
	known := func(uid types.UID) (int32, bool) { p, ok := c.Pods[uid]; return p.Priority, ok }
	var ledgers []*v1alpha1.SliceLedger
	var all []*Weights
	for i := range 5000 {
		ledgers = append(ledgers, full(r, fmt.Sprint("node", i), 8, 31, c))
		all = append(all, Weigh(ledgers[i], index.Room, known))
	}
	b.Run("weigh one", func(b *testing.B) {
		for b.Loop() {
			Weigh(ledgers[r.Intn(len(ledgers))], index.Room, known)
		}
	})
	for _, demand := range []*placement.Demand{single(1, 10), single(1, 30), single(1, 100), single(4, 30), single(8, 10), single(8, 30), single(8, 100)} {
		name := fmt.Sprintf("%d of %d", demand.Containers[0].Share.GPUs, demand.Containers[0].Share.Core)
		type candidate struct {
			node int
			cost Cost
		}
		look := func() (best []candidate) {
			for i, w := range all {
				if cost, ok := w.Bound(demand, 10); ok {
					best = append(best, candidate{i, cost})
				}
			}
			slices.SortStableFunc(best, func(a, b candidate) int { return cmp.Or(a.cost.Compare(b.cost), cmp.Compare(a.node, b.node)) })
			return best[:100]
		}
		b.Run(name+"/bound", func(b *testing.B) {
			for b.Loop() {
				look()
			}
		})
		b.Run(name+"/look", func(b *testing.B) {
			// Only pods of the best nodes are candidates: nobody has to look at the others.
			near := &Candidates{Pods: map[types.UID]Pod{}}
			for _, n := range look() {
				for uid := range grants.Pods(ledgers[n.node]) {
					near.Pods[uid] = c.Pods[uid]
				}
			}
			victims, rooms, bound := 0, 0, 0
			for b.Loop() {
				victims, rooms, bound = 0, 0, 0
				for _, n := range look() {
					choice, ok := near.Search(demand, ledgers[n.node], func(l *v1alpha1.SliceLedger) *placement.Node { rooms++; return index.Room(l) })
					if !ok {
						b.Fatal("no room")
					}
					victims += choice.Cost.Pods
					bound += n.cost.Pods
				}
			}
			b.ReportMetric(float64(victims)/100, "victims/node")
			b.ReportMetric(float64(bound)/100, "bound/node")
			b.ReportMetric(float64(rooms)/100, "rooms/node")
		})
	}
	one := &Candidates{Pods: map[types.UID]Pod{}}
	ledger := full(r, "one", 1, 31, one)
	for _, percent := range []v1alpha1.Percent{10, 30, 60, 100} {
		b.Run(fmt.Sprintf("one device/%d", percent), func(b *testing.B) {
			for b.Loop() {
				if _, ok := one.Search(single(1, percent), ledger, index.Room); !ok {
					b.Fatal("no room")
				}
			}
		})
	}
	b.Run("room of a full node", func(b *testing.B) {
		for b.Loop() {
			index.Room(ledgers[0])
		}
	})
}
