// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// BenchmarkWaiting is what processes cost that wait for their turns nearly all the time,
// side by side, with 90 percent between them and launches of 100 ms: percent of a core for
// each, its start and its launches included. Who is behind its quota looks each
// millisecond whether its turn has come.
func BenchmarkWaiting(b *testing.B) {
	for _, n := range []int{1, 4, 16} {
		b.Run(fmt.Sprintf("containers=%d", n), func(b *testing.B) {
			const seconds = 5
			first := newPlace(b, uint32(90/n))
			loop := pace.New()
			ctx, stop := context.WithCancel(b.Context())
			defer stop()
			go loop.Run(ctx)
			places := []place{first}
			for len(places) < n {
				places = append(places, first.neighbour(b, uint32(90/n)))
			}
			for _, p := range places {
				c := must.Get(loop.Attach(p.path("limits"), p.path("counters"), p.path("pace")))(b)
				defer c.Detach()
			}
			var used time.Duration
			for b.Loop() {
				var loads []*load
				for _, p := range places {
					loads = append(loads, p.load(b, seconds, "100000"))
				}
				for _, l := range loads {
					l.begin(b)
				}
				for _, l := range loads {
					l.longest(b)
					used += l.cmd.ProcessState.UserTime() + l.cmd.ProcessState.SystemTime()
				}
			}
			b.ReportMetric(100*used.Seconds()/float64(b.N)/float64(n)/seconds, "%core")
			b.ReportMetric(0, "ns/op")
		})
	}
}
