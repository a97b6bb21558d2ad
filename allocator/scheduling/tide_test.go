// SPDX-License-Identifier: Apache-2.0

package scheduling

import (
	"testing"
	"time"

	"github.com/go-logr/logr"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// A new idle slice begins within its tide's window, near its end only if its pod ends in time, and at any
// time within what is lent outside.
func TestLends(t *testing.T) {
	end := time.Unix(100_000, 0)
	for name, tt := range map[string]struct {
		outside  v1alpha1.TideAmounts
		before   time.Duration // the end
		deadline int64
		none     bool
		want     bool
	}{
		"no tide":                         {none: true, before: -time.Hour, want: true},
		"in its window":                   {before: time.Hour, want: true},
		"near its end":                    {before: 9 * time.Minute},
		"near its end, and ends in time":  {before: 9 * time.Minute, deadline: 500, want: true},
		"near its end, and ends too late": {before: 9 * time.Minute, deadline: 600},
		"after it":                        {before: 0},
		"after it, within what is lent":   {before: 0, outside: v1alpha1.TideAmounts{Core: 50, Mem: 50}, want: true},
		"after it, beyond the compute":    {before: 0, outside: v1alpha1.TideAmounts{Core: 49, Mem: 50}},
		"after it, beyond the memory":     {before: 0, outside: v1alpha1.TideAmounts{Core: 50, Mem: 19}},
	} {
		t.Run(name, func(t *testing.T) {
			l := objects.ReadyLedger("n")
			objects.Grant(l, objects.Single("other", objects.IdleShare(20, 100)), map[string]int{"c": 0})
			if !tt.none {
				l.Spec.Tide = &v1alpha1.LedgerTide{TideAmounts: v1alpha1.TideAmounts{Core: 80, Mem: 80}, Until: &metav1.Time{Time: end}, Outside: tt.outside, BeforeSeconds: 600}
			}
			known := cache.New(objects.NoFilters{}, nil, logr.Discard())
			known.SetLedger(l)
			pod := objects.Single("p", objects.IdleShare(30, 100))
			if tt.deadline > 0 {
				pod.Spec.ActiveDeadlineSeconds = ptr.To(tt.deadline)
			}
			f := &nodeFilter{Scheduler: &Scheduler{Cache: known, Clock: testclock.NewFakeClock(end.Add(-tt.before))}, pod: pod}
			if got := f.lends("n"); got != tt.want {
				t.Errorf("it lends: %v, want %v", got, tt.want)
			}
		})
	}
}
