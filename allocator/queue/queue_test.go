// SPDX-License-Identifier: Apache-2.0

package queue

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/priority"
	"vernier.dev/vernier/api/podrequest"
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
	known := cache.New(objects.NoFilters{}, nil, logr.Discard())
	known.Priorities.Everywhere = []string{priority.Any}
	n := &notify.Notifier{Events: events, Clock: clock, Log: logr.Discard()}
	q := New(known, gang.New(&podgroup.Sizes{}), n, func(*corev1.Pod) []string { return nil }, clock, logr.Discard())
	work := NewWork(clock)
	t.Cleanup(work.ShutDown)
	q.Open(work)
	return &queueInTest{q, t, clock, events}
}

// add has the cache know of a pod, and the queue.
func (q *queueInTest) add(name string, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := objects.Single(name, objects.Share(10, 100), edits...)
	p.ResourceVersion = "1"
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
	q.MarkUnschedulable([]*corev1.Pod{refused}, true, notify.Why{Key: "refused", Text: "why"})
	q.MarkUnschedulable([]*corev1.Pod{short}, false, notify.Why{Key: "short", Text: "why"})
	q.MarkElsewhere([]*corev1.Pod{elsewhere}, notify.ReasonWaiting, notify.Why{Key: "gang", Text: "why"})
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
	q.MarkUnschedulable([]*corev1.Pod{late}, false, notify.Why{Key: "short", Text: "why"})
	q.Done(items[0], nil)
	if got := q.pop(); got != "late" {
		t.Errorf("due: %q: what changed while it was in flight is missed", got)
	}
}

// All that waits is looked at every FlushAfter, whatever for; and pods for which nobody could be
// evicted also when the scheduler's reasons may have changed.
func TestFlush(t *testing.T) {
	q := newQueue(t)
	short, elsewhere := q.add("short"), q.add("elsewhere")
	q.pop()
	q.MarkUnschedulable([]*corev1.Pod{short}, false, notify.Why{Key: "short", Text: "why"})
	q.MarkElsewhere([]*corev1.Pod{elsewhere}, notify.ReasonWaiting, notify.Why{Key: "gang", Text: "why"})
	before := q.Classes.Time()
	if q.ActivatePending(Item{move: onFlush}); q.pop() != "elsewhere short" || q.Classes.Time() == before {
		t.Error("not all that waits is looked at, or what they lack is not found out again")
	}
	if q.ActivatePending(Item{move: onRefused}); q.pop() != "" {
		t.Error("a pod without devices is moved by what the scheduler reads")
	}
	q.MarkNoVictims([]*corev1.Pod{short, elsewhere}, "")
	if q.ActivatePending(Item{move: onRefused}); q.pop() != "short" {
		t.Error("a pod for which nobody could be evicted is not moved by what the scheduler reads")
	}
}

// An item that fails is looked at again: at once a few times where something has changed, and
// after a pause else. The attempts are counted in a row: one that succeeds gives the next as many.
func TestDone(t *testing.T) {
	q := newQueue(t)
	q.add("a")
	for range 2 {
		for n := range MaxAttempts {
			items, _ := q.Pop(1)
			if q.Done(items[0], ErrAgain); q.work.Len() != 1 {
				t.Fatalf("attempt %d: not looked at again at once", n)
			}
		}
		items, _ := q.Pop(1)
		if q.Done(items[0], nil); len(q.attempts) > 0 {
			t.Error("attempts are remembered")
		}
		q.Add(items[0])
	}
	for n := range MaxAttempts + 1 {
		items, _ := q.Pop(1)
		q.Done(items[0], ErrAgain)
		if now := q.work.Len() == 1; now != (n < MaxAttempts) {
			t.Fatalf("attempt %d: looked at again at once: %v", n, now)
		}
	}
}

// An item that fails for long has one line in the log, and one error once that has lasted; both name
// it, with no empty field. After it has succeeded the next failure is a first one again.
func TestFailuresAreLogged(t *testing.T) {
	for _, tt := range []struct {
		item  Item
		named string
	}{
		{Item{Pod: types.NamespacedName{Namespace: "ns", Name: "a"}}, `"pod"={"name"="a" "namespace"="ns"}`}, {Item{Node: "n0"}, `"node"="n0"`},
	} {
		q := newQueue(t)
		var lines []string
		q.log = funcr.New(func(_, line string) { lines = append(lines, line) }, funcr.Options{})
		fail := func(times int) {
			for range times {
				q.Done(tt.item, errors.New("broken"))
			}
		}
		fail(50)
		if len(lines) != 2 || !strings.Contains(lines[0], `"msg"="Trying again"`) || !strings.Contains(lines[1], `"msg"="Failed repeatedly, trying again" "error"="broken"`) {
			t.Errorf("%s: %q", tt.item, lines)
		}
		q.Done(tt.item, nil)
		fail(1)
		for _, line := range lines {
			if !strings.Contains(line, tt.named) || strings.Contains(line, `=""`) {
				t.Errorf("%s: want %s and no empty field: %s", tt.item, tt.named, line)
			}
		}
		if len(lines) != 3 {
			t.Errorf("%s: after a success: %q", tt.item, lines)
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
	q.MarkUnschedulable([]*corev1.Pod{p}, false, notify.Why{Key: "short", Text: "why"})
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
		p := objects.Single("p", objects.Share(core, 10))
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

func itemsIn(items []Item) string {
	var in []string
	for _, it := range items {
		in = append(in, it.Pod.Name+it.Gang.Name+it.Node)
	}
	return strings.Join(in, " ")
}

// What is due now is taken without waiting, so many at most, and what stands for the unschedulable pods is left
// for the next round.
func TestPopDue(t *testing.T) {
	q := newQueue(t)
	if got := q.PopDue(10); len(got) != 0 {
		t.Errorf("due: %v of nothing", got)
	}
	waits := q.add("waits")
	q.pop()
	q.MarkUnschedulable([]*corev1.Pod{waits}, false, notify.Why{Key: "short", Text: "why"})
	q.add("a")
	q.MoveToActive(cache.OnAll)
	q.add("b")
	q.Add(Item{Node: "n0"})
	q.add("c")
	if got := q.PopDue(4); itemsIn(got) != "a b n0" || q.inFlight != 2 {
		t.Errorf("due: %q, %d pods in flight", itemsIn(got), q.inFlight)
	} else {
		for _, it := range got {
			q.Done(it, nil)
		}
	}
	items, _ := q.Pop(MaxRound)
	if len(items) != 2 || items[0].Pod.Name != "c" || !items[1].IsMove() || !items[1].IsMoveAll() {
		t.Errorf("the next round is %v", items)
	}
	q.Close()
	if got := q.PopDue(10); got != nil {
		t.Errorf("due on a standby: %v", got)
	}
}

// What waits for something else than room is looked at again in the order of all that waits, and
// one that is in flight is not missed.
func TestMoveElsewhere(t *testing.T) {
	q := newQueue(t)
	if q.MoveElsewhere(); q.work.Len() > 0 {
		t.Error("moves although no pod waits")
	}
	wait := func(p *corev1.Pod) {
		q.MarkElsewhere([]*corev1.Pod{p}, notify.ReasonWaiting, notify.Why{Key: "no class", Text: "why"})
	}
	wait(q.add("0", func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(q.clock.Now().Add(time.Hour)) }))
	wait(q.add("b"))
	wait(q.add("a"))
	wait(q.add("first", objects.Priority(1)))
	q.MarkUnschedulable([]*corev1.Pod{q.add("short")}, true, notify.Why{Key: "short", Text: "why"})
	q.pop()
	if q.MoveElsewhere(); q.pop() != "first a b 0" {
		t.Error("not by priority and age")
	}
	late := q.add("late")
	items, _ := q.Pop(1)
	q.MoveElsewhere() // the decision on it may be under way
	wait(late)
	q.Done(items[0], nil)
	if got := q.pop(); !strings.Contains(got, "late") {
		t.Errorf("due: %q: what changed while it was in flight is missed", got)
	}
}

// Unschedulable pods are looked at again so many at a time, the rest in rounds that come: each once,
// and the most important of them first.
func TestMovePending(t *testing.T) {
	q := newQueue(t)
	const waiting = 3 * MaxMoves
	for i := range waiting {
		p := q.add(fmt.Sprintf("p%03d", i), objects.Priority(int32(i)))
		q.MarkUnschedulable([]*corev1.Pod{p}, i%2 == 0, notify.Why{Key: "short", Text: "why"})
	}
	q.pop()
	q.MoveToActive(cache.OnAll)
	seen := map[string]int{}
	for round := 0; q.work.Len() > 0; round++ {
		moves, _ := q.Pop(1)
		if len(moves) != 1 || !moves[0].IsMove() || moves[0].IsMoveAll() != (round == 0) {
			t.Fatalf("round %d begins with %v", round, moves)
		}
		q.ActivatePending(moves[0])
		items := q.PopDue(MaxRound)
		if len(items) != MaxMoves {
			t.Errorf("round %d: %d pods", round, len(items))
		}
		if last := fmt.Sprintf("p%03d", waiting-1); round == 0 && items[0].Pod.Name != last {
			t.Errorf("the first is %s, want %s", items[0].Pod.Name, last)
		}
		for _, it := range items {
			seen[it.Pod.Name]++
			q.Done(it, nil)
		}
		q.MovePending()
		q.Done(moves[0], nil)
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s was looked at %d times", name, n)
		}
	}
	if len(seen) != waiting || len(q.pendingMoves) > 0 {
		t.Errorf("%d of %d were looked at, %d pending", len(seen), waiting, len(q.pendingMoves))
	}
	if q.MovePending(); q.work.Len() > 0 {
		t.Error("a round is due for nobody")
	}
}

// One that is to be looked at again is not a second time because there is more room since.
func TestMovedOnce(t *testing.T) {
	q := newQueue(t)
	for i := range 2 * MaxMoves {
		q.MarkUnschedulable([]*corev1.Pod{q.add(fmt.Sprintf("p%03d", i))}, false, notify.Why{Key: "short", Text: "why"})
	}
	all := map[Item]bool{}
	for range 3 {
		q.ActivatePending(Item{move: onAll})
	}
	for _, it := range q.pendingMoves {
		if all[it.Item] {
			t.Errorf("%v is moved twice", it.Item)
		}
		all[it.Item] = true
	}
	if len(all) == 0 {
		t.Error("none is pending")
	}
}

func (q *queueInTest) highest() int64 {
	highest, _ := q.HighestWaiting()
	return highest
}

// Who waits for room, and for nothing else, in order.
func TestWaitingForRoom(t *testing.T) {
	q := newQueue(t)
	if got := q.highest(); got != math.MinInt64 || len(q.WaitingForRoom()) > 0 {
		t.Errorf("nobody waits, and the highest priority is %d", got)
	}
	at := func(seconds int64) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.CreationTimestamp.Time = time.Unix(seconds, 0) }
	}
	young, old := q.add("young", objects.Priority(1), at(20)), q.add("old", objects.Priority(1), at(10))
	refused := q.add("refused", objects.Priority(3), at(30))
	members := []*corev1.Pod{q.add("m0", objects.Priority(2), at(15), objects.InGang("g", 2)), q.add("m1", objects.Priority(2), at(5), objects.InGang("g", 2))}
	q.MarkUnschedulable([]*corev1.Pod{young, old}, false, notify.Why{Key: "short", Text: "why"})
	q.MarkUnschedulable([]*corev1.Pod{refused}, true, notify.Why{Key: "refused", Text: "why"})
	q.MarkUnschedulable(members, false, notify.Why{Key: "gang", Text: "why"})
	q.MarkElsewhere([]*corev1.Pod{q.add("elsewhere", objects.Priority(9), at(1))}, notify.ReasonWaiting, notify.Why{Key: "gang", Text: "why"})
	q.MarkInvalid(q.add("invalid", objects.Priority(9), at(1)), errors.New("wrong"))
	if got := itemsIn(q.WaitingForRoom()); got != "refused g old young" || q.highest() != 2*3 {
		t.Errorf("waiting: %q, the highest %d", got, q.highest())
	}
	if got := q.ItemOf(members[0]); got.Gang.Name != "g" || q.ItemOf(old).Pod.Name != "old" {
		t.Errorf("a member is looked at as %v, a pod as %v", got, q.ItemOf(old))
	}
	q.gone(refused)
	if got := itemsIn(q.WaitingForRoom()); got != "g old young" || q.highest() != 2*2 {
		t.Errorf("waiting after one has gone: %q, the highest %d", got, q.highest())
	}
}

// A gang waits with the lowest priority of its members: one of a high priority lifts no others.
func TestGangWaitsByItsLowest(t *testing.T) {
	q := newQueue(t)
	members := []*corev1.Pod{q.add("m0", objects.Priority(9), objects.InGang("g", 2)), q.add("m1", objects.Priority(0), objects.InGang("g", 2))}
	p := q.add("p", objects.Priority(1))
	q.MarkUnschedulable(append(members, p), false, notify.Why{Key: "short", Text: "why"})
	if got := itemsIn(q.WaitingForRoom()); got != "p g" || q.highest() != 2*1 {
		t.Errorf("waiting: %q, the highest %d", got, q.highest())
	}
}

// Room of devices is counted apart from changes that can help those only that are refused.
func TestRooms(t *testing.T) {
	q := newQueue(t)
	q.MoveToActive(cache.OnRefused)
	if q.Moves() != 1 || q.Rooms() != 0 {
		t.Errorf("%d moves, %d of them for devices", q.Moves(), q.Rooms())
	}
	if q.MoveToActive(cache.OnAll); q.Moves() != 2 || q.Rooms() != 1 {
		t.Errorf("%d moves, %d of them for devices", q.Moves(), q.Rooms())
	}
}

// A priority that counts in its own namespace only is heeded there, and takes no place from pods of
// other namespaces: what goes behind is the namespace's own.
func TestHostileOwnFirst(t *testing.T) {
	q := newQueue(t)
	q.cache.Priorities.Everywhere = nil
	add := func(name, namespace string, age int64, value int32) {
		q.MarkUnschedulable([]*corev1.Pod{q.add(name, objects.Priority(value), func(p *corev1.Pod) {
			p.Namespace, p.CreationTimestamp.Time = namespace, time.Unix(age, 0)
		})}, false, notify.Why{Key: "short", Text: "why"})
	}
	add("a-old", "a", 1, 0)
	add("b-old", "b", 2, 0)
	add("a-500", "a", 3, 500)
	add("b-new", "b", 4, 0)
	add("a-1000", "a", 5, 1000)
	add("c", "c", 6, 0)
	add("a-low", "a", 0, -10)
	if got := itemsIn(q.WaitingForRoom()); got != "b-old b-new a-1000 a-500 a-old c a-low" {
		t.Errorf("waiting: %q", got)
	}
	if highest, within := q.HighestWaiting(); highest != 0 || within["a"] != 1000 || within["b"] != 0 {
		t.Errorf("the highest: %d, of namespaces %v", highest, within)
	}
}
