// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"math"
	"math/rand/v2"
	"reflect"
	"testing"

	"vernier.dev/vernier/api/advice"
	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/bench/usage"
)

func near(a, b float64) bool { return math.Abs(a-b) < 1e-9 }

// Each can be worked out by hand.
func TestDevice(t *testing.T) {
	type slice struct {
		quota  float64
		bursts bool
		held   float64
		pieces []Piece
	}
	for name, tt := range map[string]struct {
		limiter Limiter
		slices  []slice
		idle    float64
		want    Done // of 10 s
	}{
		"a quota is all": {
			slices: []slice{{quota: 0.5, pieces: []Piece{{1, 2}}}},
			want:   Done{Loads: []float64{2}, Responses: []Response{{Took: 4, Whole: 2, Slice: 4}}},
		},
		"a piece waits for the one before, also in what it is compared with": {
			slices: []slice{{quota: 0.5, bursts: true, pieces: []Piece{{0, 2}, {1, 1}}}},
			want:   Done{Loads: []float64{3}, Responses: []Response{{2, 2, 4, 0}, {2, 2, 5, 0}}},
		},
		"bursts share by quota": {
			slices: []slice{{quota: 0.2, bursts: true, pieces: []Piece{{0, 6}}}, {quota: 0.1, bursts: true, pieces: []Piece{{0, 3}}}},
			want:   Done{Loads: []float64{6, 3}, Responses: []Response{{9, 6, 30, 0}, {9, 3, 30, 1}}},
		},
		"slack is lost to bursts, not to quotas": {
			limiter: Limiter{Slack: 0.1},
			slices:  []slice{{quota: 0.6, bursts: true, pieces: []Piece{{0, 3}}}, {quota: 0.4, bursts: true, pieces: []Piece{{0, 2}}}},
			want:    Done{Loads: []float64{3, 2}, Responses: []Response{{5, 3, 5, 0}, {5, 2, 5, 1}}},
		},
		"the idle slice alone takes what it wants": {
			idle: 0.5, want: Done{Idle: 5},
		},
		"the idle slice stops for guaranteed work, and costs it what the limiter costs": {
			limiter: Limiter{Slack: 0.2, LateStart: 0.5, TurnLoss: 1},
			slices:  []slice{{quota: 0.5, bursts: true, pieces: []Piece{{1, 2}}}},
			// It has 1.5 s before, and what is after 4 + 1 s.
			idle: 1, want: Done{Loads: []float64{2}, Idle: 6.5, Responses: []Response{{3, 2, 4, 0}}},
		},
		"its least is taken from quotas": {
			limiter: Limiter{Least: 0.2},
			slices:  []slice{{quota: 0.8, pieces: []Piece{{0, 4}}}},
			idle:    1, want: Done{Loads: []float64{4}, Idle: 6, Responses: []Response{{5, 4, 5, 0}}},
		},
		"half of its least is taken from a quota of all": {
			limiter: Limiter{Least: 0.4},
			slices:  []slice{{quota: 1, bursts: true, pieces: []Piece{{0, 4}}}},
			idle:    1, want: Done{Loads: []float64{4}, Idle: 6, Responses: []Response{{5, 4, 4, 0}}},
		},
		"it has what a quota leaves": {
			slices: []slice{{quota: 0.25, pieces: []Piece{{0, 1}}}},
			idle:   1, want: Done{Loads: []float64{1}, Idle: 9, Responses: []Response{{4, 1, 4, 0}}},
		},
		"memory is waited for": {
			slices: []slice{{quota: 1, held: 2, pieces: []Piece{{1, 1}}}},
			want:   Done{Loads: []float64{1}, Responses: []Response{{2, 1, 1, 0}}},
		},
		"what isn't done goes on": {
			slices: []slice{{quota: 1, pieces: []Piece{{9, 3}}}},
			want:   Done{Loads: []float64{1}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			d := Device{Limiter: tt.limiter}
			for _, s := range tt.slices {
				l := NewLoad(s.quota, s.bursts)
				l.Held = s.held
				l.Add(s.pieces...)
				d.Loads = append(d.Loads, l)
			}
			got := d.Run(0, 10, tt.idle)
			ok := len(got.Responses) == len(tt.want.Responses) && near(got.Idle, tt.want.Idle)
			for i, want := range tt.want.Loads {
				ok = ok && near(got.Loads[i], want)
			}
			for i, want := range tt.want.Responses[:min(len(tt.want.Responses), len(got.Responses))] {
				r := got.Responses[i]
				ok = ok && near(r.Took, want.Took) && near(r.Whole, want.Whole) && near(r.Slice, want.Slice) && r.Of == want.Of
			}
			if !ok {
				t.Errorf("got %+v, want %+v", got, tt.want)
			}
		})
	}
}

// A job that rests as long as it works has half of the device, however the time is cut, and its rests go on while others work.
func TestLoop(t *testing.T) {
	l := newLoop(0.5)
	if had := l.run(0.15, 1) + l.run(0.05, 1) + l.run(100, 1); !near(had, 50.1) {
		t.Errorf("%v in 100.2 s", had)
	}
	l = newLoop(0.5)
	if had := l.run(0.1, 0) + l.run(0.1, 1); !near(had, 0.1) {
		t.Errorf("%v after a rest while others worked", had)
	}
	none := newLoop(0)
	if l.presence(0) != 1 || !near(l.presence(0.5), 2.0/3) || none.presence(0) != 0 {
		t.Error("presence:", l.presence(0), l.presence(0.5), none.presence(0))
	}
}

func TestJob(t *testing.T) {
	j := &job{length: 3600}
	for range 11 {
		j.advance(57, 0.5, 28.5) // 627 s of progress, a checkpoint at the end
	}
	j.advance(57, 0.5, 14.25)
	if !near(j.progress, 655.5) || !near(j.saved, 627) || !near(j.evict(), 14.25) || !near(j.progress, 627) {
		t.Errorf("%+v", j)
	}
	j.advance(57, 1, 0.5)
	j.advance(57, 1, 0.6)
	for j.starved < starvesAfter {
		j.advance(57, 1, 0.5)
	}
	if !near(j.ran, 13*57) {
		t.Errorf("starved after %v s", j.ran)
	}
}

func TestQuantile(t *testing.T) {
	for q, want := range map[float64]float64{0: 0, 0.2: 0, 0.375: 24.5, 0.5: 49, 1: 100} {
		if got := Philly.At(q); !near(got, want) {
			t.Errorf("%v: %v, want %v", q, got, want)
		}
	}
}

// steady is a pod with the same use in n steps.
func steady(core api.Percent, mem api.MiB, from, n int, duty float64, used api.MiB) Pod {
	p := Pod{Slice: advice.Amount{Core: core, Mem: mem}, From: from}
	for range n {
		p.Samples = append(p.Samples, usage.Point{Duty: duty, Mem: used})
	}
	p.Know(nil)
	return p
}

var config = Config{Request: 1, Step: 60, Steps: 20, JobMem: 1}

// Three pods of 30 GiB need three GPUs, or two as slices; with 60 % of compute three again.
func TestRun_Devices(t *testing.T) {
	for _, tt := range []struct {
		whole bool
		core  api.Percent
		want  int
	}{{true, 20, 3}, {false, 20, 2}, {false, 60, 3}} {
		var pods []Pod
		for range 3 {
			pods = append(pods, steady(tt.core, 30<<10, 0, 20, 10, 20<<10))
		}
		c := config
		c.Whole, c.Bursts = tt.whole, true
		f := Run(pods, c)
		if f.Most != tt.want || !near(f.InUse, float64(tt.want)*1200) || math.Abs(f.Guaranteed-360) > 1 || f.Idle != 0 {
			t.Errorf("whole %v, %d %%: %d devices, in use %v, busy %v", tt.whole, tt.core, f.Most, f.InUse, f.Guaranteed)
		}
	}
}

// A pod of 79 GiB that uses 20 leaves no memory to batch work, unless it lends. What it lent comes back when it
// grows, and it waits for that once.
func TestRun_Lending(t *testing.T) {
	p := steady(100, 79<<10, 0, 40, 50, 20<<10)
	for step := 30; step < 40; step++ {
		p.Samples[step].Mem = 79 << 10
	}
	c := config
	c.Steps, c.Idle = 40, true
	if f := Run([]Pod{p}, c); f.Idle != 0 || f.ForLent != 0 {
		t.Errorf("without lending: %+v", f)
	}
	c.Lends = true
	f := Run([]Pod{p}, c)
	late := 0
	for _, r := range f.Responses {
		if r.Took > r.Whole+0.001 {
			late++
		}
	}
	if f.Idle < 100 || f.Lost <= 0 || f.ForLent != 1 || f.ForMemory+f.Starved+f.WithDevice != 0 || late < 1 || late > 3 {
		t.Errorf("with lending: idle %v, lost %v, %d evictions for lent memory, %d late", f.Idle, f.Lost, f.ForLent, late)
	}
}

// Idle slices leave for a pod that comes, for the end of the device's last pod, and when they have nothing.
func TestRun_Evictions(t *testing.T) {
	c := config
	c.Steps, c.Idle, c.Bursts = 60, true, true
	c.Limiter.Least = 0.001
	f := Run([]Pod{steady(40, 40<<10, 0, 30, 10, 1), steady(40, 39<<10, 20, 20, 10, 1)}, c)
	if f.Most != 1 || f.ForMemory != 1 || f.WithDevice > 1 || f.Starved != 0 {
		t.Errorf("%+v", f)
	}
	if f = Run([]Pod{steady(100, 1<<10, 0, 60, 100, 1)}, c); f.Starved == 0 {
		t.Errorf("beside a busy pod none leaves: %+v", f)
	}
}

// Batch work goes to the device on which most is expected to be left.
func TestRun_PlacesByExpectation(t *testing.T) {
	busy, quiet := steady(100, 40<<10, 0, 20, 90, 1), steady(100, 40<<10, 0, 20, 0, 1)
	busy.P95, busy.Mean, quiet.P95, quiet.Mean = 95, 90, 1, 0
	f := fleet{Config: config, random: rand.New(rand.NewPCG(1, 0))}
	f.place(&busy, 0)
	f.place(&quiet, 0)
	if f.start(&job{mem: 1 << 10}, 0); f.devices[1].job == nil || f.devices[0].job != nil {
		t.Error("the job is beside the busy pod")
	}
	quiet.P95, quiet.Variance = 1, 400 // mean + 5 σ is 100
	f.devices[1].job = nil
	if f.start(&job{mem: 1 << 10}, 0); f.devices[0].job == nil {
		t.Error("the spread does not count")
	}
}

func TestRun_IsTheSameEachTime(t *testing.T) {
	var pods []Pod
	for i := range 6 {
		pods = append(pods, steady(30, 20<<10, i, 14, float64(5*i), 10<<10))
	}
	c := config
	c.Policy, c.Seed = Policy{Bursts: true, Idle: true, Lends: true}, 3
	first := Run(pods, c)
	if !reflect.DeepEqual(first, Run(pods, c)) {
		t.Error("the same seed gives other figures")
	}
	c.Seed = 4
	if reflect.DeepEqual(first, Run(pods, c)) {
		t.Error("another seed gives the same")
	}
}

// Work comes evenly, or all at once; either way it is the same work.
func TestRun_Models(t *testing.T) {
	for _, onOff := range []bool{false, true} {
		c := config
		c.OnOff, c.Bursts = onOff, true
		longest := 0.0
		c.Observe = func(m Minute) {
			for _, p := range m.Pieces[0] {
				longest = max(longest, p.Work)
			}
		}
		f := Run([]Pod{steady(40, 1<<10, 0, 20, 25.5, 1)}, c)
		if want := map[bool]float64{false: 1, true: 16}[onOff]; math.Abs(f.Guaranteed-306) > 1 || longest != want {
			t.Errorf("on/off %v: busy %v, the longest piece %v", onOff, f.Guaranteed, longest)
		}
	}
}
