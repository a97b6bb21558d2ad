// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"math"
	"math/rand"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/bench/placement/bound"
	"vernier.dev/vernier/test/bench/placement/replay"
	"vernier.dev/vernier/test/bench/placement/trace"
	"vernier.dev/vernier/test/must"
)

// small is a workload like the public trace's, a twentieth of its size.
func small(seed int64) *trace.Workload {
	r := rand.New(rand.NewSource(seed))
	w := &trace.Workload{}
	for range 40 {
		w.Nodes = append(w.Nodes, []trace.Node{
			{CPU: 96_000, Mem: 393_216, GPUs: 8, Model: "G2"},
			{CPU: 104_000, Mem: 524_288, GPUs: 2, Model: "T4"},
			{CPU: 16_000, Mem: 122_880, GPUs: 2, Model: "P100"},
		}[r.Intn(3)])
	}
	for _, milli := range []int{1000, 1000, 1000, 1000, 810, 810, 470, 470, 320, 650, 230, 160, 0} {
		c := trace.Class{CPU: 1000 * int64(1+r.Intn(12)), Mem: 4096 * int64(1+r.Intn(8)), GPUs: 1, Milli: milli}
		switch {
		case milli == 0:
			c.GPUs = 0
		case r.Intn(8) == 0:
			c.Spec = "T4|P100"
		case milli == 1000 && r.Intn(3) == 0:
			c.GPUs = 2
		}
		w.Classes = append(w.Classes, c)
	}
	for range 400 {
		w.Pods = append(w.Pods, r.Intn(len(w.Classes)))
	}
	return w
}

// audit watches that a policy never gives out what is not there.
type audit struct {
	replay.Placer
	t     *testing.T
	w     *trace.Workload
	left  [][]int
	hosts [][2]int64
}

func newAudit(t *testing.T, w *trace.Workload, p replay.Placer) *audit {
	a := &audit{Placer: p, t: t, w: w}
	for _, n := range w.Nodes {
		left := make([]int, n.GPUs)
		for d := range left {
			left[d] = trace.Whole
		}
		a.left, a.hosts = append(a.left, left), append(a.hosts, [2]int64{n.CPU, n.Mem})
	}
	return a
}

func (a *audit) Place(class int) (int, uint64, bool) {
	node, devices, ok := a.Placer.Place(class)
	if ok {
		a.book(class, node, devices, 1)
	}
	return node, devices, ok
}

func (a *audit) Release(class, node int, devices uint64) {
	a.Placer.Release(class, node, devices)
	a.book(class, node, devices, -1)
}

func (a *audit) book(class, node int, devices uint64, sign int) {
	c, host := &a.w.Classes[class], &a.hosts[node]
	host[0] -= int64(sign) * c.CPU
	host[1] -= int64(sign) * c.Mem
	n := 0
	for d := range a.left[node] {
		if devices>>d&1 == 1 {
			n++
			a.left[node][d] -= sign * c.Milli
			if a.left[node][d] < 0 {
				a.t.Fatalf("Invariant 1: device %d of node %d is over-committed by %d", d, node, -a.left[node][d])
			}
		}
	}
	if n != c.GPUs || host[0] < 0 || host[1] < 0 || c.GPUs > 0 && !trace.Allows(c.Spec, a.w.Nodes[node].Model) {
		a.t.Fatalf("%+v went to %d devices of node %d, %v left of its host", *c, n, node, *host)
	}
}

// Every policy keeps to what there is, whether pods stay or go, and none exceeds
// the bound.
func TestPolicies(t *testing.T) {
	for seed := range int64(3) {
		w := small(seed)
		arrivals := w.Arrivals(seed, 1.3)
		most := must.Get(bound.Allocated(w, arrivals))(t)
		for _, name := range names() {
			if name == "bound" {
				continue
			}
			for _, ties := range []*rand.Rand{nil, rand.New(rand.NewSource(seed))} {
				p := must.Get(policy(name, w, ties))(t)
				got := replay.Fill(w, newAudit(t, w, p), arrivals).Allocated
				if last := got[len(got)-1]; last > most+1e-9 || last < 0.5 {
					t.Errorf("seed %d: %s allocates %.4f, the bound is %.4f", seed, name, last, most)
				}
			}
			p, _ := policy(name, w, nil)
			if got := replay.Churn(w, newAudit(t, w, p), seed, 0.95); got <= 0 || got > 0.5 {
				t.Errorf("seed %d: %s rejects %.4f of the demand under churn", seed, name, got)
			}
		}
	}
}

// The bound, where it can be told by hand: devices of 810 and 190 are full, 460s
// leave 80 each, and CPU for half the pods gives out half.
func TestBound(t *testing.T) {
	node := trace.Node{CPU: 1000, Mem: 1000, GPUs: 2}
	for _, tt := range []struct {
		name    string
		classes []trace.Class
		want    float64
	}{
		{"exact", []trace.Class{{GPUs: 1, Milli: 810}, {GPUs: 1, Milli: 190}}, 1},
		{"halves", []trace.Class{{GPUs: 1, Milli: 460}, {GPUs: 1, Milli: 460}}, 0.92},
		{"CPU", []trace.Class{{GPUs: 1, Milli: 1000, CPU: 1000}, {GPUs: 1, Milli: 1000, CPU: 1000}}, 0.5},
		{"memory", []trace.Class{{GPUs: 1, Milli: 1000, Mem: 1000}, {GPUs: 1, Milli: 500, Mem: 250}}, 0.75},
		{"a model that is not there", []trace.Class{{GPUs: 1, Milli: 1000, Spec: "T4"}}, 0},
		{"two devices", []trace.Class{{GPUs: 2, Milli: 1000}, {GPUs: 1, Milli: 500}}, 1},
		{"halves of two devices", []trace.Class{{GPUs: 2, Milli: 500}, {GPUs: 2, Milli: 500}}, 1},
		{"parts of two devices", []trace.Class{{GPUs: 2, Milli: 330}, {GPUs: 1, Milli: 670}}, 1},
		{"very small shares", []trace.Class{{GPUs: 1, Milli: 5}, {GPUs: 1, Milli: 995}}, 1},
		{"more devices than a machine has", []trace.Class{{GPUs: 4, Milli: 1000}}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := &trace.Workload{Nodes: []trace.Node{node}, Classes: tt.classes}
			var arrivals []int
			for range 2 {
				for c := range tt.classes {
					arrivals = append(arrivals, c)
				}
			}
			got, err := bound.Allocated(w, arrivals)
			if err != nil || got < tt.want-1e-6 || got > tt.want+1e-6 {
				t.Errorf("%v, %v; want %v", got, err, tt.want)
			}
		})
	}
}

// Of pods that leave a fifth of every device, the bound knows that all but four
// fifths must be refused, and that none need be where there is room for all.
func TestBoundOfChurn(t *testing.T) {
	w := &trace.Workload{Classes: []trace.Class{{GPUs: 1, Milli: 810}}, Pods: []int{0}}
	for range 100 {
		w.Nodes = append(w.Nodes, trace.Node{GPUs: 8})
	}
	least := func(load float64) float64 {
		r := &row{Policy: "bound"}
		must.Do(t, r.add(w, options{ties: "name", churn: load}, 1))
		return r.rejected[0]
	}
	if got := least(0.5); got > 1e-9 {
		t.Errorf("%.4f must be refused at half load", got)
	}
	got := least(0.95)
	if want := 1 - 0.81/0.95; got < want-0.03 || got > want+0.03 {
		t.Errorf("%.4f must be refused at 95 %%, want about %.4f", got, want)
	}
	for _, name := range []string{"first-fit", "ours"} {
		p := must.Get(policy(name, w, nil))(t)
		if rejected := replay.Churn(w, p, 1, 0.95); rejected < got-0.01 {
			t.Errorf("%s refuses %.4f, at least %.4f must be", name, rejected, got)
		}
	}
}

// Where there is room for all the bound says that none need be refused, not less than none,
// however its sums are rounded.
func TestBoundOfLittleChurn(t *testing.T) {
	for seed := range int64(3) {
		r := &row{Policy: "bound"}
		must.Do(t, r.add(small(seed), options{ties: "name", churn: 0.2}, seed))
		if got := r.rejected[0]; got < 0 || got > 1e-9 {
			t.Errorf("seed %d: %g must be refused", seed, got)
		}
	}
}

// On workloads of the trace's kind ours is never behind the others by more than
// chance: the mean over seeds is compared.
func TestOursLeads(t *testing.T) {
	sums := map[string]float64{}
	for seed := range int64(8) {
		w := small(seed)
		for _, name := range []string{"first-fit", "best-fit", "hami-binpack", "fgd", "ours"} {
			p := must.Get(policy(name, w, nil))(t)
			got := replay.Fill(w, p, w.Arrivals(seed, 1.3)).Allocated
			sums[name] += got[len(got)-1]
		}
	}
	for name, sum := range sums {
		if sum > sums["ours"] {
			t.Errorf("%s allocates %.4f on average, ours %.4f", name, sum/8, sums["ours"]/8)
		}
	}
}

func TestReport(t *testing.T) {
	w := small(1)
	var rows []*row
	for _, name := range []string{"first-fit", "bound"} {
		r := &row{Policy: name}
		must.Do(t, r.add(w, options{ties: "name"}, 42))
		r.sum()
		rows = append(rows, r)
	}
	var out bytes.Buffer
	show(&out, rows, false)
	for _, want := range []string{"@95 %", "@130 %", "first-fit  8", "shared ", "\nbound "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in:\n%s", want, out.String())
		}
	}
}

// What cannot be meant is said before the minutes that a replay takes, not after them,
// and never left unread.
func TestOptions(t *testing.T) {
	good := options{nodes: "n", pods: "p", policies: "fgd, ours,bound", ties: "name", seeds: 1}
	line := good
	line.policies, line.churn, line.head = "", 1, time.Minute
	for _, o := range []options{good, line} {
		if err := o.check(nil); err != nil {
			t.Errorf("%+v: %v", o, err)
		}
	}
	for _, tt := range []struct {
		edit func(*options)
		rest []string
		want string
	}{
		{func(*options) {}, []string{"extra", "-json"}, `"extra" is no flag`},
		{func(o *options) { o.policies = "fgd,luck" }, nil, `"luck" is none of first-fit`},
		{func(o *options) { o.policies = "ours," }, nil, `"" is none of first-fit`},
		{func(o *options) { o.ties = "none" }, nil, "-ties"},
		{func(o *options) { o.seeds = 0 }, nil, "-seeds"},
		{func(o *options) { o.churn = math.NaN() }, nil, "-churn"},
		{func(o *options) { o.churn = math.Inf(1) }, nil, "-churn"},
		{func(o *options) { o.churn = -1 }, nil, "-churn"},
		{func(o *options) { o.head = time.Minute }, nil, "-head is a time, and goes with -churn"},
		{func(o *options) { o.churn, o.head = 1, -time.Minute }, nil, "-head"},
		{func(o *options) { o.churn, o.head = 1, time.Minute }, nil, "-head is for the policy ours"},
		{func(o *options) { o.policies, o.ties, o.churn, o.head = "", "random", 1, time.Minute }, nil, "-head is for the policy ours"},
		{func(o *options) { o.pods = "" }, nil, "-pods"},
	} {
		o := good
		tt.edit(&o)
		if err := o.check(tt.rest); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%+v %v: got %v, want %s", o, tt.rest, err, tt.want)
		}
	}
}

// Where nobody comes nobody is refused.
func TestChurnOfNobody(t *testing.T) {
	w := &trace.Workload{Nodes: []trace.Node{{GPUs: 1}}, Classes: []trace.Class{{GPUs: 1, Milli: 500}}, Pods: []int{0}}
	for _, name := range []string{"first-fit", "ours", "bound"} {
		r := &row{Policy: name}
		must.Do(t, r.add(w, options{ties: "name", churn: 1e-9}, 1))
		if got := r.rejected[0]; got != 0 {
			t.Errorf("%s refuses %v", name, got)
		}
	}
}

func TestUnknownPolicy(t *testing.T) {
	if _, err := policy("luck", small(1), nil); err == nil || !strings.Contains(err.Error(), "first-fit") {
		t.Errorf("got %v, want the known policies", err)
	}
}
