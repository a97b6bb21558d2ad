// SPDX-License-Identifier: Apache-2.0

// Command placement replays a GPU-sharing trace to placement policies and prints
// how much of the GPUs each manages to give out. See README.md.
package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"math/rand"
	"os"
	"slices"
	"strings"
	"time"

	"vernier.dev/vernier/test/bench/placement/bound"
	"vernier.dev/vernier/test/bench/placement/replay"
	"vernier.dev/vernier/test/bench/placement/rival"
	"vernier.dev/vernier/test/bench/placement/trace"
)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "placement:", err)
		os.Exit(1)
	}
}

type options struct {
	nodes, pods, policies, ties string
	seed0                       int64
	seeds                       int
	churn                       float64
	head                        time.Duration
	json                        bool
}

func run() error {
	var o options
	flag.StringVar(&o.nodes, "nodes", "", "CSV `file` of nodes: sn, cpu_milli, memory_mib, gpu, model")
	flag.StringVar(&o.pods, "pods", "", "CSV `file` of pods: cpu_milli, memory_mib, num_gpu, gpu_milli and, if any, gpu_spec")
	flag.StringVar(&o.policies, "policy", "", "policies to compare, of "+strings.Join(names(), ", ")+" (default all, with -head ours)")
	flag.Int64Var(&o.seed0, "seed0", 42, "first seed of the arrivals' order")
	flag.IntVar(&o.seeds, "seeds", 10, "how many seeds")
	flag.StringVar(&o.ties, "ties", "name", "equal nodes: name takes the first, random any")
	flag.Float64Var(&o.churn, "churn", 0, "instead of filling the cluster, let pods come and go at this `load` (0.95: 95 % of the GPUs asked for on average)")
	flag.DurationVar(&o.head, "head", 0, "with -churn: pods that do not fit wait, and the first of them has a reservation after this `time` (10m: a sixth of a mean lifetime)")
	flag.BoolVar(&o.json, "json", false, "print JSON")
	flag.Parse()
	if err := o.check(flag.Args()); err != nil {
		return err
	}
	w, err := trace.Load(o.nodes, o.pods)
	if err != nil {
		return err
	}
	if o.head > 0 {
		return o.line(w)
	}
	var rows []*row
	for _, name := range o.names() {
		row := &row{Policy: name}
		for seed := o.seed0; seed < o.seed0+int64(o.seeds); seed++ {
			if err := row.add(w, o, seed); err != nil {
				return err
			}
		}
		row.sum()
		rows = append(rows, row)
	}
	if o.json {
		return encode(rows)
	}
	show(os.Stdout, rows, o.churn > 0)
	return nil
}

func encode(rows any) error {
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	return enc.Encode(rows)
}

// line plays every seed with lines that differ in what is reserved for the first.
func (o *options) line(w *trace.Workload) error {
	w = replay.WithCrumbs(w)
	var rows []*waitRow
	for _, r := range []waitRow{
		{Line: "nothing reserved"},
		{Line: "reserved, ends known", line: replay.Line{ReserveAfter: o.head, EndsKnown: true}},
		{Line: "reserved, ends not known", line: replay.Line{ReserveAfter: o.head}},
	} {
		for seed := o.seed0; seed < o.seed0+int64(o.seeds); seed++ {
			r.add(replay.Wait(w, newOurs(w, nil), seed, o.churn, r.line))
		}
		rows = append(rows, &r)
	}
	if o.json {
		return encode(rows)
	}
	showWaits(os.Stdout, rows)
	return nil
}

// check finds what cannot be meant, before anything is played: that takes minutes.
func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q is no flag, and what follows it would not be read; see -help", rest[0])
	case o.ties != "name" && o.ties != "random":
		return fmt.Errorf("-ties is name or random; see -help")
	case o.seeds < 1:
		return fmt.Errorf("-seeds is 1 or more; see -help")
	case !(o.churn >= 0 && o.churn <= maxLoad):
		return fmt.Errorf("-churn is a load from 0 to %d, 1 for as many GPUs as there are; see -help", maxLoad)
	case o.head < 0 || o.head > 0 && o.churn == 0:
		return fmt.Errorf("-head is a time, and goes with -churn; see -help")
	case o.head > 0 && (o.ties != "name" || !slices.Equal(o.names(), []string{"ours"})):
		return fmt.Errorf("-head is for the policy ours, and for ties by name; see -help")
	case o.nodes == "" || o.pods == "":
		return fmt.Errorf("-nodes and -pods name the files to replay; see -help")
	}
	for _, name := range o.names() {
		if !slices.Contains(names(), name) {
			return fmt.Errorf("-policy: %q is none of %s", name, strings.Join(names(), ", "))
		}
	}
	return nil
}

// maxLoad is more than anybody can learn from, and less than what takes for ever.
const maxLoad = 100

// names of the policies to compare.
func (o *options) names() (list []string) {
	switch {
	case o.policies == "" && o.head > 0:
		return []string{"ours"}
	case o.policies == "":
		return names()
	}
	for name := range strings.SplitSeq(o.policies, ",") {
		list = append(list, strings.TrimSpace(name))
	}
	return list
}

// add plays one seed.
func (r *row) add(w *trace.Workload, o options, seed int64) error {
	var ties *rand.Rand
	if o.ties == "random" {
		ties = rand.New(rand.NewSource(seed))
	}
	if r.Policy == "bound" {
		return r.bound(w, o, seed)
	}
	p, err := policy(r.Policy, w, ties)
	switch {
	case err != nil:
		return err
	case o.churn > 0:
		r.rejected = append(r.rejected, replay.Churn(w, p, seed, o.churn))
	default:
		r.fill(replay.Fill(w, p, w.Arrivals(seed, replay.Most)))
	}
	return nil
}

// bound adds what no policy could exceed: at each of the marks, or, where pods come
// and go, on average over moments.
func (r *row) bound(w *trace.Workload, o options, seed int64) error {
	if o.churn > 0 {
		wanted, possible := 0.0, 0.0
		for _, pods := range replay.Wanted(w, seed, o.churn) {
			part, err := bound.Allocated(w, pods)
			if err != nil {
				return err
			}
			wanted += w.Part(pods)
			possible += part
		}
		if wanted == 0 {
			possible, wanted = 1, 1 // nothing ran at these moments, nothing is refused
		}
		// Where all of it is possible, rounding may make it more.
		r.rejected = append(r.rejected, max(0, 1-possible/wanted))
		return nil
	}
	var one replay.Result
	arrivals := w.Arrivals(seed, replay.Most)
	for _, mark := range replay.Marks {
		part, err := bound.Allocated(w, w.Until(arrivals, mark))
		if err != nil {
			return err
		}
		one.Allocated = append(one.Allocated, part)
	}
	r.fill(one)
	return nil
}

var rivals = map[string]func(w *trace.Workload) rival.Policy{
	"first-fit":    func(*trace.Workload) rival.Policy { return rival.FirstFit },
	"best-fit":     func(*trace.Workload) rival.Policy { return rival.BestFit },
	"spread":       func(*trace.Workload) rival.Policy { return rival.Spread },
	"gpushare":     func(*trace.Workload) rival.Policy { return rival.GPUShare },
	"hami":         func(*trace.Workload) rival.Policy { return rival.HAMi },
	"hami-binpack": func(*trace.Workload) rival.Policy { return rival.HAMiBinpack },
	"fgd":          rival.FGD,
}

func names() []string {
	return []string{"first-fit", "best-fit", "spread", "gpushare", "hami", "hami-binpack", "fgd", "ours", "bound"}
}

func policy(name string, w *trace.Workload, ties *rand.Rand) (replay.Placer, error) {
	if name == "ours" {
		return newOurs(w, ties), nil
	}
	make, ok := rivals[name]
	if !ok {
		return nil, fmt.Errorf("-policy: %q is none of %s", name, strings.Join(names(), ", "))
	}
	return rival.NewCluster(w, make(w), ties), nil
}
