// SPDX-License-Identifier: Apache-2.0

package page

import (
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// A node says how much idle slices may have there, and until when.
func TestTide(t *testing.T) {
	now := time.Now()
	for name, tt := range map[string]struct {
		until time.Duration // 0 for none
		want  string
	}{
		"open":  {time.Hour, "Idle slices may have 80 % of compute and 70 % of memory until <time"},
		"ended": {-time.Hour, "Idle slices may have 10 % of compute and 0 % of memory, by tide a, &lt;b&gt;, c and 1 more."},
		"shut":  {0, "Idle slices may have 80 % of compute and 70 % of memory, by tide"},
	} {
		l := ledgerOf("n", 1)
		l.Spec.Tide = &v1alpha1.LedgerTide{TideAmounts: v1alpha1.TideAmounts{Core: 80, Mem: 70}, Outside: v1alpha1.TideAmounts{Core: 10}, Tides: []string{"a", "<b>", "c", "d"}}
		if tt.until != 0 {
			l.Spec.Tide.Until = &metav1.Time{Time: now.Add(tt.until)}
		}
		if text := ask(newPage(sources(l), keys{}), "GET", "/", "good", nil).Body.String(); !strings.Contains(text, tt.want) {
			t.Errorf("%s: want %q in\n%s", name, tt.want, text)
		}
	}
	if text := ask(newPage(sources(ledgerOf("n", 1)), keys{}), "GET", "/", "good", nil).Body.String(); strings.Contains(text, "Idle slices") {
		t.Error("a node without a tide has one")
	}
}
