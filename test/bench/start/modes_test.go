// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package start

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// arm is a container, and the one without a GPU beside it on the same node, of which
// everything but the GPU is equal.
type arm struct {
	name        string
	on          *system.Node
	with, plain *container
	// memory is what must hold the slice; empty without the agent.
	memory v1alpha1.Guarantee
	holder *holder
}

// setting is how an arm comes to its slice.
type setting struct {
	name   string
	node   int
	device int
	share  v1alpha1.Share
	slice  v1alpha1.Slice
	memory v1alpha1.Guarantee
}

var settings = []setting{
	{"exclusive", 0, 1, v1alpha1.Share{GPUs: 1, Core: v1alpha1.WholeGPU, MemPercent: v1alpha1.WholeGPU}, v1alpha1.Slice{Mode: v1alpha1.ModeExclusive}, v1alpha1.GuaranteeDevice},
	{"mig", 2, 0, v1alpha1.Share{GPUs: 1, Core: 10, MemMiB: 4096}, v1alpha1.Slice{Mode: v1alpha1.ModeMIG, MIG: &v1alpha1.MIGPlace{Profile: 19, Start: 6, Size: 1}}, v1alpha1.GuaranteeHardware},
	{"driver-limit", 0, 0, share, v1alpha1.Slice{}, v1alpha1.GuaranteeDriver},
	{"limiter", 3, 0, share, v1alpha1.Slice{}, v1alpha1.GuaranteeCooperative},
	{"mps", 0, 2, share, v1alpha1.Slice{Mode: v1alpha1.ModeMPS}, v1alpha1.GuaranteeDriver},
	{"mps-legacy", 3, 1, share, v1alpha1.Slice{Mode: v1alpha1.ModeMPS}, v1alpha1.GuaranteeCooperative},
}

// arms makes the containers: those of the modes on nodes with the agent, and on one
// without it the GPU as NVIDIA's own parts give it.
func arms(b *testing.B) []*arm {
	plain := map[*system.Node]*container{}
	for i, n := range sys.Nodes {
		runtime := connect(b, n)
		plain[n] = newContainer(b, n, runtime, sandboxOf("bench-none"))
		if i != without {
			must.Do(b, n.Agent.EnsureRunning())
			empty(b, n)
		}
	}
	var all []*arm
	for _, s := range settings {
		n := sys.Nodes[s.node]
		_, h := grant(b, n, "bench-"+s.name, s.device, s.share, s.slice)
		pod := sandboxOf("bench-" + s.name)
		h.holds(pod)
		all = append(all, &arm{name: s.name, on: n, with: newContainer(b, n, connect(b, n), pod), plain: plain[n], memory: s.memory, holder: h})
	}
	n := sys.Nodes[without]
	must.Do(b, n.Agent.Stop(b.Context()))
	stock(b, n)
	l := must.Get(ledgerOf(b.Context(), n))(b)
	c := newContainer(b, n, connect(b, n), sandboxOf("bench-device"))
	c.gpu(stockKind + "=" + l.Status.Devices[0].UUID)
	return append(all, &arm{name: device, on: n, with: c, plain: plain[n]})
}

// without is the node that has no agent here.
const without = 1

// check starts the arm's container, as soon as the node lets it, and fails unless what
// holds it is what is measured.
func (a *arm) check(b *testing.B) {
	b.Helper()
	var id string
	await(b, a.name+" on "+a.on.Name+" to be started", func(ctx context.Context) (err error) {
		id, _, err = a.with.start(ctx)
		return err
	})
	if a.holder != nil {
		await(b, fmt.Sprintf("%s on %s to be held by %q", a.name, a.on.Name, a.memory), func(ctx context.Context) error {
			l, err := ledgerOf(ctx, a.on)
			if err != nil {
				return err
			}
			for _, s := range l.Status.Slices {
				if s.Container == id && s.Memory == a.memory {
					return nil
				}
			}
			return fmt.Errorf("the ledger says %+v", l.Status.Slices)
		})
	}
	must.Do(b, a.with.remove(b.Context(), id))
}

// BenchmarkModes starts each mode's container, and one without a GPU on the same
// node, once per iteration, in random order. What a mode adds is the difference of the
// two: the devices, the CDI hooks and whatever enforces the slice. The device by
// NVIDIA's own parts, on a node without the agent, is measured in the same way.
func BenchmarkModes(b *testing.B) {
	all := arms(b)
	for _, a := range all {
		a.check(b)
	}
	with, plain := map[string][]time.Duration{}, map[*system.Node][]time.Duration{}
	order := rand.New(rand.NewPCG(5, 6))
	once := func(c *container, what string) time.Duration {
		took, err := c.once(b.Context())
		if err != nil {
			b.Fatalf("%s: %v", what, err)
		}
		return took
	}
	round := func(count bool) {
		now, done := map[string]time.Duration{}, map[*system.Node]time.Duration{}
		for _, i := range order.Perm(2 * len(all)) {
			a := all[i/2]
			if i%2 == 0 {
				now[a.name] = once(a.with, a.name)
			} else if _, there := done[a.on]; !there {
				done[a.on] = once(a.plain, "none on "+a.on.Name)
			}
		}
		if !count {
			return
		}
		for name, t := range now {
			with[name] = append(with[name], t)
		}
		for n, t := range done {
			plain[n] = append(plain[n], t)
		}
	}
	for range warmUp {
		round(false)
	}
	for b.Loop() {
		round(true)
	}
	b.ReportMetric(0, "ns/op") // of a round of starts and ends: it says nothing
	for _, q := range []struct {
		name string
		of   float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		for _, a := range all {
			more := compare(q.of, with[a.name], plain[a.on])
			b.ReportMetric(more.ms, a.name+"-added-"+q.name+"-ms")
			b.Logf("%s of %d starts: %s %.1f ms, without a GPU on that node %.1f ms, added %v", q.name, len(with[a.name]),
				a.name, quantile(q.of, with[a.name]), quantile(q.of, plain[a.on]), more)
		}
	}
}
