// SPDX-License-Identifier: Apache-2.0

package backfill

import (
	"fmt"
	"math/rand"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/api/v1alpha1"
)

// BenchmarkEarliest is what a look over 5,000 nodes of 8 devices and 31 pods costs: with all
// ends known, with none, and with half of them. ns/op is CPU time.
func BenchmarkEarliest(b *testing.B) {
	const nodes, devices, pods = 5_000, 8, 31
	h100, _ := v1alpha1.ParseAllowList("H100")
	for _, known := range []int{100, 50, 0} {
		r := rand.New(rand.NewSource(1))
		var ledgers []*v1alpha1.SliceLedger
		ends := map[types.UID]time.Time{}
		for i := range nodes {
			l := newLedger(devices)
			l.Name = fmt.Sprint("node-", i)
			for j := range pods {
				uid := types.UID(fmt.Sprintf("%08x-0000-4000-8000-%012x", r.Uint32(), j))
				grant(b, l, uid, on(j%devices, 24, 240))
				if r.Intn(100) < known {
					ends[uid] = at(r.Intn(10_000))
				}
			}
			ledgers = append(ledgers, l)
		}
		for _, c := range []struct {
			name   string
			demand *placement.Demand
		}{
			{"a whole device", ask(container(1, 100, 100))},
			{"half a device", ask(container(1, 50, 50))},
			{"eight devices", ask(container(8, 100, 100))},
			{"another model", &placement.Demand{Containers: ask(container(1, 100, 100)).Containers, Models: h100}},
		} {
			b.Run(fmt.Sprintf("%d known/%s", known, c.name), func(b *testing.B) {
				b.ReportAllocs()
				runtime.LockOSThread()
				defer runtime.UnlockOSThread()
				start := threadTime(b)
				for range b.N {
					for _, l := range ledgers {
						earliest(c.demand, l, index.Room, ends)
					}
				}
				b.ReportMetric(float64(threadTime(b)-start)/float64(b.N), "ns/op")
			})
		}
	}
}

func threadTime(b *testing.B) time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		b.Fatal(err)
	}
	return time.Duration(t.Nano())
}
