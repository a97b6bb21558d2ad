// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/api/v1alpha1"
)

func TestTideStatus(t *testing.T) {
	midnight := time.Date(2026, 5, 1, 0, 0, 0, 0, time.UTC)
	tide := &v1alpha1.Tide{Spec: v1alpha1.TideSpec{Windows: []v1alpha1.TideWindow{{Schedule: "0 2 * * *", Duration: metav1.Duration{Duration: 4 * time.Hour}, TimeZone: "UTC"}}}}
	hour := func(h int) *metav1.Time { return &metav1.Time{Time: midnight.Add(time.Duration(h) * time.Hour)} }
	for _, step := range []struct {
		name        string
		at, skew    time.Duration
		zone        string
		until, next *metav1.Time
		accepted    metav1.ConditionStatus
		message     string
		again       time.Duration
	}{
		{"shut", 90 * time.Minute, 0, "UTC", nil, hour(2), metav1.ConditionTrue, "", 30 * time.Minute},
		{"open", 2 * time.Hour, 0, "UTC", hour(6), nil, metav1.ConditionTrue, "", time.Hour},
		{"a wrong clock keeps it", 7 * time.Hour, time.Hour, "UTC", hour(6), nil, metav1.ConditionUnknown, "1h0m0s ahead of the API server's", 30 * time.Second},
		{"shut again", 7 * time.Hour, 0, "UTC", nil, hour(26), metav1.ConditionTrue, "", time.Hour},
		{"no such zone", 26 * time.Hour, 0, "Mars", nil, nil, metav1.ConditionFalse, `its nodes lend nothing: spec.windows[0].timeZone: "Mars"`, time.Hour},
	} {
		tide.Spec.Windows[0].TimeZone = step.zone
		again := setTideStatus(tide, servertime.Reading{Known: true, Now: midnight.Add(step.at), Skew: step.skew})
		s := &tide.Status
		if s.Open != (step.until != nil) || !s.Until.Equal(step.until) || !s.Next.Equal(step.next) || again != step.again {
			t.Errorf("%s: open %v until %v, next %v, again after %v; want %+v", step.name, s.Open, s.Until, s.Next, again, step)
		}
		if c := meta.FindStatusCondition(s.Conditions, v1alpha1.ConditionAccepted); c == nil || c.Status != step.accepted || !strings.Contains(c.Message, step.message) || (c.Message == "") != (step.message == "") {
			t.Errorf("%s: %+v, want %q", step.name, c, step.message)
		}
	}
}
