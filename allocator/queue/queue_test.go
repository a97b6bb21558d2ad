// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"

	"vernier.dev/vernier/allocator/cache"
	"vernier.dev/vernier/allocator/group"
	"vernier.dev/vernier/allocator/notify"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/podgroup"
	"vernier.dev/vernier/allocator/podrequest"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// queueInTest is an open queue with what it stands on.
type queueInTest struct {
	*Queue
	t      *testing.T
	clock  *testclock.FakeClock
	events *record.FakeRecorder
}

func newQueue(t *testing.T) *queueInTest {
	clock, events := testclock.NewFakeClock(time.Unix(0, 0)), record.NewFakeRecorder(100)
	known := cache.New(objects.NoFilters{}, logr.Discard())
	n := &notify.Notifier{Events: events, Clock: clock, Log: logr.Discard()}
	q := New(known, podgroup.New(&group.Sizes{}), n, func(*corev1.Pod) []string { return nil }, clock, logr.Discard())
	work := NewWork(clock)
	t.Cleanup(work.ShutDown)
	q.Open(work)
	return &queueInTest{q, t, clock, events}
}

// add has the cache know of a pod, and the queue.
func (q *queueInTest) add(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := objects.Pod(name, map[string]v1alpha1.Share{"c": objects.Share(10, 100)})
	p.UID, p.ResourceVersion = types.UID(name), "1"
	for _, e := range edits {
		e(p)
	}
	q.cache.SetPod(p)
	q.groups.Update(p)
	q.Update(nil, p)
	return p
}

func (q *queueInTest) gone(p *corev1.Pod) {
	q.cache.DeletePod(p, true)
	q.Delete(p)
}

// pop is what is due, in words.
func (q *queueInTest) pop() string {
	var due []string
	for q.work.Len() > 0 {
		items, _ := q.Pop(MaxRound)
		for _, it := range items {
			if it.IsMove() {
				q.ActivatePending(it)
			} else {
				due = append(due, it.Pod.Name+it.Gang.Name+it.Node)
			}
			q.Done(it, nil)
		}
	}
	return strings.Join(due, " ")
}

// The members of a gang are looked at together, and a standby looks at nothing.
func TestAdd(t *testing.T) {
	q := newQueue(t)
	q.add("a")
	q.add("m0", objects.InGang("g", 2))
	q.add("m1", objects.InGang("g", 2))
	if got := q.pop(); got != "a g" {
		t.Errorf("due: %q", got)
	}
	q.Close()
	q.add("b")
	work := NewWork(q.clock)
	defer work.ShutDown()
	q.Open(work)
	if got := q.pop(); got != "a b g" {
		t.Errorf("a new leader looks at %q", got)
	}
}

// Unschedulable pods are moved by what may help them, and one that is in flight is not missed.
func TestMoveToActive(t *testing.T) {
	q := newQueue(t)
	refused, short, elsewhere := q.add("refused"), q.add("short"), q.add("elsewhere")
	q.pop()
	q.MarkUnschedulable([]*corev1.Pod{refused}, true, "refused", "why")
	q.MarkUnschedulable([]*corev1.Pod{short}, false, "short", "why")
	q.MarkElsewhere([]*corev1.Pod{elsewhere}, notify.ReasonWaiting, "gang", "why")
	q.MarkInvalid(q.add("invalid"), errors.New("wrong"))
	q.pop()
	if got := fmt.Sprint(q.Waiting()); got != "map[devices:1 invalid:1 others:1 scheduler:1]" {
		t.Errorf("waiting: %s", got)
	}
	if q.MoveToActive(cache.OnAll); q.pop() != "invalid refused short" {
		t.Error("more room does not move what waits for it")
	}
	for _, p := range []*corev1.Pod{refused, short, elsewhere} {
		q.gone(p)
	}
	q.gone(q.cache.Pod(types.NamespacedName{Namespace: "ns", Name: "invalid"}))
	if q.MoveToActive(cache.OnAll); q.work.Len() > 0 {
		t.Error("moves although no pod waits")
	}
	late := q.add("late")
	items, _ := q.Pop(1)
	q.MoveToActive(cache.OnAll) // the decision on it may be under way
	q.MarkUnschedulable([]*corev1.Pod{late}, false, "short", "why")
	q.Done(items[0], nil)
	if got := q.pop(); got != "late" {
		t.Errorf("due: %q: what changed while it was in flight is missed", got)
	}
}

// An item that fails is looked at again: at once a few times where something has changed, and
// after a pause else.
func TestDone(t *testing.T) {
	q := newQueue(t)
	q.add("a")
	for n := range MaxAttempts + 1 {
		items, _ := q.Pop(1)
		q.Done(items[0], ErrAgain)
		if now := q.work.Len() == 1; now != (n < MaxAttempts) {
			t.Fatalf("attempt %d: looked at again at once: %v", n, now)
		}
	}
}

// Nothing is kept of a pod that is gone, or that is marked after that.
func TestDelete(t *testing.T) {
	q := newQueue(t)
	p, first := q.add("p", objects.Near("x")), q.add("first", objects.Labelled("x"))
	q.Counted(first, "n0")
	if !q.Blocked(p) {
		t.Fatal("does not wait for a pod that it selects")
	}
	q.gone(p)
	q.MarkUnschedulable([]*corev1.Pod{p}, false, "short", "why")
	q.gone(first)
	if n := len(q.unschedulable) + len(q.order.unbound) + len(q.order.constrained) + len(q.order.blockedBy) + len(q.order.waits); n > 0 {
		t.Errorf("%d entries are kept", n)
	}
}

// A pod waits for one on its way that it selects, for so long, and is looked at when that one
// is bound.
func TestBlocked(t *testing.T) {
	q := newQueue(t)
	p, first := q.add("p", objects.Near("x")), q.add("first", objects.Labelled("x"))
	other := q.add("other")
	q.Counted(first, "n0")
	q.pop()
	if !q.Blocked(p) || q.Blocked(other) {
		t.Fatal("the one that selects has to wait, and no other")
	}
	bound := first.DeepCopy()
	bound.Spec.NodeName, bound.Spec.SchedulingGates = "n0", nil
	if q.Counted(bound, "n0"); q.pop() != "p" {
		t.Error("not looked at when the other one is bound")
	}
	q.Counted(first, "n0")
	q.Blocked(p)
	q.clock.Step(MaxWaitWithin)
	if q.Blocked(p) {
		t.Error("waits for longer than it may")
	}
}

// Whom a pod waits for does not change from look to look: the oldest of all.
func TestMustWaitForTheOldest(t *testing.T) {
	for name, terms := range map[string][2]func(*corev1.Pod){
		"who selects others":   {objects.Labelled("x"), objects.SpreadFrom},
		"who others select":    {objects.SpreadFrom, objects.Labelled("x")},
		"who does and is both": {objects.SpreadFrom, objects.SpreadFrom},
	} {
		q := newQueue(t)
		for i := range 20 {
			q.Counted(q.add(fmt.Sprintf("p%02d", i), objects.Labelled("x"), terms[0]), "n0")
		}
		if first := q.mustWait(q.add("next", objects.Labelled("x"), terms[1])); first.GetName() != "p00" {
			t.Errorf("%s waits for %v, want p00", name, first.GetName())
		}
	}
}

// What pods of a class lack is known until there is more room, and not from before.
func TestUnschedulableClasses(t *testing.T) {
	pod := func(core v1alpha1.Percent, policy string) string {
		p := objects.Pod("p", map[string]v1alpha1.Share{"c": objects.Share(core, 10)})
		p.Annotations[v1alpha1.AnnotationPolicy] = policy
		return podrequest.EquivalenceClass(p)
	}
	same := pod(10, "pack")
	if same != pod(10, "pack") || same == pod(11, "pack") || same == pod(10, "spread") {
		t.Error("classes are told apart by something else than what pods ask for")
	}
	var s UnschedulableClasses
	lack := &placement.Shortfall{Container: "c"}
	s.Note("a", lack, s.Time())
	if s.Find("a") != lack || s.Find("b") != nil {
		t.Error("not found as it was noted")
	}
	since := s.Time()
	s.forget()
	if s.Note("a", lack, since); s.Find("a") != nil {
		t.Error("a lack from before there was more room is found")
	}
}
