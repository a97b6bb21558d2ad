// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/bench/placement/replay"
	"vernier.dev/vernier/test/bench/placement/trace"
)

// watchful is ours, watched by an audit.
type watchful struct {
	*ours
	audit *audit
}

func (w watchful) Book(class, node int, devices uint64) {
	w.ours.Book(class, node, devices)
	w.audit.book(class, node, devices, 1)
}

func (w watchful) Release(class, node int, devices uint64) { w.audit.Release(class, node, devices) }

// crowded is a cluster of eight nodes where few pods are for a whole one, and most for a part of
// a device.
func crowded() *trace.Workload {
	w := &trace.Workload{Classes: []trace.Class{
		{CPU: 8000, Mem: 32_768, GPUs: 8, Milli: trace.Whole},
		{CPU: 4000, Mem: 16_384, GPUs: 1, Milli: trace.Whole},
		{CPU: 2000, Mem: 8192, GPUs: 1, Milli: 470},
		{CPU: 2000, Mem: 8192, GPUs: 1, Milli: 230},
		{CPU: 1000, Mem: 4096, GPUs: 1, Milli: 160},
		{CPU: 4000, Mem: 4096},
	}}
	for class, n := range []int{1, 10, 20, 20, 20, 10} {
		w.Pods = append(w.Pods, slices.Repeat([]int{class}, n)...)
	}
	for range 8 {
		w.Nodes = append(w.Nodes, trace.Node{CPU: 96_000, Mem: 393_216, GPUs: 8, Model: "G2"})
	}
	return w
}

// The first of a line waits no longer than reserveAfter and the longest time that a pod had to go
// on its devices when they were reserved, and the k-th no longer than k of the greatest such
// times; whether pods say how long they stay or not. Nobody is given what is not there.
func TestLineIsBounded(t *testing.T) {
	var head [2]time.Duration // the longest without and with, ends known
	var unserved [2]float64
	reserved, filled := 0, 0
	for seed := range int64(4) {
		w := crowded()
		w = replay.WithCrumbs(w)
		play := func(line replay.Line) replay.Waits {
			o := newOurs(w, nil)
			return replay.Wait(w, watchful{o, newAudit(t, w, o)}, seed, 0.95, line)
		}
		without := play(replay.Line{})
		head[0], unserved[0] = max(head[0], without.Head), unserved[0]+without.Unserved
		for _, known := range []bool{true, false} {
			line := replay.Line{ReserveAfter: 10 * time.Minute, EndsKnown: known}
			got := play(line)
			if got.HeadOver > 0 || got.LineOver > 0 || got.Head > got.Bound {
				t.Errorf("seed %d, %+v: over the bound: %+v", seed, line, got)
			}
			if !known && got.Filled > 0 {
				t.Errorf("seed %d: %d used reserved room, and nobody knows when they end", seed, got.Filled)
			}
			if reserved, filled = reserved+got.Reserved, filled+got.Filled; known {
				head[1], unserved[1] = max(head[1], got.Head), unserved[1]+got.Unserved
			}
		}
	}
	if reserved < 100 || filled < 10 || 3*head[1] > 2*head[0] {
		t.Errorf("%d reservations, %d pods in reserved room, at most %s at the head and %s without: the test no longer looks at them", reserved, filled, head[1], head[0])
	}
	if unserved[1] > unserved[0]+0.003*4 {
		t.Errorf("unserved in all %.4f, %.4f without", unserved[1], unserved[0])
	}
}

func TestReportOfWaits(t *testing.T) {
	without, with := &waitRow{Line: "nothing reserved"}, &waitRow{Line: "reserved", line: replay.Line{ReserveAfter: time.Minute}}
	without.add(replay.Waits{Longest: 90 * time.Minute, Head: time.Hour, HeadOver: time.Hour, Unserved: 0.02})
	with.add(replay.Waits{Longest: 50 * time.Minute, Head: 40 * time.Minute, Bound: 45 * time.Minute, Unserved: 0.01, Reserved: 3, Filled: 1})
	var out bytes.Buffer
	showWaits(&out, []*waitRow{without, with})
	got := strings.Join(strings.Fields(out.String()), " ")
	for _, want := range []string{"nothing reserved 90 60 2.00 ± 0.00 0 0", "reserved 50 40 45 0 1.00 ± 0.00 3 1"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}
