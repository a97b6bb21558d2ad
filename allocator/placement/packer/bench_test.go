// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"
	"math/rand"
	"testing"
	"time"
)

// BenchmarkPlace decides at 90 % full with the class diversity of the public
// trace. Pods leave in between, outside of the clock, so that the cluster stays as
// full as it is; what that costs is in release-ns, what prices cost per decision
// in reprice-ns. Now and then the same decision is made by a scan of all nodes
// with the same score, which must choose the same: scan-ns.
func BenchmarkPlace(b *testing.B) {
	for _, nodes := range []int{100, 1_000, 5_000, 20_000, 100_000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			benchPlace(b, nodes)
		})
	}
}

const benchFull = 0.90

func benchPlace(b *testing.B, nodes int) {
	machines := make([]Machine, nodes)
	for i := range machines {
		machines[i] = Machine{Model: []string{"A", "B", "C"}[i%3], Devices: 8, DeviceMem: 80 << 10, CPU: 96_000, Mem: 768 << 10}
	}
	classes, weights := requests(rand.New(rand.NewSource(1)), 151)
	l := newLoad(1, machines, classes, weights)
	l.fill(benchFull)
	var placing, releasing, repricing, scanning time.Duration
	scans := 0
	every := max(1, min(b.N, 10_000_000/nodes)/20)
	b.ReportAllocs()
	b.ResetTimer()
	b.StopTimer()
	for i := range b.N {
		start := time.Now()
		left := 0
		for l.full() > benchFull {
			l.leave()
			left++
		}
		if left > 0 {
			releasing += time.Since(start)
		}
		start = time.Now()
		l.Reprice()
		repricing += time.Since(start)
		q := l.arrival()
		var want NodeID
		if i%every == 0 {
			scans++
			start = time.Now()
			want, _, _ = l.Scan(q)
			scanning += time.Since(start)
		}
		b.StartTimer()
		id, devices, ok := l.Place(q)
		b.StopTimer()
		_ = placing
		if ok {
			l.running = append(l.running, pod{q, id, devices})
		}
		if i%every == 0 && id != want {
			b.Fatalf("the index chose node %d, the scan %d", id, want)
		}
	}
	b.ReportMetric(float64(releasing)/float64(b.N), "release-ns")
	b.ReportMetric(float64(repricing)/float64(b.N), "reprice-ns")
	b.ReportMetric(float64(scanning)/float64(max(scans, 1)), "scan-ns")
}
