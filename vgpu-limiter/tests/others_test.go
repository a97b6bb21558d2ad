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

// TestBesideAnotherUser: two users' vgpu-run, of which neither may read the other's files, share
// a device as they were asked to, where NVML says what each process had.
func TestBesideAnotherUser(t *testing.T) {
	t.Parallel()
	const seconds, settles = 16, 6
	for _, test := range []struct {
		quotas [2]int
		loads  [2]string
	}{
		{[2]int{30, 30}, [2]string{"1000 108", "1000 108"}},
		{[2]int{30, 60}, [2]string{"1000 108", "1000 108"}},
		{[2]int{50, 20}, [2]string{"100 108", "5000 108"}},
	} {
		t.Run(fmt.Sprintf("%d_beside_%d", test.quotas[0], test.quotas[1]), func(t *testing.T) {
			t.Parallel()
			n := newNode(t, false)
			var running []*process
			var tenants []tenant
			for i, quota := range test.quotas {
				if i == 1 {
					n.loop, n.other = pace.NewAt(n.clock.now), n.loop
				}
				tenants = append(tenants, tenant{quota, test.loads[i]})
				args := append([]string{strconv.Itoa(seconds + 1)}, strings.Fields(test.loads[i])...)
				running = append(running, n.start(n.add(quota, false), "load", args...))
			}
			n.begin(running, tenants)
			began, before, got := n.clock.now(), map[int]float64{}, [2]float64{}
			for w := range seconds {
				n.run(began + time.Duration(w+1)*time.Second)
				done, had := n.done(), [2]int{}
				for i, p := range running {
					pid := p.cmd.Process.Pid
					percent := 100 * (done[pid] - before[pid]) / float64(time.Second)
					had[i] = int(percent)
					if w >= settles {
						got[i] += percent / (seconds - settles)
					}
				}
				before = done
				for i, loop := range []*pace.Loop{n.other, n.loop} {
					loop.Sampled(n.containers[0].status(0, "uuid"), pace.Sample{Used: map[*pace.Container]int{n.attached[i]: had[i]}, Others: had[1-i]})
				}
			}
			n.finish()
			for i, quota := range test.quotas {
				if off := got[i] - float64(quota); off < -2 || off > 1 {
					t.Errorf("quota %d: %.2f", quota, got[i])
				}
			}
			t.Logf("%.2f", got)
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
