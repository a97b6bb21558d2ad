// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math/rand"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
)

// Of a request at a level of topology the engine knows the nodes with a set that has the room, as
// a scan does, also while sets change; the devices that it names are of one set.
func TestNear(t *testing.T) {
	r := rand.New(rand.NewSource(6))
	classes, weights := diverse(r, 60)
	for i := range classes {
		if c := &classes[i]; c.GPUs > 1 && r.Intn(2) == 0 {
			c.Topology = []v1alpha1.TopologyLevel{v1alpha1.TopologyNVLink, v1alpha1.TopologyPCIe, v1alpha1.TopologyRDMA}[r.Intn(3)]
		}
	}
	l := newLoad(6, machines(r, 60), classes, weights)
	found, asked := 0, 0
	for i := range 3000 {
		for l.full() > 0.8 {
			l.leave()
		}
		l.Reprice()
		id := NodeID(r.Intn(60))
		near := make([]v1alpha1.Near, len(l.Near(id)))
		for d := range near {
			near[d] = v1alpha1.Near{PCIe: 1 << (d / 2), NVLink: uint32(r.Intn(4)), RDMA: uint32(r.Intn(2))}
		}
		l.SetNear(id, near)
		q := l.arrival()
		want, devices, fits := l.Scan(q, nil)
		id, chosen, ok := l.Best(q)
		if ok != fits || id != want || chosen != devices {
			t.Fatalf("%d: Best is node %d devices %b, the scan says %d %b", i, id, chosen, want, devices)
		}
		if q.Topology != "" {
			if asked++; ok {
				found++
				var all []v1alpha1.Near
				for d, n := range l.Near(id) {
					if chosen>>d&1 == 1 {
						all = append(all, n)
					}
				}
				if len(all) != q.GPUs || !q.Topology.Within(all...) {
					t.Fatalf("%d: %s of %+v on %+v", i, q.Topology, q, all)
				}
			}
		}
		l.place(q)
	}
	l.check(t)
	if found < 30 || asked == found {
		t.Errorf("%d of %d requests at a level found a place: the test no longer looks at both", found, asked)
	}
}
