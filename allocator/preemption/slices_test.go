// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/leaving"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
	"vernier.dev/vernier/test/podgroups"
)

func names(pods ...string) string { return fmt.Sprint(pods) }

// Who is evicted for a pod that wants 60 % of a device: as unimportant and as few as will do.
func TestPreempt(t *testing.T) {
	for name, tt := range map[string]struct {
		// on are the pods of the devices 0 and 1 of the node n, and of the device 0 of m, the device 1 of
		// which has an important one.
		on   [3][]*corev1.Pod
		edit func(*corev1.Pod)
		want string
	}{
		"the least important":        {[3][]*corev1.Pod{{holder("a", 50, 3)}, {holder("b", 50, 2)}, {holder("c", 50, 4)}}, nil, names("b")},
		"not two for one":            {[3][]*corev1.Pod{{holder("a", 45, 2), holder("a2", 45, 2)}, {holder("b", 90, 2)}, {holder("c", 45, 2), holder("c2", 45, 2)}}, nil, names("b")},
		"nobody of its own priority": {[3][]*corev1.Pod{{holder("a", 50, 10)}, {holder("b", 50, 10)}, {holder("c", 50, 11)}}, nil, names()},
		"it never preempts": {[3][]*corev1.Pod{{holder("a", 50, 1)}, {holder("b", 50, 1)}, {holder("c", 50, 1)}}, func(p *corev1.Pod) {
			p.Spec.PreemptionPolicy = ptr.To(corev1.PreemptNever)
		}, names()},
		"on no node that it selects": {[3][]*corev1.Pod{{holder("a", 50, 1)}, {holder("b", 50, 1)}, {holder("c", 50, 1)}}, func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{"zone": "none"}
		}, names()},
		"on the node that it selects": {[3][]*corev1.Pod{{holder("a", 50, 1)}, {holder("b", 50, 1)}, {holder("c", 50, 4)}}, func(p *corev1.Pod) {
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "m"}
		}, names("c")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "n", "m")
			for i, place := range []struct {
				node   string
				device int
			}{{"n", 0}, {"n", 1}, {"m", 0}} {
				for _, p := range tt.on[i] {
					f.run(p, place.node, place.device)
				}
			}
			f.run(holder("important", 60, 100), "m", 1)
			p := holder("p", 60, 10)
			if tt.edit != nil {
				tt.edit(p)
			}
			w := f.waiter(p)
			if got := fmt.Sprint(f.preempt(w)); got != tt.want || fmt.Sprint(f.dry) != tt.want {
				t.Errorf("evicted %s after dry runs for %v, want %s", got, f.dry, tt.want)
			}
			if r := f.reservations.Of(w.Item); (r != nil) != (tt.want != names()) || r != nil && len(r.Leaving) != len(f.evicted) {
				t.Errorf("reserved %+v", r)
			}
		})
	}
}

// For whom nothing was found it is looked again after a while, and for others after a part of the
// worker's time only.
func TestPreemptPauses(t *testing.T) {
	f := newFixture(t, "n")
	f.run(holder("low", 60, 1), "n", 0)
	f.run(holder("high", 60, 100), "n", 1)
	first, second := f.waiter(holder("first", 60, 10, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "none"} })), f.waiter(holder("second", 60, 10))
	if f.preempt(first); f.asked != 1 {
		t.Fatalf("looked %d times", f.asked)
	}
	f.clock.Step(RetryAfter - time.Second)
	if f.preempt(first); f.asked != 1 || f.again(first.Pods[0].Pod) != time.Second {
		t.Errorf("before its time looked %d times, again in %v", f.asked, f.again(first.Pods[0].Pod))
	}
	if got := f.preempt(second); f.asked != 2 || !slices.Equal(got, []string{"low"}) {
		t.Errorf("another waits too: looked %d times, evicted %v", f.asked, got)
	}
	f.clock.Step(time.Second)
	if f.preempt(first); f.asked != 3 {
		t.Errorf("at its time looked %d times", f.asked)
	}
}

// slowClock is of a machine on which each look at the clock takes that long.
type slowClock struct {
	*testclock.FakeClock
	takes time.Duration
}

func (c slowClock) Now() time.Time {
	c.Step(c.takes)
	return c.FakeClock.Now()
}

// A look that took long is paid for: others are placed first.
func TestPreemptTakesItsPartOfTheWorker(t *testing.T) {
	f := newFixture(t, "n")
	f.run(holder("low", 60, 1), "n", 0)
	f.run(holder("high", 60, 100), "n", 1)
	first, second := f.waiter(holder("first", 60, 10, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "none"} })), f.waiter(holder("second", 60, 20))
	var began time.Time
	f.Preemption.clock = slowClock{f.clock, 10 * time.Millisecond}
	if err := f.Preempt(t.Context(), first, func() { began = f.clock.Now() }); err != nil {
		t.Fatal(err)
	}
	f.Preemption.clock = f.clock
	// The look ends a moment before this.
	took, pause := f.clock.Since(began), f.pause.Sub(f.clock.Now())
	if took < 20*time.Millisecond || pause < (WorkerShare-1)*(took-20*time.Millisecond) || pause > (WorkerShare-1)*took {
		t.Fatalf("after a look of %v others are placed for %v", took, pause)
	}
	if f.preempt(second); f.asked != 0 || f.again(second.Pods[0].Pod) != pause {
		t.Errorf("within the pause looked %d times, again in %v, want %v", f.asked, f.again(second.Pods[0].Pod), pause)
	}
	f.clock.Step(pause)
	if got := f.preempt(second); f.asked != 1 || !slices.Equal(got, []string{"low"}) {
		t.Errorf("after it looked %d times, evicted %v", f.asked, got)
	}
}

// A pod that is evicted for one is not for another, whose priority is lower or not, and who sees through the
// reservation or does not.
func TestPromisedVictims(t *testing.T) {
	f := newFixture(t, "n")
	f.run(holder("low", 60, 1), "n", 0)
	f.run(holder("lower", 60, 2), "n", 1)
	first, second, third := f.waiter(holder("first", 60, 10)), f.waiter(holder("second", 60, 10)), f.waiter(holder("third", 60, 10))
	for _, tt := range []struct {
		w    Waiter
		want string
	}{{first, names("low")}, {second, names("lower")}, {third, names()}} {
		if got := fmt.Sprint(f.preempt(tt.w)); got != tt.want {
			t.Errorf("for %v evicted %s, want %s", tt.w.Item, got, tt.want)
		}
	}
	if got := fmt.Sprint(f.preempt(f.waiter(holder("highest", 60, 20)))); got != names() {
		t.Errorf("evicted %s, who leave already", got)
	}
}

// Room that pods leave anyhow is waited for, and nobody else is evicted. Who was not known is not
// evicted when it is.
func TestPreemptWaits(t *testing.T) {
	f := newFixture(t, "n")
	ends := f.run(holder("ends", 60, 100), "n", 0)
	f.run(holder("low", 60, 1), "n", 1)
	ends = ends.DeepCopy()
	ends.DeletionTimestamp = &metav1.Time{Time: f.clock.Now().Add(time.Minute)}
	f.set(ends)
	w := f.waiter(holder("p", 60, 10))
	if got := f.preempt(w); len(got) > 0 || f.reserved(w) != "preemption[GPU-n-0] [ends]" {
		t.Errorf("evicted %v, reserved %s", got, f.reserved(w))
	}
	if r := f.reservations.Of(w.Item); r.Expires != ends.DeletionTimestamp.Add(LeaveLate) {
		t.Errorf("waits until %v", r.Expires)
	}

	f = newFixture(t, "n")
	f.run(holder("low", 60, 1), "n", 1)
	stranger := holder("stranger", 60, 100)
	f.change("n", func(l *v1alpha1.SliceLedger) { objects.Grant(l, stranger, map[string]int{"c": 0}) })
	w = f.waiter(holder("p", 60, 10))
	if got := f.preempt(w); len(got) > 0 || f.reserved(w) != "preemption[GPU-n-0] [stranger]" {
		t.Errorf("beside a stranger: evicted %v, reserved %s", got, f.reserved(w))
	}
	stranger = objects.Place(stranger, f.known.Index.Ledger("n"), map[string]int{"c": 0})
	f.set(stranger)
	if got := f.preempt(w); len(got) > 0 {
		t.Errorf("evicted %v, whom nobody chose", got)
	}
}

// Nobody is evicted any more for an owner that goes in between.
func TestOwnerGoesWhileOthersAreEvicted(t *testing.T) {
	// Pods that a budget covers are evicted one after the other.
	f := newFixtureWith(t, []*policyv1.PodDisruptionBudget{budget("b", "x", 2)}, &podgroup.Sizes{}, "n")
	f.run(holder("a", 50, 1, objects.Labelled("x")), "n", 0)
	f.run(holder("b", 50, 1, objects.Labelled("x")), "n", 0)
	f.run(holder("important", 50, 100), "n", 1)
	p := holder("p", v1alpha1.WholeGPU, 10)
	w := f.waiter(p)
	f.refuse = func(_ string, dry bool) error {
		if !dry {
			f.known.DeletePod(w.Pods[0].Pod, true)
			f.reservations.Forget(w.Pods[0].Pod)
		}
		return nil
	}
	if got := f.preempt(w); len(got) != 1 || len(f.dry) != 2 {
		t.Errorf("evicted %v after dry runs for %v, want one of two", got, f.dry)
	}
}

func budget(name, app string, allowed int32) *policyv1.PodDisruptionBudget {
	return &policyv1.PodDisruptionBudget{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)},
		Spec:   policyv1.PodDisruptionBudgetSpec{Selector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
		Status: policyv1.PodDisruptionBudgetStatus{DisruptionsAllowed: allowed}}
}

// Two pods of an app have to leave for one that wants all of a device, or one dearer of another app.
func TestBudgets(t *testing.T) {
	stale := budget("b", "x", 2)
	stale.Generation, stale.Status.ObservedGeneration = 2, 1
	for name, tt := range map[string]struct {
		budgets []*policyv1.PodDisruptionBudget
		want    string
	}{
		"none":                      {nil, names("a", "b")},
		"it allows both":            {[]*policyv1.PodDisruptionBudget{budget("b", "x", 2)}, names("a", "b")},
		"it allows one":             {[]*policyv1.PodDisruptionBudget{budget("b", "x", 1)}, names("c")},
		"it is used up":             {[]*policyv1.PodDisruptionBudget{budget("b", "x", 0)}, names("c")},
		"it is less than nothing":   {[]*policyv1.PodDisruptionBudget{budget("b", "x", -1)}, names("c")},
		"nobody has looked at it":   {[]*policyv1.PodDisruptionBudget{stale}, names("c")},
		"several cover them":        {[]*policyv1.PodDisruptionBudget{budget("b", "x", 2), budget("b2", "x", 2)}, names("c")},
		"all are covered":           {[]*policyv1.PodDisruptionBudget{budget("b", "x", 1), budget("b2", "y", 0)}, names()},
		"one is covered for itself": {[]*policyv1.PodDisruptionBudget{budget("b", "x", 1), budget("b2", "y", 1)}, names("c")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureWith(t, tt.budgets, &podgroup.Sizes{}, "n")
			f.run(holder("a", 50, 1, objects.Labelled("x")), "n", 0)
			f.run(holder("b", 50, 1, objects.Labelled("x")), "n", 0)
			f.run(holder("c", 50, 5, objects.Labelled("y")), "n", 1)
			if got := fmt.Sprint(f.preempt(f.waiter(holder("p", v1alpha1.WholeGPU, 10)))); got != tt.want {
				t.Errorf("evicted %s, want %s", got, tt.want)
			}
		})
	}
}

// slow is a clock on which each look at it takes a while.
type slow struct {
	*testclock.FakeClock
	takes time.Duration
	asked int
}

func (s *slow) Now() time.Time {
	s.asked++
	s.Step(s.takes)
	return s.FakeClock.Now()
}

// A look at pods and their budgets ends when its time is over, in the middle of a node as well. Then
// nobody is evicted, and it is looked again.
func TestHostileBudgetsEndTheLook(t *testing.T) {
	f := newFixtureWith(t, []*policyv1.PodDisruptionBudget{budget("b", "x", 100)}, &podgroup.Sizes{}, "n")
	for i := range 100 {
		f.run(holder(fmt.Sprint("v", i), 1, 1, objects.Labelled("x")), "n", 0)
	}
	f.run(holder("full", v1alpha1.WholeGPU, 100), "n", 1)
	w := f.waiter(holder("p", v1alpha1.WholeGPU, 10))
	clock := &slow{FakeClock: f.clock, takes: searchTime / 20}
	f.Preemption.clock = clock
	if got := f.preempt(w); len(got) > 0 || clock.asked > 60 {
		t.Errorf("evicted %v, looked at the clock %d times", got, clock.asked)
	}
	clock.takes = 0
	f.clock.Step(RetryAfter)
	if got := f.preempt(w); len(got) != 100 {
		t.Errorf("with time enough evicted %d", len(got))
	}
}

// Pods of a namespace with more budgets than are read stay, and both sides are told: the pod that
// waits by its own namespace's name only, the victims in their own.
func TestHostileBudgetsAreTold(t *testing.T) {
	for _, namespace := range []string{"ns", "other"} {
		t.Run(namespace, func(t *testing.T) {
			var budgets []*policyv1.PodDisruptionBudget
			for i := range feasible.MaxBudgets + 1 {
				b := budget(fmt.Sprint("b", i), "x", 5)
				b.Namespace = namespace
				budgets = append(budgets, b)
			}
			f := newFixtureWith(t, budgets, &podgroup.Sizes{}, "n")
			for i := range 2 {
				f.run(holder(fmt.Sprint("v", i), v1alpha1.WholeGPU, 1, func(p *corev1.Pod) { p.Namespace = namespace }), "n", i)
			}
			events := record.NewFakeRecorder(10)
			f.notify.Events = events
			w := f.waiter(holder("p", v1alpha1.WholeGPU, 10))
			if got := f.preempt(w); len(got) > 0 {
				t.Fatalf("evicted %v", got)
			}
			barred := f.barring([]*corev1.Pod{f.known.PodOf("v0"), f.known.PodOf("v1")}, scheduling.AskerOf(f.known, w.Item, w.Pods))
			if strings.Contains(barred, "namespace "+namespace) != (namespace == "ns") || !strings.Contains(barred, "PodDisruptionBudgets") {
				t.Errorf("says %q", barred)
			}
			if got := <-events.Events; !strings.Contains(got, notify.ReasonBudgetsUnread) || !strings.Contains(got, "namespace "+namespace+" has more than 100 PodDisruptionBudgets") {
				t.Errorf("the victims are events %q", got)
			}
		})
	}
}

// Where the API server refuses in the dry run nobody leaves. Where it refuses after that, pods that a
// budget covers are asked about first, and the rest again later.
func TestRefusedEvictions(t *testing.T) {
	forbidden := apierrors.NewTooManyRequests("the budget is used up", 10)
	newWaiter := func() (*fixture, Waiter) {
		f := newFixtureWith(t, []*policyv1.PodDisruptionBudget{budget("b", "x", 2)}, &podgroup.Sizes{}, "n")
		f.run(holder("a", 50, 1), "n", 0)
		f.run(holder("b", 50, 1, objects.Labelled("x")), "n", 0)
		f.run(holder("important", 50, 100), "n", 1)
		return f, f.waiter(holder("p", v1alpha1.WholeGPU, 10))
	}
	f, w := newWaiter()
	f.refuse = func(pod string, _ bool) error {
		if pod == "b" {
			return forbidden
		}
		return nil
	}
	if got := f.preempt(w); len(got) > 0 || f.reserved(w) != "" {
		t.Errorf("evicted %v, reserved %s although the dry run was refused", got, f.reserved(w))
	}
	f.refuse = nil
	if f.clock.Step(RetryAfter); len(f.preempt(w)) > 0 {
		t.Errorf("%v was asked about again at once", f.evicted)
	}
	f.clock.Step(RefusedAgain)
	if got := f.preempt(w); len(got) != 2 {
		t.Errorf("after a while evicted %v", got)
	}

	f, w = newWaiter()
	f.refuse = func(_ string, dry bool) error {
		if dry {
			return nil
		}
		return forbidden
	}
	if got := f.preempt(w); len(got) > 0 || f.reserved(w) != "preemption[GPU-n-0] [a b]" || f.work.Later[w.Item] != EvictAgain {
		t.Errorf("evicted %v, reserved %s, again in %v", got, f.reserved(w), f.work.Later[w.Item])
	}
	f.refuse = func(string, bool) error { t.Error("asked again at once"); return nil }
	f.preempt(w)
	f.clock.Step(EvictAgain)
	var asked []string
	f.refuse = func(pod string, _ bool) error { asked = append(asked, pod); return nil }
	if f.preempt(w); !slices.Equal(asked, []string{"b", "a"}) {
		t.Errorf("asked about %v, want the one that a budget covers first", asked)
	}
	if f.refuse = func(string, bool) error { return errors.New("no") }; true {
		f.clock.Step(EvictAgain)
		if err := f.Preempt(t.Context(), w, func() {}); err == nil {
			t.Error("an error is not sent")
		}
	}
}

// A gang loses members above its minimum one by one, else all of it, unless one of it may not go.
func TestGangsAsVictims(t *testing.T) {
	for name, tt := range map[string]struct {
		least int
		// of are the priorities of its three members, a on the first device, b and c on the other node.
		of   [3]int32
		edit func(*corev1.Pod)
		want string
	}{
		"above its minimum":     {2, [3]int32{1, 1, 1}, nil, names("g0")},
		"at its minimum":        {3, [3]int32{1, 1, 1}, nil, names("g0", "g1", "g2")},
		"one is important":      {3, [3]int32{1, 1, 100}, nil, names("single")},
		"one is, and is spared": {2, [3]int32{1, 1, 100}, nil, names("g0")},
		"a budget keeps one":    {3, [3]int32{1, 1, 1}, objects.Labelled("x"), names("single")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixtureWith(t, []*policyv1.PodDisruptionBudget{budget("b", "x", 2)}, &podgroup.Sizes{}, "n", "m")
			for i, on := range []struct {
				node   string
				device int
			}{{"n", 0}, {"m", 0}, {"m", 1}} {
				p := holder(fmt.Sprint("g", i), 90, tt.of[i], objects.InGang("g", tt.least))
				if i > 0 {
					p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "m"}
				}
				if tt.edit != nil {
					tt.edit(p)
				}
				f.run(p, on.node, on.device)
			}
			f.run(holder("single", 90, 5), "n", 1)
			p := holder("p", 60, 10)
			p.Spec.NodeSelector = map[string]string{corev1.LabelHostname: "n"}
			if got := fmt.Sprint(f.preempt(f.waiter(p))); got != tt.want {
				t.Errorf("evicted %s, want %s", got, tt.want)
			}
		})
	}
}

// A gang gets the room of others for all of its members, or nobody is evicted, and none of its own is.
func TestPreemptForAGang(t *testing.T) {
	for name, tt := range map[string]struct {
		important int
		want      string
	}{"for all": {1, names("low0", "low1", "low2")}, "for too few": {2, names()}} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "n", "m")
			for i := range 4 {
				priority := int32(1)
				if i >= 4-tt.important {
					priority = 100
				}
				f.run(holder(fmt.Sprint("low", i), 90, priority), []string{"n", "m"}[i/2], i%2)
			}
			var pods []*corev1.Pod
			for i := range 3 {
				pods = append(pods, holder(fmt.Sprint("g", i), 60, 10, objects.InGang("g", 3)))
			}
			w := f.waiter(pods...)
			if got := fmt.Sprint(f.preempt(w)); got != tt.want {
				t.Errorf("evicted %s, want %s", got, tt.want)
			}
			if r := f.reservations.Of(w.Item); (r != nil) != (tt.want != names()) || r != nil && len(r.Plans) != 3 {
				t.Errorf("reserved %+v", r)
			}
		})
	}
}

// A native group says how its pods may be ended: one by one however many there must be, or together
// however many more there are.
func TestDisruptionModes(t *testing.T) {
	for mode, want := range map[string]string{"": names("g0"), podgroup.EndPods: names("g0"), podgroup.EndGroup: names("g0", "g1")} {
		for least := int64(1); least <= 2; least++ {
			if mode == "" && least == 2 {
				want = names("g0", "g1") // it is at its minimum
			}
			f := newFixtureWith(t, nil, nativeGroup(t, mode, least), "n")
			for i := range 2 {
				f.run(holder(fmt.Sprint("g", i), 90, int32(1+i), func(p *corev1.Pod) {
					p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
				}), "n", i)
			}
			if got := fmt.Sprint(f.preempt(f.waiter(holder("p", 60, 10)))); got != want {
				t.Errorf("mode %q, %d must run: evicted %s, want %s", mode, least, got, want)
			}
		}
	}
}

// Those that make room for a gang with a topology constraint are on nodes of one domain, and so is
// the room that is reserved.
func TestWithinOneRack(t *testing.T) {
	member := func(i int) *corev1.Pod {
		return holder(fmt.Sprint("m", i), 60, 1000, func(p *corev1.Pod) {
			p.Spec.SchedulingGroup = &corev1.PodSchedulingGroup{PodGroupName: ptr.To("g")}
		})
	}
	for key, want := range map[string]string{"": names("n0", "o0"), corev1.LabelHostname: names("o0", "o1")} {
		f := newFixtureWith(t, nil, nativeGroup(t, "", 2), "n", "o")
		for i, priority := range []int32{1, 500} {
			f.run(holder(fmt.Sprint("n", i), 90, priority), "n", i)
			f.run(holder(fmt.Sprint("o", i), 90, 2), "o", i)
		}
		w := f.waiter(member(0), member(1))
		if key != "" {
			w.Within = scheduling.Within{Keys: []string{key}}
		}
		if got := fmt.Sprint(f.preempt(w)); got != want {
			t.Errorf("label %q: evicted %s, want %s", key, got, want)
		}
	}
}

// nativeGroup is the group g as it is read from an API server.
func nativeGroup(t *testing.T, mode string, least int64) *podgroup.Sizes {
	t.Helper()
	g := podgroups.Native("ns", "g", least)
	if mode != "" {
		g.Object["spec"].(map[string]any)["disruptionMode"] = mode
	}
	return podgroups.Read(t, g)
}

// endsIn has the pod end by itself.
func endsIn(d time.Duration) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To(int64(d / time.Second)) }
}

// reserveHeads reserves for the first of the waiters, which are in order.
func (f *fixture) reserveHeads(waiters ...Waiter) (reserved []string) {
	f.t.Helper()
	err := f.ReserveHead(f.t.Context(), func(yield func(Waiter) bool) {
		for _, w := range waiters {
			if !yield(w) {
				return
			}
		}
	})
	if err != nil {
		f.t.Fatal(err)
	}
	for _, w := range waiters {
		reserved = append(reserved, f.reserved(w))
	}
	return reserved
}

// The first of the waiters gets the room that is free first, and keeps it; the next gets it
// where the first can never be served; and nobody does where the room is there already.
func TestReserveHead(t *testing.T) {
	f := newFixture(t, "n")
	f.run(holder("long", 90, 1, endsIn(4*time.Hour)), "n", 0)
	f.run(holder("short", 90, 1, endsIn(30*time.Minute)), "n", 1)
	never := f.waiter(holder("never", 60, 10, func(p *corev1.Pod) { p.Spec.NodeSelector = map[string]string{"zone": "none"} }))
	first, second := f.waiter(holder("first", 60, 0)), f.waiter(holder("second", 60, 0))
	want := []string{"", "head[GPU-n-1] [short]", ""}
	if got := f.reserveHeads(never, first, second); !slices.Equal(got, want) {
		t.Fatalf("reserved %q, want %q", got, want)
	}
	r := f.reservations.Of(first.Item)
	if end := f.clock.Now().Add(30 * time.Minute); r.End.Before(end) || r.End.After(end.Add(5*time.Minute)) || r.Expires != r.End {
		t.Errorf("until %v, expires %v", r.End, r.Expires)
	}
	// Another look finds the room of the second that ends first, and the reservation stays.
	f.run(holder("shortest", 1, 1, endsIn(time.Minute)), "n", 0)
	if f.reserveHeads(never, first, second); f.reservations.Of(first.Item) != r || len(f.reservations.All()) != 1 {
		t.Errorf("reserved %+v after another look", f.reservations.All())
	}
	if at, passed := f.passedOver[never.Item]; !passed || at != f.clock.Now().Add(PassedOver) {
		t.Errorf("passed over: %v", f.passedOver)
	}
	f.gone(first.Pods[0].Pod, "n")
	if got := f.reserveHeads(never, second); got[1] == "" {
		t.Errorf("reserved %q after the first has gone", got)
	}
	// There is a node for the other now. It is looked for when it is due.
	zone := objects.Node("m")
	zone.Labels["zone"] = "none"
	f.filters.SetNode(zone)
	f.known.SetLedger(objects.ReadyLedger("m"))
	f.run(holder("low0", 90, 1), "m", 0)
	f.run(holder("low1", 90, 1), "m", 1)
	f.clock.Step(PassedOver - 1)
	if got := f.reserveHeads(never, second); got[0] != "" {
		t.Errorf("reserved %q before it is looked for again", got)
	}
	f.clock.Step(1)
	if got := f.reserveHeads(never, second); got[0] != "head[GPU-m-0] [low0]" {
		t.Errorf("reserved %q for the one that was passed over", got)
	}

	f = newFixture(t, "n")
	f.run(holder("short", 90, 1, endsIn(time.Hour)), "n", 1)
	if got := f.reserveHeads(f.waiter(holder("first", 60, 0))); got[0] != "" {
		t.Errorf("reserved %q, where there is room", got)
	}
}

// The end is not known where a pod that has to leave has none.
func TestReserveHeadWithoutEnd(t *testing.T) {
	f := newFixture(t, "n")
	f.run(holder("a", 45, 1, endsIn(time.Hour)), "n", 0)
	f.run(holder("b", 45, 1), "n", 0)
	f.run(holder("important", 95, 100), "n", 1)
	w := f.waiter(holder("first", v1alpha1.WholeGPU, 0))
	if got := f.reserveHeads(w); got[0] == "" || !f.reservations.Of(w.Item).End.IsZero() {
		t.Errorf("reserved %q until %v", got, f.reservations.Of(w.Item))
	}
}

// Each set of models that nobody before it may use has a first of its own.
func TestReserveHeadsOfModels(t *testing.T) {
	f := newFixture(t, "n", "m")
	f.change("m", func(l *v1alpha1.SliceLedger) {
		for i := range l.Status.Devices {
			l.Status.Devices[i].Model = "A100"
		}
	})
	for i, node := range []string{"n", "n", "m", "m"} {
		f.run(holder(fmt.Sprint("low", i), 90, 1), node, i%2)
	}
	of := func(model string) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Annotations[v1alpha1.AnnotationGPUModel] = model }
	}
	t4, next, a100, any := f.waiter(holder("t4", 60, 0, of("T4"))), f.waiter(holder("next", 60, 0, of("T4"))), f.waiter(holder("a100", 60, 0, of("A100"))), f.waiter(holder("any", 60, 0))
	got := f.reserveHeads(t4, any, next, a100)
	for i, node := range []string{"GPU-n", "", "", "GPU-m"} {
		if (got[i] != "") != (node != "") || !strings.Contains(got[i], node) {
			t.Errorf("number %d: reserved %q, want on %q", i, got[i], node)
		}
	}
	// One of a higher priority is not kept waiting by them, one of the same is.
	urgent, late := f.waiter(holder("urgent", 60, 5, of("T4"))), f.waiter(holder("late", 60, 0, of("T4")))
	if got := f.reserveHeads(urgent, late); got[0] == "" || got[1] != "" {
		t.Errorf("reserved %q", got)
	}
	if n := len(f.reservations.All()); n != 3 {
		t.Errorf("%d reservations", n)
	}
	for _, r := range f.reservations.All() {
		if r.Kind != reservation.Head {
			t.Errorf("reserved %+v", r)
		}
	}
}

// counting counts how often a policy chooses.
type counting struct {
	policy
	times int
}

func (c *counting) choose(demand *placement.Demand, ledger *v1alpha1.SliceLedger, room leaving.Room) (leaving.Choice, bool) {
	c.times++
	return c.policy.choose(demand, ledger, room)
}

// In a large cluster of pods that are alike, a look compares MaxNodes and takes the best of these.
func TestLookIsBounded(t *testing.T) {
	var nodes []string
	for i := range 2 * MaxNodes {
		nodes = append(nodes, fmt.Sprintf("n%03d", i))
	}
	f := newFixture(t, nodes...)
	for _, name := range nodes {
		for device := range 2 {
			f.run(holder(fmt.Sprint(name, "-", device), 90, 1), name, device)
		}
	}
	w := f.waiter(holder("p", 60, 10))
	asker := scheduling.AskerOf(f.cache, w.Item, w.Pods)
	by := &counting{}
	pl, err := f.plan(t.Context(), w, func(until time.Time) policy {
		by.policy = f.newEvictions(asker, &bars{in: map[string]bool{}}, false, false, until)
		return by
	})
	if err != nil || pl == nil || len(pl.leaving) != 1 {
		t.Fatalf("%+v %v", pl, err)
	}
	if by.times > MaxNodes+1 {
		t.Errorf("%d nodes were compared, want %d at most", by.times, MaxNodes)
	}
}
