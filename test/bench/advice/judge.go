// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"

	"vernier.dev/vernier/api/advice"
	api "vernier.dev/vernier/api/v1alpha1"
)

// result is how a rule did in the second half.
type result struct {
	pods int
	// requested, and freed of it.
	requested, freed advice.Amount
	// refused pods had a sample above their memory, refusals is how often one had.
	refused, refusals int
	// samples of all pods, and limited: those of a duty above the pod's compute.
	samples, limited int
}

// judge adds a pod that had these amounts.
func (r *result) judge(p *pod, request, given advice.Amount, after func(api.MiB) api.MiB) {
	r.pods++
	r.requested.Core, r.requested.Mem = r.requested.Core+request.Core, r.requested.Mem+request.Mem
	r.freed.Core, r.freed.Mem = r.freed.Core+request.Core-given.Core, r.freed.Mem+request.Mem-given.Mem
	refusals := 0
	for _, s := range p.second {
		if s.Mem > given.Mem {
			refusals++
			if after != nil {
				given.Mem = after(s.Mem)
			}
		}
		if s.Duty > float64(given.Core) {
			r.limited++
		}
	}
	if refusals > 0 {
		r.refused++
	}
	r.refusals += refusals
	r.samples += len(p.second)
}

// request is what the pods of a workload are assumed to ask for today.
type request struct {
	name string
	of   func(pods []*pod) advice.Amount
}

var requests = []request{
	{"80 GiB", func([]*pod) advice.Amount { return device }},
	{"peak × 1.5", func(pods []*pod) advice.Amount {
		most := api.MiB(0)
		for _, p := range pods {
			most = max(most, peak(p.first))
		}
		return advice.Amount{Core: device.Core, Mem: min(most*3/2, device.Mem)}
	}},
}

// evaluate judges a rule for each workload on the pods of its second half. A workload without a first half is left
// out.
func evaluate(workloads [][]*pod, ask request, by rule) (r result) {
	for _, pods := range workloads {
		if len(points(pods)) == 0 {
			continue
		}
		request := ask.of(pods)
		given := by.advise(pods, request)
		for _, p := range pods {
			if len(p.second) > 0 {
				r.judge(p, request, given, by.after)
			}
		}
	}
	return r
}

// show prints the table.
func show(out io.Writer, pods []*pod) {
	each := make([][]*pod, len(pods))
	for i, p := range pods {
		each[i] = []*pod{p}
	}
	fmt.Fprintln(out, "| advice for | request | rule | pods | memory freed, GiB a pod | pods refused | compute freed, % of a GPU | time above it, % |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|---|")
	for _, group := range []struct {
		name      string
		workloads [][]*pod
	}{{"the workload", [][]*pod{pods}}, {"each pod", each}} {
		for _, ask := range requests {
			for _, by := range rules {
				r := evaluate(group.workloads, ask, by)
				n := float64(max(1, r.pods))
				fmt.Fprintf(out, "| %s | %s | %s | %d | %.1f (%.0f %%) | %d (%d times) | %.0f | %.2f |\n", group.name, ask.name, by.name, r.pods,
					float64(r.freed.Mem)/1024/n, 100*float64(r.freed.Mem)/float64(max(1, r.requested.Mem)),
					r.refused, r.refusals, float64(r.freed.Core)/n, 100*float64(r.limited)/float64(max(1, r.samples)))
			}
		}
	}
}
