// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"vernier.dev/vernier/test/bench/placement/replay"
)

// figure is a mean and the standard deviation over seeds.
type figure struct {
	Mean float64 `json:"mean"`
	SD   float64 `json:"sd"`
}

// failure is the GPU demand of a class that found no room, in percent.
type failure struct {
	// OfClass is the part of the class's demand, OfFailed that of all that failed.
	OfClass  float64 `json:"ofClass"`
	OfFailed float64 `json:"ofFailed"`
}

// row is what is known of a policy. All parts are in percent.
type row struct {
	Policy string `json:"policy"`
	// Allocated part of the GPUs, by the arrived part of the capacity.
	Allocated map[string]figure `json:"allocated,omitempty"`
	// Micros per decision.
	Micros *figure `json:"microsPerDecision,omitempty"`
	// Failed GPU demand by class of pods.
	Failed map[string]failure `json:"failedDemand,omitempty"`
	// Rejected part of the GPU demand under churn.
	Rejected *figure `json:"rejectedDemand,omitempty"`

	allocated             [][]float64
	micros, rejected      []float64
	arrivedOf, failedOfIt map[string]float64
}

func (r *row) fill(one replay.Result) {
	r.allocated = append(r.allocated, one.Allocated)
	if one.Decision > 0 {
		r.micros = append(r.micros, float64(one.Decision)/float64(time.Microsecond))
	}
	if r.arrivedOf == nil {
		r.arrivedOf, r.failedOfIt = map[string]float64{}, map[string]float64{}
	}
	for kind, n := range one.Arrived {
		r.arrivedOf[kind] += n
		r.failedOfIt[kind] += one.Failed[kind]
	}
}

// sum works out the figures of all seeds.
func (r *row) sum() {
	if len(r.rejected) > 0 {
		r.Rejected = over(r.rejected, 100)
		return
	}
	r.Allocated, r.Failed = map[string]figure{}, map[string]failure{}
	for i, mark := range replay.Marks {
		var at []float64
		for _, run := range r.allocated {
			at = append(at, run[i])
		}
		r.Allocated[name(mark)] = *over(at, 100)
	}
	if len(r.micros) == 0 {
		return
	}
	r.Micros = over(r.micros, 1)
	failed := 0.0
	for _, n := range r.failedOfIt {
		failed += n
	}
	for kind, n := range r.arrivedOf {
		if n > 0 {
			r.Failed[kind] = failure{OfClass: 100 * r.failedOfIt[kind] / n, OfFailed: 100 * r.failedOfIt[kind] / max(failed, 1e-9)}
		}
	}
}

func name(mark float64) string { return fmt.Sprintf("%.0f", 100*mark) }

func over(values []float64, scale float64) *figure {
	var f figure
	for _, v := range values {
		f.Mean += v * scale / float64(len(values))
	}
	for _, v := range values {
		f.SD += (v*scale - f.Mean) * (v*scale - f.Mean)
	}
	if len(values) > 1 {
		f.SD = math.Sqrt(f.SD / float64(len(values)-1))
	}
	return &f
}

// show prints a table.
func show(out io.Writer, rows []*row, churn bool) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer t.Flush()
	if churn {
		fmt.Fprintln(t, "policy\tGPU demand rejected, %")
		for _, r := range rows {
			fmt.Fprintf(t, "%s\t%.2f ± %.2f\n", r.Policy, r.Rejected.Mean, r.Rejected.SD)
		}
		return
	}
	fmt.Fprint(t, "policy")
	for _, m := range replay.Marks {
		fmt.Fprintf(t, "\t@%s %%", name(m))
	}
	fmt.Fprintln(t, "\tµs\tGPU demand failed: % of the class (% of all that failed)")
	for _, r := range rows {
		fmt.Fprint(t, r.Policy)
		for _, m := range replay.Marks {
			f := r.Allocated[name(m)]
			fmt.Fprintf(t, "\t%.2f ± %.2f", f.Mean, f.SD)
		}
		if r.Micros == nil {
			fmt.Fprintln(t, "\t\t")
			continue
		}
		fmt.Fprintf(t, "\t%.1f\t%s\n", r.Micros.Mean, kinds(r.Failed))
	}
}

func kinds(failed map[string]failure) string {
	var parts []string
	for _, kind := range slices.Sorted(maps.Keys(failed)) {
		parts = append(parts, fmt.Sprintf("%s %.1f (%.0f)", kind, failed[kind].OfClass, failed[kind].OfFailed))
	}
	return strings.Join(parts, ", ")
}

// waitRow is what is known of a line. Times are in minutes, a mean lifetime being an hour.
type waitRow struct {
	Line string `json:"line"`
	// Longest wait of a pod, and of one at the head of the line; Bound of the latter.
	Longest float64 `json:"longestWait"`
	Head    float64 `json:"longestAtHead"`
	Bound   float64 `json:"bound,omitempty"`
	// Over is by how much a bound was exceeded.
	Over float64 `json:"overBound"`
	// Unserved part of the GPU time asked for, in percent.
	Unserved *figure `json:"unserved"`
	Reserved int     `json:"reservations"`
	Filled   int     `json:"filled"`

	line     replay.Line
	unserved []float64
}

func (r *waitRow) add(w replay.Waits) {
	r.Longest, r.Head = max(r.Longest, w.Longest.Minutes()), max(r.Head, w.Head.Minutes())
	if r.line.ReserveAfter > 0 {
		r.Bound, r.Over = max(r.Bound, w.Bound.Minutes()), max(r.Over, w.HeadOver.Minutes(), w.LineOver.Minutes())
	}
	r.Reserved, r.Filled = r.Reserved+w.Reserved, r.Filled+w.Filled
	r.unserved = append(r.unserved, w.Unserved)
	r.Unserved = over(r.unserved, 100)
}

// showWaits prints a table.
func showWaits(out io.Writer, rows []*waitRow) {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	defer t.Flush()
	fmt.Fprintln(t, "line\tlongest wait, min\tat its head, min\tbound, min\tover it\tGPU time unserved, %\treservations\tfilled")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t", r.Line, r.Longest, r.Head)
		if r.Bound == 0 {
			fmt.Fprint(t, "\t\t")
		} else {
			fmt.Fprintf(t, "%.0f\t%.0f\t", r.Bound, r.Over)
		}
		fmt.Fprintf(t, "%.2f ± %.2f\t%d\t%d\n", r.Unserved.Mean, r.Unserved.SD, r.Reserved, r.Filled)
	}
}
