// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"fmt"
	"math/rand"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// BenchmarkPlace decides at 90 % full with the class diversity of the public
// trace, and takes the mean over all decisions: ns/op is the CPU time of one, with
// the index brought up to date. Pods leave in between so that the cluster stays as
// full as it is; that is release-ns, and the prices looked at in between are
// reprice-ns, both per decision; reprice-max-ns is the longest such look. For some of the decisions a scan of all nodes
// with the same score goes first, which must choose the same: scan-ns.
func BenchmarkPlace(b *testing.B) {
	for _, nodes := range []int{100, 1_000, 5_000, 20_000, 100_000} {
		b.Run(fmt.Sprintf("nodes=%d", nodes), func(b *testing.B) {
			l := benchLoad(nodes)
			b.ReportAllocs()
			b.ResetTimer()
			benchPlace(b, l)
		})
	}
}

const benchFull = 0.90

// benchLoad is a cluster that has run for a while. Beyond some size it is made of
// copies, as pods that come and go would take minutes.
func benchLoad(nodes int) *load {
	const most = 5_000
	machines := make([]Machine, min(nodes, most))
	for i := range machines {
		machines[i] = Machine{Model: []string{"A", "B", "C"}[i%3], Devices: 8, DeviceMem: 80 << 10, CPU: 96_000, Mem: 768 << 10}
	}
	classes, weights := requests(rand.New(rand.NewSource(1)), 151)
	l := newLoad(1, machines, classes, weights)
	l.fill(benchFull)
	running := l.running
	for from := most; from < nodes; from += most {
		for _, m := range machines {
			l.AddNode(m)
		}
		for _, p := range running {
			p.node += NodeID(from)
			l.show(p, 1)
			l.running = append(l.running, p)
		}
	}
	return l
}

func benchPlace(b *testing.B, l *load) {
	// On a machine that others use, the thread's own time says what a decision
	// costs and the wall's clock does not.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	now := func() time.Duration {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
			b.Fatal(err)
		}
		return time.Duration(t.Nano())
	}
	var placing, releasing, repricing, longest, scanning time.Duration
	clock := func(spent *time.Duration, do func()) {
		start := now()
		do()
		*spent += now() - start
	}
	scans, every := 0, b.N/20+1
	for i := range b.N {
		clock(&releasing, func() {
			for l.full() > benchFull {
				l.leave()
			}
		})
		before := repricing
		clock(&repricing, l.Reprice)
		longest = max(longest, repricing-before)
		q, compare := l.arrival(), i%every == 0
		var want NodeID
		var fits, ok bool
		if compare {
			scans++
			clock(&scanning, func() { want, _, fits = l.Scan(q, nil) })
		}
		clock(&placing, func() { ok = l.place(q) })
		if compare && (ok != fits || ok && l.running[len(l.running)-1].node != want) {
			b.Fatalf("the index placed a pod: %v, the scan has node %d for it: %v", ok, want, fits)
		}
	}
	b.ReportMetric(float64(placing)/float64(b.N), "ns/op")
	b.ReportMetric(float64(releasing)/float64(b.N), "release-ns")
	b.ReportMetric(float64(repricing)/float64(b.N), "reprice-ns")
	b.ReportMetric(float64(longest), "reprice-max-ns")
	b.ReportMetric(float64(scanning)/float64(scans), "scan-ns")
}
