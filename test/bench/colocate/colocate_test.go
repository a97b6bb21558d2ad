// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/api/advice"
	"vernier.dev/vernier/test/bench/colocate/sim"
	"vernier.dev/vernier/test/bench/usage"
)

// like is a limiter that does what the model does with these costs, and so many points more for the first container.
func like(l sim.Limiter, more float64) replayer {
	return func(loads []load) (got []measured, _ error) {
		for _, load := range loads {
			m := sim.Minute{}
			for _, c := range load.Containers {
				if c.Again {
					m.Idle = sim.BatchStep / (c.Pieces[0][0] + c.Pieces[0][1])
					continue
				}
				m.Quotas, m.Bursts = append(m.Quotas, float64(c.Quota)/100), c.Bursts
				var pieces []sim.Piece
				for _, p := range c.Pieces {
					pieces = append(pieces, sim.Piece{At: p[0], Work: p[1]})
				}
				m.Pieces = append(m.Pieces, pieces)
			}
			parts, responses := model(l, m)
			parts[0] += more
			answer := measured{Parts: parts, Took: make([][]float64, len(parts))}
			for i, list := range responses {
				for _, r := range list {
					answer.Took[i] = append(answer.Took[i], r.Took)
				}
			}
			got = append(got, answer)
		}
		return got, nil
	}
}

// What a limiter costs is found by how loads run on it.
func TestCalibrate(t *testing.T) {
	for _, want := range []sim.Limiter{
		{}, {Slack: 0.05, Least: 0.02, LateStart: 0.01}, {Slack: 0.01, LateStart: 0.001, TurnLoss: 0.05},
	} {
		got, err := calibrate(like(want, 0), 1)
		if err != nil || math.Abs(got.Slack-want.Slack) > 1e-6 || math.Abs(got.LateStart-want.LateStart) > 1e-6 ||
			math.Abs(got.Least-want.Least) > 0.005 || math.Abs(got.TurnLoss-want.TurnLoss) > 0.006 {
			t.Errorf("got %+v, %v, want %+v", got, err, want)
		}
	}
}

func TestValidate(t *testing.T) {
	right := sim.Limiter{Slack: 0.05, LateStart: 0.01}
	minutes := []sim.Minute{
		{Quotas: []float64{0.4, 0.3}, Bursts: true, Pieces: [][]sim.Piece{{{At: 1, Work: 10}}, {{At: 2, Work: 8}}}, Idle: 0.9},
		{Quotas: []float64{0.4}, Bursts: true, Pieces: [][]sim.Piece{{{At: 1, Work: 10}}}},
	}
	if got, err := validate(like(right, 1.5), right, minutes); err != nil || math.Abs(got.part-1.5) > 1e-9 || math.Abs(got.busy-1.5) > 1e-9 || got.model != got.limiter {
		t.Errorf("1.5 points: %+v, %v", got, err)
	}
	if _, err := validate(like(right, 2.5), right, minutes); err == nil || !strings.Contains(err.Error(), "minute 1: the model has") {
		t.Errorf("2.5 points: %v", err)
	}
	// A limiter on which the idle slice has a fifth of guaranteed work's time.
	if _, err := validate(like(sim.Limiter{Slack: 0.05, Least: 0.2}, 0), right, minutes); err == nil || strings.Contains(err.Error(), "minute 1") {
		t.Errorf("another limiter: %v", err)
	}
	if got, err := validate(like(sim.Limiter{Slack: 0.05, LateStart: 0.51}, 0), right, minutes[:1]); err != nil || got.limiter < got.model+0.005 {
		t.Errorf("a limiter that is later: %+v, %v", got, err)
	}
	failed := errors.New("no limiter")
	if _, err := validate(func([]load) ([]measured, error) { return nil, failed }, right, minutes); !errors.Is(err, failed) {
		t.Errorf("without a limiter: %v", err)
	}
}

// pod is there from a sample on, with the same memory.
func pod(from int, duties ...float64) usage.Pod {
	p := usage.Pod{Name: "p"}
	for i, d := range duties {
		p.Points = append(p.Points, usage.Point{At: time.Duration(from+i) * usage.Interval, Duty: d, Mem: 10 << 10})
	}
	return p
}

func TestHalves(t *testing.T) {
	all := []usage.Pod{pod(0, 80, 10, 20, 30, 40, 50), pod(1, 7), pod(4, 8, 9)}
	all[0].Points = append(all[0].Points[:4], all[0].Points[5]) // one is missing
	s := stages(0)
	lists, steps := halves(all, s[1])
	if steps != [2]int{2, 4} || len(lists[0]) != 2 || len(lists[1]) != 2 {
		t.Fatalf("%v steps, %+v", steps, lists)
	}
	first, late := lists[1][0], lists[1][1]
	if first.From != 0 || len(first.Samples) != 4 || first.Samples[2].Duty != 30 || first.Samples[3].Duty != 50 || first.P95 != 80 || first.Mean != 45 {
		t.Errorf("%+v", first)
	}
	if late.From != 2 || late.P95 != 9 || late.Slice != (advice.Amount{Core: 9, Mem: 11 << 10}) {
		t.Errorf("%+v", late)
	}
	if got := lists[0][0].Slice; got != (advice.Amount{Core: 80, Mem: 11 << 10}) {
		t.Errorf("exact: %v", got)
	}
	if lists, _ = halves(all, s[0]); lists[0][1].Slice != (advice.Amount{Core: 100, Mem: 80 << 10}) {
		t.Errorf("whole: %v", lists[0][1].Slice)
	}
	if lists, _ = halves(all, stages(50)[1]); lists[0][0].Slice.Core != 50 {
		t.Errorf("of 50 %%: %v", lists[0][0].Slice)
	}
}

// Advice is learnt before it holds.
func TestHalves_Advice(t *testing.T) {
	duties := make([]float64, 400)
	for i := range duties {
		duties[i] = 20
		if i == 399 {
			duties[i] = 90
		}
	}
	lists, _ := halves([]usage.Pod{pod(0, duties...)}, stages(0)[2])
	if before, after := lists[0][0].Slice.Core, lists[1][0].Slice.Core; before != 90 || after != 23 {
		t.Errorf("%d %% before, %d %% after; want the peak, then 20 %% and 15 %% of it", before, after)
	}
}

func TestSynthetic(t *testing.T) {
	for name, mean := range map[string][2]float64{"genai": {6, 9}, "philly": {45, 60}} {
		pods, sum, n, changes := synthetic(name, 1), 0.0, 0.0, 0.0
		for _, p := range pods {
			for i, s := range p.Points {
				sum, n = sum+s.Duty, n+1
				if i > 0 && s.Duty != p.Points[i-1].Duty {
					changes++
				}
			}
		}
		if len(pods) != 100 || sum/n < mean[0] || sum/n > mean[1] || changes < n/10 || changes > n/4 {
			t.Errorf("%s: %d pods of %.1f %%, %v changes in %v samples", name, len(pods), sum/n, changes, n)
		}
	}
	if synthetic("other", 1) != nil {
		t.Error("pods of no distribution")
	}
}

// All stages of a small trace: each has all the work, sharing needs fewer devices, and idle slices fill them.
func TestPlay(t *testing.T) {
	var pods []usage.Pod
	for i := range 6 {
		duties := make([]float64, 200)
		for j := range duties {
			duties[j] = float64((i + j) % 5 * 8)
		}
		pods = append(pods, pod(0, duties...))
	}
	o := options{seeds: 3, request: time.Second, jobMem: 1}
	if f := runDay(pods, o.stages()[1], o.config(o.stages()[1], sim.Limiter{}, false)); f.Lasted != 200*step {
		t.Errorf("a day of 200 samples lasted %v s", f.Lasted)
	}
	var rows []row
	for _, s := range o.stages() {
		rows = append(rows, o.play(pods, s, sim.Limiter{}))
	}
	whole, exact, idle := rows[0].models[0], rows[1].models[0], rows[4].models[0]
	if whole.devices != 6 || math.Abs(whole.busy()-16) > 0.5 || exact.devices != 2 && exact.devices != 3 || math.Abs(exact.busy()*exact.devices-96) > 3 || idle.idle < 20 {
		t.Errorf("%+v", rows)
	}
	var once, twice bytes.Buffer
	show(&once, rows)
	show(&twice, []row{rows[0], o.play(pods, o.stages()[1], sim.Limiter{})})
	if line := strings.Split(twice.String(), "\n")[3]; !strings.Contains(once.String(), line+"\n") || strings.Count(once.String(), "\n") != 10 {
		t.Errorf("no %s in\n%s", line, once.String())
	}
	for p99, want := range map[float64]string{1.03: ", met.", 1.04: " 4.0 % on the limiter, not met."} {
		if got := verdict(rows, p99); !strings.HasSuffix(got, want) || verdict(rows[:1], p99) == got {
			t.Error(got)
		}
	}
	for d := xml.NewDecoder(strings.NewReader(picture(rows, "a trace"))); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

func TestOptions_WhenWrong(t *testing.T) {
	good := options{folder: "x", seeds: 10, minutes: 50, request: time.Second, jobMem: 1}
	if err := good.check(nil); err != nil {
		t.Error(err)
	}
	for want, edit := range map[string]func(*options){
		"-traces":    func(o *options) { o.folder = "" },
		"-synthetic": func(o *options) { o.folder, o.synthetic = "", "other" },
		"-seeds":     func(o *options) { o.seeds = 0 },
		"-minutes":   func(o *options) { o.minutes = 1 },
		"-request":   func(o *options) { o.request = time.Minute },
		"-core":      func(o *options) { o.core = 101 },
		"-job-mem":   func(o *options) { o.jobMem = math.NaN() },
	} {
		o := good
		if edit(&o); o.check(nil) == nil || !strings.Contains(o.check(nil).Error(), want) {
			t.Errorf("%s: %v", want, o.check(nil))
		}
	}
	if err := good.check([]string{"x"}); err == nil {
		t.Error("an argument is no error")
	}
}
