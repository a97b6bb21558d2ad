// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"fmt"
	"slices"
	"testing"
	"time"
)

// How long a container takes from its pod's placement until it runs: with a share, and with the
// whole device, which is CDI alone.
func TestCardStart(t *testing.T) {
	onCard(t)
	rounds := 20
	if *card == simulatedCard {
		rounds = 2
	}
	took := map[string][]time.Duration{}
	for i := range rounds {
		for what, core := range map[string]int64{"share": 10, "whole": 100} {
			p, course := run1(t, newPod(fmt.Sprintf("start-%s-%d", what, i)).share(core, 0).command("/bin/sh", "-c", "trap exit TERM; sleep 1000000 & wait"))
			took[what] = append(took[what], course.Running-course.Granted)
			remove(t, p)
		}
	}
	for what, all := range took {
		slices.Sort(all)
		figure(t, what+"_median_ms", milliseconds(all[len(all)/2]))
	}
}
