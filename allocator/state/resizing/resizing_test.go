// SPDX-License-Identifier: Apache-2.0

package resizing

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// world is node n with a pod of half a device, in container c, and the rest of the device.
func world(resize string) (*corev1.Pod, *v1alpha1.SliceLedger) {
	l := objects.ReadyLedger("n")
	l.Generation = 7
	p := objects.Place(objects.Halves("p", "c"), l, map[string]int{"c": 0})
	p.Annotations[v1alpha1.AnnotationResize] = resize
	objects.Grant(l, p, map[string]int{"c": 0})
	return p, l
}

func sliceIn(l *v1alpha1.SliceLedger, p *corev1.Pod) *v1alpha1.Slice { return slicesOf(p, l)[0].Slice }

// report is what the node agent says of the pod's slice.
func report(l *v1alpha1.SliceLedger, p *corev1.Pod, number int64, has v1alpha1.Amounts, refused string) {
	l.Status.Slices = []v1alpha1.SliceStatus{{Pod: p.UID, Ctr: "c", UUID: l.Spec.Devices[0].UUID, Resized: number, InForce: &has, Refused: refused}}
}

// A shrink counts in full until the node agent reports its number, a grow from the beginning.
func TestStepsOfAResize(t *testing.T) {
	p, l := world(`{"c":{"core":20,"memMiB":20}}`)
	full := v1alpha1.Amounts{Core: sliceIn(l, p).Core, Mem: sliceIn(l, p).Mem}
	small := v1alpha1.Amounts{Core: 20, Mem: 20}
	next := Step(p, l)
	s := sliceIn(next.Ledger, p)
	if next.Reason != ReasonInProgress || s.Core != full.Core || s.Mem != full.Mem || s.Resize.Amounts != small || s.Resize.From != full || s.Resize.Number != 8 || *s.Asked != full {
		t.Fatalf("a shrink begins with %+v %+v of %+v", next, s, s.Asked)
	}
	l = next.Ledger
	report(l, p, 7, small, "") // of an earlier one
	if next := Step(p, l); next != (Next{}) {
		t.Errorf("without a report of its number: %+v", next)
	}
	report(l, p, 8, small, "")
	next = Step(p, l)
	if s := sliceIn(next.Ledger, p); s.Core != 20 || s.Mem != 20 || s.Resize != nil || *s.Asked != full {
		t.Errorf("a shrink ends with %+v", s)
	}
	l = next.Ledger
	if next := Step(p, l); next.Ledger != nil || next.Reason != ReasonDone || next.Message != "c to 20 %, 20 MiB" {
		t.Errorf("then: %+v", next)
	}
	p.Annotations[v1alpha1.AnnotationResize] = `{"c":{"core":40}}`
	l.Generation = 9
	next = Step(p, l)
	if s := sliceIn(next.Ledger, p); s.Core != 40 || s.Mem != 20 || s.Resize.Number != 10 {
		t.Errorf("a grow begins with %+v", s)
	}
	report(next.Ledger, p, 10, v1alpha1.Amounts{Core: 40, Mem: 20}, "")
	next = Step(p, next.Ledger)
	if s := sliceIn(next.Ledger, p); s.Core != 40 || s.Resize != nil {
		t.Errorf("a grow ends with %+v", s)
	}
}

// A refused resize counts as it is in force. The condition names it while the annotation asks for it.
func TestStepRefused(t *testing.T) {
	for _, changed := range []bool{false, true} {
		p, l := world(`{"c":{"memMiB":20}}`)
		l = Step(p, l).Ledger
		full := *sliceIn(l, p).Asked
		report(l, p, 8, full, "2000 MiB are in use")
		if changed {
			p.Annotations[v1alpha1.AnnotationResize] = `{"c":{"memMiB":30}}`
		}
		next := Step(p, l)
		if s := sliceIn(next.Ledger, p); s.Mem != full.Mem || s.Resize != nil || s.Asked != nil {
			t.Errorf("a refused shrink leaves %+v", s)
		}
		if named := next.Reason == ReasonInfeasible && strings.Contains(next.Message, "2000 MiB are in use"); named == changed {
			t.Errorf("something else asked for since: %t, condition %+v", changed, next)
		}
		p.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.PodConditionResize, Status: corev1.ConditionTrue, Reason: next.Reason, Message: next.Message}}
		if again := Step(p, next.Ledger); (again.Ledger != nil) != changed {
			t.Errorf("then: %+v", again)
		}
	}
}

func TestStepThatDoesNotBegin(t *testing.T) {
	tests := map[string]struct {
		resize string
		edit   func(*corev1.Pod, *v1alpha1.SliceLedger)
		reason string
		says   string
	}{
		"nothing asked":        {"", nil, "", ""},
		"as it is":             {`{"c":{"core":50}}`, nil, ReasonDone, "c to 50 %"},
		"not a document":       {`{"c":{"cores":50}}`, nil, ReasonInfeasible, "unknown field"},
		"of another container": {`{"d":{"core":10}}`, nil, ReasonInfeasible, "container d asks for no share"},
		"beyond the request":   {`{"c":{"core":51}}`, nil, ReasonInfeasible, "asks for 50"},
		"beyond its memory":    {`{"c":{"memMiB":1000000}}`, nil, ReasonInfeasible, "can't have more"},
		"in mode mps": {`{"c":{"core":10}}`, func(p *corev1.Pod, l *v1alpha1.SliceLedger) { sliceIn(l, p).Mode = v1alpha1.ModeMPS },
			ReasonInfeasible, "mode mps, which can't change"},
		"node not ready": {`{"c":{"core":10}}`, func(_ *corev1.Pod, l *v1alpha1.SliceLedger) { l.Status.Conditions = nil },
			ReasonDeferred, "takes no slices now"},
		"no room": {`{"c":{"core":50}}`, func(p *corev1.Pod, l *v1alpha1.SliceLedger) {
			s := sliceIn(l, p)
			asked := s.Of()
			s.Core, s.Asked = 10, &asked
			objects.Grant(l, objects.Halves("o", "x"), map[string]int{"x": 0})
			l.Spec.Devices[0].Slices[1].Core = 90
		}, ReasonDeferred, "0 % and"},
		"withdrawn": {"", func(p *corev1.Pod, _ *v1alpha1.SliceLedger) {
			p.Status.Conditions = []corev1.PodCondition{{Type: v1alpha1.PodConditionResize, Reason: ReasonDeferred}}
		}, ReasonDone, "no resize is asked for"},
	}
	for name, tt := range tests {
		p, l := world(tt.resize)
		if tt.edit != nil {
			tt.edit(p, l)
		}
		next := Step(p, l)
		if next.Ledger != nil || next.Reason != tt.reason || !strings.Contains(next.Message, tt.says) {
			t.Errorf("%s: %+v, want %s with %q", name, next, tt.reason, tt.says)
		}
	}
}
