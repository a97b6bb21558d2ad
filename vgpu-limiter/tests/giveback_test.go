// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"io"
	"slices"
	"strconv"
	"testing"

	"vernier.dev/vernier/test/must"
)

// TestGiveBack: a container that comes back from a pause, beside one that may burst and
// has had all of the device, has its share no more than 20 ms later than at once. By the
// clock of its own that TestShares has.
func TestGiveBack(t *testing.T) {
	t.Parallel()
	const quota, times = 60, 10
	for _, microseconds := range []int{100, 1000, 5000} {
		for _, serial := range []bool{false, true} {
			t.Run(strconv.Itoa(microseconds)+map[bool]string{false: "/shared", true: "/serial"}[serial], func(t *testing.T) {
				t.Parallel()
				n := newNode(t, serial)
				load := n.start(n.add(30, true), "load", "6", strconv.Itoa(microseconds))
				if !load.out.Scan() || load.out.Text() != "ready" {
					t.Fatalf("load says %q", load.out.Text())
				}
				must.Get(io.WriteString(load.in, "\n"))(t)
				n.clock.await(1)
				pulse := n.start(n.add(quota, false), "pulse", strconv.Itoa(times), "1000")
				n.clock.await(2)
				n.finish()
				var late []float64
				for pulse.out.Scan() {
					had := must.Get(strconv.ParseFloat(pulse.out.Text(), 64))(t)
					late = append(late, 100-had/1e3*100/quota)
				}
				slices.Sort(late)
				t.Logf("late by %.0f ms", late)
				if len(late) != times || late[times-1] > 20 {
					t.Errorf("its share comes %.0f ms late", late)
				}
			})
		}
	}
}
