// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/api/v1alpha1"
)

// lookAgain has every waiting pod looked at again.
func (s *stage) lookAgain() {
	s.allocator.queue.MoveToActive(cache.OnAll)
	s.work()
}

// A pod whose reason stays gets one event, however often and for however long it is
// looked at.
func TestOneEventForAReason(t *testing.T) {
	s := newStage(t, 1)
	for _, name := range []string{"full", "full2"} {
		s.add(name, 90, 900)
	}
	s.work()
	s.schedule(s.get("full"))
	s.schedule(s.get("full2"))
	s.told()
	s.add("p", 50, 100)
	s.add("odd", 50, 100)
	s.work()
	for range 200 {
		s.lookAgain()
		s.pass(97 * time.Second)
	}
	for _, e := range s.told() {
		if about([]string{e}, notify.ReasonWaiting) != 1 {
			t.Errorf("told %q", e)
		}
	}
	s.add("third", 50, 100)
	s.work()
	if got := s.told(); len(got) != 1 {
		t.Errorf("told %q, want one event of the third pod", got)
	}
	if got := kept(s.allocator.queue, "unschedulable"); got != 3 {
		t.Errorf("%d pods wait, want 3", got)
	}
}

// Figures that change with every look make few events, fewer and fewer: a day of them
// makes about as many as there are doublings of a minute, and then one an hour.
func TestFlappingFiguresMakeNoStorm(t *testing.T) {
	s := newStage(t, 1)
	for _, name := range []string{"full", "full2"} {
		s.add(name, 90, 900)
	}
	s.work()
	s.add("p", 50, 100)
	s.work()
	s.told()
	var told []string
	for minute := range 24 * 60 {
		if name := fmt.Sprintf("small%d", minute); minute%2 == 0 {
			s.add(name, 5, 50)
		} else {
			small := s.get(fmt.Sprintf("small%d", minute-1))
			s.must(s.api.Delete(t.Context(), small))
			s.notify(small, true)
		}
		s.work()
		s.lookAgain()
		s.clock.Step(time.Minute)
		for _, e := range s.told() {
			if strings.Contains(e, "needs 50 % compute") {
				told = append(told, e)
			}
		}
	}
	if len(told) < 10 || len(told) > 35 {
		t.Errorf("%d events within a day: %q", len(told), told)
	}
}

// A pod that cannot be as it asks is told once, and again of the next mistake.
func TestInvalidIsToldOnce(t *testing.T) {
	s := newStage(t, 1)
	p := s.add("p", 50, 100)
	mode := func(value string) []string {
		p = s.get("p")
		p.Annotations[v1alpha1.AnnotationMode] = value
		s.must(s.api.Update(t.Context(), p))
		s.notify(p, false)
		s.work()
		return s.told()
	}
	s.setLedgerStatus("n0", func(st *v1alpha1.SliceLedgerStatus) { st.Devices = nil })
	s.work()
	s.told()
	if got := mode("exclusive"); about(got, notify.ReasonInvalid) != 1 {
		t.Errorf("told %q", got)
	}
	for range 5 {
		p = s.get("p")
		p.Labels = map[string]string{"n": fmt.Sprint(s.clock.Now().UnixNano())}
		s.must(s.api.Update(t.Context(), p))
		s.notify(p, false)
		s.clock.Step(time.Hour)
		s.work()
	}
	if got := s.told(); len(got) != 0 {
		t.Errorf("told again: %q", got)
	}
	if got := mode("nonsense"); about(got, notify.ReasonInvalid) != 1 {
		t.Errorf("of another mistake: %q", got)
	}
}

// A new leader tells a pod nothing that it was told already, and everybody else; who was
// told that it waits is told when it no longer does.
func TestNewLeaderTellsNothingTwice(t *testing.T) {
	s := newStage(t, 1)
	for _, name := range []string{"full", "full2"} {
		s.add(name, 90, 900)
	}
	s.work()
	s.allocator.notify.BeginHandover()
	for _, name := range []string{"same", "other", "never", "small"} {
		core := v1alpha1.Percent(50)
		if name == "small" {
			core = 5
		}
		s.add(name, core, 100)
	}
	// Figures of the leader before, another reason, none; and one that is placed by now.
	said := func(pod, reason, text string, minute int) corev1.Event {
		p := s.get(pod)
		return corev1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace}, InvolvedObject: corev1.ObjectReference{Name: pod, UID: p.UID}, Reason: reason, Message: text,
			LastTimestamp: metav1.NewTime(s.clock.Now().Add(time.Duration(minute-10) * time.Minute))}
	}
	s.read()
	if told := s.told(); len(told) > 0 {
		t.Fatalf("told before anything was looked at: %q", told)
	}
	why := "container c needs 50 % compute and 100 MiB on one GPU; nearest: n0 GPU 0 has 3 % and 7 MiB free"
	events := []corev1.Event{said("same", notify.ReasonWaiting, why, 2), said("same", notify.ReasonWaiting, "older words", 1), said("other", notify.ReasonWaiting, "PodGroup a/b: 1 of 2 pods are there", 1),
		said("small", notify.ReasonWaiting, why, 1), said("never", notify.ReasonWaiting, why, 1), said("never", notify.ReasonPlaced, "on node n0", 2)}
	for s.queue.Len() > 0 {
		s.step()
		s.read()
	}
	if told := s.told(); about(told, notify.ReasonWaiting)+about(told, notify.ReasonPlaced) > 0 {
		t.Fatalf("told before it was known what had been told: %q", told)
	}
	s.allocator.notify.EndHandover(events)
	// It was placed before that.
	if told := s.told(); len(told) != 1 || about(told, notify.ReasonPlaced) != 1 {
		t.Errorf("told %q, want that small is placed, whose owner was told that it waits", told)
	}
	s.pass(notify.SyncAgain)
	told := s.told()
	if about(told, notify.ReasonWaiting) != 2 {
		t.Errorf("told %q, want that other and never wait", told)
	}
}
