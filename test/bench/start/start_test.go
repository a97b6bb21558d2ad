// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package start

import (
	"math/rand/v2"
	"testing"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
)

const (
	// block is how many rounds the agents stay where they are.
	block = 25
	// warmUp rounds come before each block and are not counted.
	warmUp = 3
)

// BenchmarkStart starts each variant's container once per iteration. One of two
// equal nodes has the agent and one has not, so that all four meet whatever else
// the machine does at the same time; every block of rounds they change places, so
// that neither node's own ways count; within a round the order is random, so that
// what one variant leaves behind meets all.
//
// Metrics: milliseconds at p50 and p99 for each variant, and what Vernier adds to
// a container with a GPU (slice less device) and to one without (plain-with less
// plain).
func BenchmarkStart(b *testing.B) {
	with, without := newNode(b, sys.Nodes[0]), newNode(b, sys.Nodes[1])
	took := map[string][]time.Duration{}
	order := rand.New(rand.NewPCG(1, 2))
	round := func(count bool) {
		for _, i := range order.Perm(len(variants)) {
			v, on := variants[i], without
			if v == slice || v == plainWith {
				on = with
			}
			t, err := on.containers[v].once(b.Context())
			if err != nil {
				b.Fatalf("%s on %s: %v", v, on.Name, err)
			}
			if count {
				took[v] = append(took[v], t)
			}
		}
	}
	for i := 0; b.Loop(); i++ {
		if i%block == 0 {
			b.StopTimer()
			with, without = without, with
			with.agent(b, true)
			without.agent(b, false)
			for v, on := range map[string]*node{device: without, plain: without, slice: with, plainWith: with} {
				on.check(b, v)
			}
			for range warmUp {
				round(false)
			}
			b.StartTimer()
		}
		round(true)
	}
	b.ReportMetric(0, "ns/op") // of four starts and ends: it says nothing
	for _, q := range []struct {
		name string
		of   float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		for _, v := range variants {
			b.ReportMetric(quantile(q.of, took[v]), v+"-"+q.name+"-ms")
		}
		gpu, none := compare(q.of, took[slice], took[device]), compare(q.of, took[plainWith], took[plain])
		b.ReportMetric(gpu.ms, "gpu-added-"+q.name+"-ms")
		b.ReportMetric(none.ms, "plain-added-"+q.name+"-ms")
		b.Logf("%s of %d starts: added with a GPU %v, without %v", q.name, len(took[slice]), gpu, none)
	}
	l := &v1alpha1.SliceLedger{}
	must.Do(b, sys.Client.Get(b.Context(), client.ObjectKey{Name: with.Name}, l))
	b.Logf("driver %s, its memory limits: %t %s", l.Status.Driver.Version, l.Status.Driver.MemoryLimits, l.Status.Driver.MemoryLimitsReason)
}
