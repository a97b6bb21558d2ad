// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"

	"vernier.dev/vernier/test/bench/colocate/sim"
)

// tolerance is how far the model may be from the limiter, in points of a device.
const tolerance = 2.0

// load and container are what TestReplay of vgpu-limiter/tests reads.
type load struct {
	Seconds    int         `json:"seconds"`
	Containers []container `json:"containers"`
}

type container struct {
	Quota  int          `json:"quota"`
	Bursts bool         `json:"bursts"`
	Pieces [][2]float64 `json:"pieces"`
	Again  bool         `json:"again"`
}

// measured is what it answers: percent of the device, and how long each piece took in seconds, by container.
type measured struct {
	Parts []float64   `json:"parts"`
	Took  [][]float64 `json:"took"`
}

// replayer has loads run under a limiter.
type replayer func([]load) ([]measured, error)

// loadOf has a minute's slices as containers, but for an idle one that wants nothing.
func loadOf(m sim.Minute) load {
	l := load{Seconds: int(step)}
	for i, quota := range m.Quotas {
		c := container{Quota: int(math.Round(100 * quota)), Bursts: m.Bursts}
		for _, p := range m.Pieces[i] {
			c.Pieces = append(c.Pieces, [2]float64{p.At, p.Work})
		}
		l.Containers = append(l.Containers, c)
	}
	if m.Idle > 0 {
		l.Containers = append(l.Containers, container{Pieces: [][2]float64{{sim.BatchStep/m.Idle - sim.BatchStep, sim.BatchStep}}, Again: true})
	}
	return l
}

// model is what the simulation gives to each of these containers, and the responses of each slice.
func model(l sim.Limiter, m sim.Minute) (parts []float64, responses [][]sim.Response) {
	d := sim.Device{Limiter: l}
	for i, quota := range m.Quotas {
		slice := sim.NewLoad(quota, m.Bursts)
		slice.Add(m.Pieces[i]...)
		d.Loads = append(d.Loads, slice)
	}
	done := d.Run(0, step, m.Idle)
	for _, got := range done.Loads {
		parts = append(parts, 100*got/step)
	}
	if m.Idle > 0 {
		parts = append(parts, 100*done.Idle/step)
	}
	responses = make([][]sim.Response, len(d.Loads))
	for _, r := range done.Responses {
		responses[r.Of] = append(responses[r.Of], r)
	}
	return parts, responses
}

// calibrate measures what sharing costs: a slice with pieces of a request and then of 10 s, beside an idle slice that
// always has work.
func calibrate(replay replayer, request float64) (sim.Limiter, error) {
	var loads []load
	lengths := [2]float64{request, 10}
	for _, length := range lengths {
		m := sim.Minute{Quotas: []float64{0.5}, Bursts: true, Pieces: make([][]sim.Piece, 1), Idle: 1}
		for at := 1.0; at+2*length < step; at += 2*length + 1 {
			m.Pieces[0] = append(m.Pieces[0], sim.Piece{At: at, Work: length})
		}
		loads = append(loads, loadOf(m))
	}
	got, err := replay(loads)
	if err != nil {
		return sim.Limiter{}, err
	}
	var took [2]float64
	for i, m := range got {
		if len(m.Took[0]) == 0 {
			return sim.Limiter{}, errors.New("no piece ended on the limiter")
		}
		for _, seconds := range m.Took[0] {
			took[i] += seconds / float64(len(m.Took[0]))
		}
	}
	perSecond := (took[1]-took[0])/(lengths[1]-lengths[0]) - 1
	l := sim.Limiter{Slack: max(0, perSecond/(1+perSecond))}
	l.LateStart = max(0, took[0]-lengths[0]/(1-l.Slack))
	// What the idle slice had while pieces were under way, and how many these were.
	var had, pieces, working [2]float64
	for i, m := range got {
		pieces[i] = float64(len(loads[i].Containers[0].Pieces))
		working[i] = pieces[i] * (took[i] - l.LateStart)
		had[i] = step*m.Parts[1]/100 - (step - working[i])
	}
	l.Least = max(0, had[1]/working[1])
	l.TurnLoss = max(0, (l.Least*working[0]-had[0])/pieces[0])
	return l, nil
}

// agreement is how far the model is from the limiter at most, in a container's part and in the busy time, in points.
// Model and limiter are how much slower pieces were than by their quotas, at 99 %: the same pieces in both.
type agreement struct{ part, busy, model, limiter float64 }

// validate compares the model with the limiter, by minutes. A part or busy time off by more than the tolerance is an
// error, which names each such minute.
func validate(replay replayer, l sim.Limiter, minutes []sim.Minute) (worst agreement, err error) {
	var loads []load
	for _, m := range minutes {
		loads = append(loads, loadOf(m))
	}
	all, err := replay(loads)
	if err != nil {
		return worst, err
	}
	var ofModel, ofLimiter []float64
	for i, m := range minutes {
		parts, responses := model(l, m)
		got := all[i]
		if len(parts) != len(got.Parts) || len(got.Took) != len(got.Parts) {
			return worst, fmt.Errorf("minute %d: the limiter has %d containers, the model %d", i, len(got.Parts), len(parts))
		}
		part, sum := 0.0, 0.0
		for j, want := range parts {
			sum += want - got.Parts[j]
			part = max(part, math.Abs(want-got.Parts[j]))
		}
		worst.part, worst.busy = max(worst.part, part), max(worst.busy, math.Abs(sum))
		for j, list := range responses {
			for k := range min(len(list), len(got.Took[j])) {
				ofModel = append(ofModel, list[k].Took/list[k].Slice)
				ofLimiter = append(ofLimiter, got.Took[j][k]/list[k].Slice)
			}
		}
		if max(part, math.Abs(sum)) > tolerance {
			err = errors.Join(err, fmt.Errorf("minute %d: the model has %.1f, the limiter %.1f, for quotas of %v and an idle slice that wants %.2f", i, parts, got.Parts, m.Quotas, m.Idle))
		}
	}
	if err != nil {
		return worst, fmt.Errorf("the model is more than %.0f points off the limiter, so there are no figures:\n%w", tolerance, err)
	}
	worst.model, worst.limiter = sim.Rank(ofModel, 0.99), sim.Rank(ofLimiter, 0.99)
	return worst, nil
}

// onLimiter runs loads under the real limiter on the simulated GPU, by a clock of their own. It needs go, gcc and
// make, as the limiter's tests do.
func onLimiter(loads []load) (got []measured, err error) {
	dir, err := os.MkdirTemp("", "colocate")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	in, out := filepath.Join(dir, "loads"), filepath.Join(dir, "measured")
	text, err := json.Marshal(loads)
	if err == nil {
		err = os.WriteFile(in, text, 0o600)
	}
	if err != nil {
		return nil, err
	}
	test := exec.Command("go", "test", "-count=1", "-timeout=1h", "-run=^TestReplay$", "vernier.dev/vernier/vgpu-limiter/tests", "-replay="+in, "-measured="+out)
	if text, err := test.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%v: %w\n%s", test.Args, err, text)
	}
	if text, err = os.ReadFile(out); err != nil {
		return nil, err
	}
	if err = json.Unmarshal(text, &got); err == nil && len(got) != len(loads) {
		err = fmt.Errorf("%d loads were replayed, %d measured", len(loads), len(got))
	}
	return got, err
}

// sample keeps minutes in which guaranteed work and an idle slice meet, each as probable as any other. Half are
// those in which two pods or more work.
type sample struct {
	random *rand.Rand
	// each is how many minutes of a kind are kept.
	each int
	kept [2][]sim.Minute
	seen [2]int
}

func (s *sample) add(m sim.Minute) {
	working := 0
	for _, p := range m.Pieces {
		working += min(1, len(p))
	}
	if working == 0 || m.Idle == 0 {
		return
	}
	kind := min(working, 2) - 1
	s.seen[kind]++
	if len(s.kept[kind]) < s.each {
		s.kept[kind] = append(s.kept[kind], m)
	} else if i := s.random.IntN(s.seen[kind]); i < s.each {
		s.kept[kind][i] = m
	}
}
