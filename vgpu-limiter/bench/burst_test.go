// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// BenchmarkGiveBack is how much later a container with 60 percent has its share,
// whenever it comes back from a pause, than if it had it at once: beside a
// neighbour with 30 percent that may burst, and beside the same one that may not. In
// ms, the median and the worst of ten times: what the container lacks of 60 ms
// after 100 ms, at its share. Negative: it had saved something.
func BenchmarkGiveBack(b *testing.B) {
	for _, microseconds := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("neighbour=%dus", microseconds), func(b *testing.B) {
			for b.Loop() {
				for _, bursts := range []bool{false, true} {
					late := giveBack(b, microseconds, bursts)
					name := map[bool]string{false: "plain", true: "bursting"}[bursts]
					b.ReportMetric(late[len(late)/2], name+"-late-ms")
					b.ReportMetric(late[len(late)-1], name+"-worst-ms")
				}
			}
			b.ReportMetric(0, "ns/op")
		})
	}
}

func giveBack(b *testing.B, microseconds int, bursts bool) []float64 {
	b.Helper()
	const quota = 60
	first := newPlace(b, 30)
	first.allowed(b, 30, bursts)
	second := first.neighbour(b, quota)
	loop := pace.New()
	ctx, stop := context.WithCancel(b.Context())
	defer stop()
	go loop.Run(ctx)
	for _, p := range []place{first, second} {
		c := must.Get(loop.Attach(p.path("limits"), p.path("counters"), p.path("pace")))(b)
		defer c.Detach()
	}
	l := first.load(b, 6, strconv.Itoa(microseconds))
	l.begin(b)
	out := second.run(b, true, filepath.Join(second.bin, "pulse"), "10", "1000")
	l.longest(b)
	var late []float64
	for _, line := range strings.Fields(out) {
		had := must.Get(strconv.ParseFloat(line, 64))(b)
		late = append(late, 100-had/1e3*100/quota)
	}
	slices.Sort(late)
	return late
}
