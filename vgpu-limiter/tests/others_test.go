// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/vgpu-limiter/pace"
)

// TestBesideOthers: beside a process that no limit holds, containers have their quotas where
// NVML says what each process had. Its figures are made here as the driver makes them: whole
// percents of the second before.
func TestBesideOthers(t *testing.T) {
	t.Parallel()
	const seconds, settles = 12, 5
	for _, test := range []struct {
		quotas []int
		load   string
		others string
	}{
		{[]int{45}, "1000 108", "1000 108"},
		{[]int{30}, "1000 108", "20000 108"},
		{[]int{20}, "100 108", "100 108 4"},
		{[]int{50}, "5000 108 1 sync", "serve 4 8 500 8"},
		{[]int{20, 30}, "1000 108", "1000 108"},
	} {
		t.Run(strings.ReplaceAll(fmt.Sprintf("%v %s beside %s", test.quotas, test.load, test.others), " ", "_"), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, false)
			var running []*process
			var tenants []tenant
			for _, quota := range test.quotas {
				tenants = append(tenants, tenant{quota, test.load})
			}
			tenants = append(tenants, tenant{load: test.others})
			for i, tenant := range tenants {
				program, _ := tenant.program()
				args := append([]string{strconv.Itoa(seconds + 1)}, strings.Fields(tenant.load)...)
				if i < len(test.quotas) {
					running = append(running, n.start(n.add(tenant.quota, false), program, args...))
				} else {
					running = append(running, n.startOther(program, args...))
				}
			}
			n.begin(running, tenants)
			began, before := n.clock.now(), map[int]float64{}
			got := make([]float64, len(running))
			for w := range seconds {
				n.run(began + time.Duration(w+1)*time.Second)
				done := n.done()
				sample := pace.Sample{Used: map[*pace.Container]int{}}
				for i, p := range running {
					pid := p.cmd.Process.Pid
					had := 100 * (done[pid] - before[pid]) / float64(time.Second)
					if w >= settles {
						got[i] += had / (seconds - settles)
					}
					if i < len(n.attached) {
						sample.Used[n.attached[i]] = int(had)
					} else {
						sample.Others += int(had)
					}
				}
				before = done
				n.loop.Sampled(n.containers[0].status(0, "uuid"), sample)
			}
			n.finish()
			t.Logf("%.2f", got)
			for i, quota := range test.quotas {
				if off := got[i] - float64(quota); off < -2 || off > 1 {
					t.Errorf("quota %d: %.2f", quota, got[i])
				}
			}
		})
	}
}

// begin has all of them go on, in the same order each time.
func (n *node) begin(running []*process, tenants []tenant) {
	n.t.Helper()
	threads := 0
	for _, l := range running {
		if !l.out.Scan() || l.out.Text() != "ready" {
			n.t.Fatalf("load says %q", l.out.Text())
		}
	}
	for i, l := range running {
		if _, err := io.WriteString(l.in, "\n"); err != nil {
			n.t.Fatal(err)
		}
		_, more := tenants[i].program()
		threads += more
		n.clock.await(threads)
	}
}
