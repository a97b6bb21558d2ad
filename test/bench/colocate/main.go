// SPDX-License-Identifier: Apache-2.0

// Command colocate replays a day of inference pods on simulated GPUs, and adds one way of sharing after the other:
// exact slices, advice, bursting, batch work in idle slices, lent memory. It owns no state. It prints nothing where
// its model of a device isn't what the real limiter does. docs/concepts/colocation.md has the results.
package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"time"

	api "vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/bench/colocate/sim"
	"vernier.dev/vernier/test/bench/usage"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "colocate:", err)
		os.Exit(1)
	}
}

// step is the time of a sample, in seconds.
var step = usage.Interval.Seconds()

type options struct {
	folder, synthetic, picture string
	seeds, minutes             int
	request                    time.Duration
	core                       int
	jobMem                     float64
}

func run() error {
	var o options
	flag.StringVar(&o.folder, "traces", "", "`folder` with pods.csv.gz: t_s, pod, duty_percent, memory_mib")
	flag.StringVar(&o.synthetic, "synthetic", "", "instead of a trace, pods with the duty of `genai` (inference) or philly (training)")
	flag.StringVar(&o.picture, "picture", "", "`file` for a picture of the steps, SVG")
	flag.IntVar(&o.seeds, "seeds", 10, "how many seeds")
	flag.IntVar(&o.minutes, "minutes", 300, "how many minutes of a device to compare with the real limiter")
	flag.DurationVar(&o.request, "request", time.Second, "device `time` of one inference request")
	flag.IntVar(&o.core, "core", 0, "`percent` of compute that owners ask for; 0: the pod's peak")
	flag.Float64Var(&o.jobMem, "job-mem", 1, "`factor` of the memory of batch jobs")
	flag.Parse()
	if err := o.check(flag.Args()); err != nil {
		return err
	}
	pods, source := synthetic(o.synthetic, 1), "synthetic: "+o.synthetic
	if o.folder != "" {
		var err error
		if pods, err = usage.Load(o.folder); err != nil {
			return err
		}
		source = fmt.Sprintf("%d pods of the trace", len(pods))
	}
	l, err := calibrate(onLimiter, o.request.Seconds())
	if err != nil {
		return err
	}
	minutes := o.sample(pods, l)
	alone := slices.Clone(minutes)
	for i := range alone {
		alone[i].Idle = 0
	}
	without, err := validate(onLimiter, l, alone)
	if err != nil {
		return fmt.Errorf("without batch work: %w", err)
	}
	with, err := validate(onLimiter, l, minutes)
	if err != nil {
		return err
	}
	var rows []row
	for _, s := range o.stages() {
		rows = append(rows, o.play(pods, s, l))
	}
	fmt.Printf("%s, %d seeds, requests of %v. Limiter: %s.\n", source, o.seeds, o.request, costs(l))
	fmt.Printf("%d minutes on the limiter: a slice is %.1f points off the model at most, the busy time %.1f.\n", len(minutes), max(with.part, without.part), max(with.busy, without.busy))
	fmt.Printf("Their requests at 99 %%, beside the quota: %.3f with batch work, %.3f without; by the model %.3f and %.3f.\n\n", with.limiter, without.limiter, with.model, without.model)
	show(os.Stdout, rows)
	fmt.Println(verdict(rows, with.limiter))
	if o.picture != "" {
		return os.WriteFile(o.picture, []byte(picture(rows, source)), 0o644)
	}
	return nil
}

func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q is no flag; see -help", rest[0])
	case (o.folder == "") == (o.synthetic == ""):
		return fmt.Errorf("one of -traces and -synthetic names the pods; see -help")
	case o.synthetic != "" && duties[o.synthetic] == nil:
		return fmt.Errorf("-synthetic is genai or philly; see -help")
	case o.seeds < 1 || o.minutes < 2:
		return fmt.Errorf("-seeds is 1 or more, -minutes 2 or more; see -help")
	case o.request < 10*time.Millisecond || o.request > 5*time.Second:
		return fmt.Errorf("-request is from 10ms to 5s; see -help")
	case o.core < 0 || o.core > int(api.WholeGPU):
		return fmt.Errorf("-core is from 0 to 100; see -help")
	case !(o.jobMem > 0 && o.jobMem <= 100):
		return fmt.Errorf("-job-mem is above 0, and 100 at most; see -help")
	}
	return nil
}

func (o *options) stages() []stage { return stages(api.Percent(o.core)) }

func (o *options) config(s stage, l sim.Limiter, onOff bool) sim.Config {
	return sim.Config{Policy: s.policy, Limiter: l, OnOff: onOff, Request: o.request.Seconds(), Step: step, JobMem: o.jobMem}
}

// sample is minutes of devices in the last stage, with both models of what happens within a sample.
func (o *options) sample(pods []usage.Pod, l sim.Limiter) []sim.Minute {
	all := o.stages()
	last := all[len(all)-1]
	s := &sample{random: rand.New(rand.NewPCG(1, 0)), each: o.minutes / 2}
	for _, onOff := range []bool{false, true} {
		c := o.config(last, l, onOff)
		c.Observe = s.add
		runDay(pods, last, c)
	}
	return slices.Concat(s.kept[:]...)
}

// play has all seeds of a stage run, with both models.
func (o *options) play(pods []usage.Pod, s stage, l sim.Limiter) row {
	r := row{name: s.name}
	for i, onOff := range []bool{false, true} {
		all := make([]sim.Figures, o.seeds)
		var wg sync.WaitGroup
		for seed := range all {
			wg.Go(func() {
				c := o.config(s, l, onOff)
				c.Seed = uint64(seed)
				all[seed] = runDay(pods, s, c)
			})
		}
		wg.Wait()
		r.models[i] = sum(all)
	}
	return r
}

// runDay runs the halves of a day, one after the other.
func runDay(pods []usage.Pod, s stage, c sim.Config) (f sim.Figures) {
	lists, steps := halves(pods, s)
	for half, list := range lists {
		c.Steps = steps[half]
		f.Add(sim.Run(list, c))
	}
	return f
}
