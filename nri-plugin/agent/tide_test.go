// SPDX-License-Identifier: Apache-2.0

package agent

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/servertime"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// Idle slices get no turns from the end of their tide's window, and are ended after its grace. While the
// time is not known they get none, and end no earlier; that is told once.
func TestTides(t *testing.T) {
	end := time.Unix(10_000, 0)
	l := &v1alpha1.SliceLedger{Spec: v1alpha1.SliceLedgerSpec{
		Tide: &v1alpha1.LedgerTide{TideAmounts: v1alpha1.TideAmounts{Core: 80, Mem: 80}, Since: metav1.NewTime(time.Unix(1, 0)), Until: &metav1.Time{Time: end}, GraceSeconds: 30},
		Devices: []v1alpha1.DeviceLedger{{UUID: "GPU-1", Core: 100, Mem: 1000, Slices: []v1alpha1.Slice{
			{Pod: "idle", Owner: "team/idle", Ctr: "c", Mem: 10, Idle: 30}, {Pod: "other", Owner: "team/other", Ctr: "c", Core: 50, Mem: 10}}}}}}
	index := ledger.NewIndex(l)
	now := servertime.Reading{Known: true}
	var shut map[types.UID]bool
	looked, told := 0, 0
	a := &tides{
		index: func() *ledger.Index { return index }, read: func() servertime.Reading { return now },
		shut: func(pods map[types.UID]bool) { shut = pods }, look: func(types.UID) { looked++ }, tell: func(string) { told++ },
	}
	for _, step := range []struct {
		at          time.Duration // from the end on
		skew        time.Duration
		shut, over  bool
		looked, now int
	}{
		{at: -time.Hour},
		{at: -time.Hour, skew: time.Minute, shut: true, now: 1},
		{at: -time.Minute, skew: time.Minute, shut: true, now: 1},
		{at: -time.Second, now: 1},
		{at: 0, shut: true, now: 1},
		{at: 29 * time.Second, shut: true, now: 1},
		{at: 30 * time.Second, shut: true, over: true, looked: 1, now: 1},
	} {
		now.Now, now.Skew = end.Add(step.at), step.skew
		a.once()
		if got := fmt.Sprint(shut["idle"], a.isOver("idle"), looked, told, shut["other"], a.isOver("other")); got != fmt.Sprint(step.shut, step.over, step.looked, step.now, false, false) {
			t.Errorf("%v after the end, %v ahead: %s", step.at, step.skew, got)
		}
	}
	index = ledger.NewIndex(&v1alpha1.SliceLedger{Spec: v1alpha1.SliceLedgerSpec{Devices: l.Spec.Devices}})
	if a.once(); len(shut) > 0 || a.isOver("idle") {
		t.Errorf("without a tide: shut %v", shut)
	}
}
