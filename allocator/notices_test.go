// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"testing"
	"time"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/api/v1alpha1"
)

// A pod that cannot be as it asks is told once, and again of the next mistake.
func TestInvalidIsToldOnce(t *testing.T) {
	s := newStage(t, 1)
	p := s.add("p", 50, 100)
	mode := func(value string) []string {
		p = s.get("p")
		p.Annotations[v1alpha1.AnnotationMode] = value
		s.put(p)
		s.work()
		return s.newEvents()
	}
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Devices = nil })
	s.work()
	s.newEvents()
	if got := mode("exclusive"); about(got, notify.ReasonInvalid) != 1 {
		t.Errorf("events %q", got)
	}
	for range 5 {
		p = s.get("p")
		p.Labels = map[string]string{"n": fmt.Sprint(s.clock.Now().UnixNano())}
		s.put(p)
		s.clock.Step(time.Hour)
		s.work()
	}
	s.says()
	if got := mode("nonsense"); about(got, notify.ReasonInvalid) != 1 {
		t.Errorf("of another mistake: %q", got)
	}
}
