// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// More than these, and others: go test -run TestRandomShares -loads 200 -seed 7.
var (
	randomLoads = flag.Int("loads", 40, "loads that TestRandomShares makes up")
	randomSeed  = flag.Uint64("seed", 1, "what it makes them up from")
)

// madeUp is a load: 1 to 4 containers with quotas of 5 to 90 that leave something over or
// nothing, launches of 10 µs to 100 ms, a quarter of them 100 ms.
func madeUp(random *rand.Rand) (tenants []tenant, ms []float64) {
	for left, n := 100, 1+random.IntN(4); n > 0 && left >= 5; n-- {
		quota := 5 + random.IntN(max(1, min(90, left-5*(n-1))-4))
		if n == 1 && len(tenants) > 0 && random.IntN(3) == 0 {
			quota = min(90, left)
		}
		left -= quota
		us := math.Round(10 * math.Pow(10, 4*random.Float64()))
		if random.IntN(4) == 0 {
			us = 100000
		}
		tenants = append(tenants, tenant{quota, strconv.Itoa(int(us)) + " 108"})
		ms = append(ms, us/1e3)
	}
	return tenants, ms
}

// TestRandomShares: containers get their quotas whatever comes together, alone and side
// by side, on a device that divides its time and on one that runs a launch after the
// other. A launch isn't split: in a second nobody can be nearer to a quota than the launch
// that crosses its end and, side by side, the one of another that it has to wait for. So
// each second is to be within that or within 2 points, whichever is more, and the mean of
// ten seconds within 1 point, or within what one launch is of them.
func TestRandomShares(t *testing.T) {
	t.Parallel()
	const seconds = 11
	random := rand.New(rand.NewPCG(*randomSeed, 0))
	var mu sync.Mutex
	containers, first, each, mean, calls := 0, 0, 0, 0, 0 // and how many are farther off in the first second, in another one, on average; have longer calls
	t.Run("loads", func(t *testing.T) {
		for range *randomLoads {
			tenants, ms := madeUp(random)
			serial := random.IntN(2) == 1
			t.Run(strings.ReplaceAll(fmt.Sprint(tenants, map[bool]string{false: "shared", true: "serial"}[serial]), " 108", ""), func(t *testing.T) {
				t.Parallel()
				got := measure(t, serial, seconds, tenants)
				mu.Lock()
				defer mu.Unlock()
				for i, tenant := range tenants {
					bound, sum, worst, quota := ms[i], 0.0, 0.0, float64(tenant.quota)
					for j, other := range ms {
						if j != i {
							bound = max(bound, ms[i]+other)
						}
					}
					bound = max(2, bound/10) // percent of a second
					for _, window := range got.windows[1:] {
						sum += window[i]
						worst = max(worst, math.Abs(window[i]-quota))
					}
					off, early := math.Abs(sum/(seconds-1)-quota), math.Abs(got.windows[0][i]-quota)
					t.Logf("%d: %.2f off on average, worst second %.2f, first %.2f; bound %.2f; longest call %.0f ms, periods of %v", tenant.quota, off, worst, early, bound, got.stalls[i], got.period)
					containers++
					first += count(early > bound)
					each += count(worst > bound)
					mean += count(off > max(1, ms[i]/10/(seconds-1)))
					calls += count(got.stalls[i] > longestCall(t, tenant, got.period))
					if off > 2 {
						t.Errorf("quota %d: %.2f off on average; seconds: %.1f", tenant.quota, off, got.windows)
					}
				}
			})
		}
	})
	t.Logf("of %d containers %d are farther off in the first second, %d in another one, %d on average; %d have longer calls", containers, first, each, mean, calls)
	if first*20 > containers || each*20 > containers || mean*50 > containers || calls*15 > containers {
		t.Errorf("of %d containers %d are farther off in the first second, %d in another one, %d on average, %d have longer calls; want no more than a twentieth, a twentieth, a fiftieth, a fifteenth", containers, first, each, mean, calls)
	}
}

func count(yes bool) int {
	if yes {
		return 1
	}
	return 0
}
