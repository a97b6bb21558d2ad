// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"slices"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// A pod that has ended or was evicted is sent once which GPU it had, and from when to when. Nobody
// else is: not who has none yet, and not who goes on.
func TestReleased_WhenPodEnds_IsSentOnce(t *testing.T) {
	s := newStage(t, 1)
	for _, name := range []string{"low", "ends", "waits"} {
		s.add(name, 60, 600, objects.Priority(-10), finalized)
		s.run()
		s.pass(time.Hour)
	}
	releases := func(when, want string) {
		t.Helper()
		got := slices.DeleteFunc(s.newEvents(), func(e string) bool { return !strings.Contains(e, notify.ReasonReleased) })
		if text := strings.Join(got, "\n"); text != want {
			t.Errorf("%s: sent %q, want %q", when, text, want)
		}
	}
	s.expect("low:n0 ends:n0 waits")
	s.delete("ends")
	s.work()
	releases("before it ends", "")
	s.end()
	releases("ended", "Normal VernierReleased had slices from 1970-01-01T01:00:00Z to 1970-01-01T03:00:00Z on node n0; container c: GPU 1 (GPU-n0-1), 60 % compute and 600 MiB, limiter")
	s.run()
	s.expect("waits:n0")
	s.add("high", v1alpha1.WholeGPU, 1000, objects.Priority(10))
	s.work()
	s.evicts("low")
	s.end()
	releases("evicted", "Normal VernierReleased had slices from 1970-01-01T00:00:00Z to 1970-01-01T03:00:00Z on node n0; container c: GPU 0 (GPU-n0-0), 60 % compute and 600 MiB, limiter")
	s.run()
	s.expect("high:n0 waits:n0")
	releases("later", "")
}
