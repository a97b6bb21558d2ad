// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
)

// Each driver's daemon is started with what it knows: 535 and 550 do not start with more.
func TestOptions(t *testing.T) {
	for version, want := range map[string]string{
		"": "-f", "535.309.01": "-f", "550.163.01": "-f", "555.58.02": "-f -multiuser-server", "580.65.06": "-f -multiuser-server",
		"615.43.02": "-f -m -p 3",
	} {
		if got := strings.Join(branchOf(version).options(), " "); got != want {
			t.Errorf("driver %q: %q, want %q", version, got, want)
		}
	}
}

// A daemon that tells no status serves all the same, and nothing is taken for a fault.
// Its server takes one user's clients at a time: the next one's server is held to the
// limits too, and nobody is told of a loss.
func TestDriver535(t *testing.T) {
	w := newWorld(t)
	w.driver, w.daemons.old = "535.309.01", true
	w.must(w.grant("a", 30, 1500)) // which is read back as 1G
	c := w.container("a")
	w.containers = append(w.containers, c)
	all, err := w.Apply(c, 1)
	w.must(err)
	if !strings.Contains(all[0].Note, "one user at a time") {
		t.Errorf("status %+v", all)
	}
	w.must(w.Look(time.Now()))
	first := w.daemons.server
	w.daemons.server = w.daemons.pid()
	w.daemons.limits["server threads"] = "100.0"
	w.must(w.Look(time.Now()))
	if _, err := w.Apply(c, 1); err != nil || w.daemons.server == first || w.daemons.limits["server threads"] != "30.0" {
		t.Errorf("%v, limits %v", err, w.daemons.limits)
	}
	if len(w.told) > 0 {
		t.Errorf("the pods are told %q", w.told)
	}
}

// Limits of a GiB and more are told in whole GiB alone: as many are what was set, fewer
// or more are not, and nothing smaller is rounded.
func TestMemoryIsReadBackInWholeGiB(t *testing.T) {
	for _, c := range []struct {
		mem   v1alpha1.MiB
		reply string
		same  bool
	}{
		{20328, "19G", true}, {20328, "20328M", true}, {20480, "20G", true}, {20328, "20G", false}, {20328, "18G", false},
		{20328, "19456M", false}, {1000, "1000M", true}, {1000, "0G", false}, {1000, "999M", false}, {1000, "", false},
	} {
		t.Run(fmt.Sprintf("%d MiB %s", c.mem, c.reply), func(t *testing.T) {
			if got := (limits{mem: c.mem}).sameMemory(c.reply); got != c.same {
				t.Errorf("%v, want %v", got, c.same)
			}
		})
	}
}
