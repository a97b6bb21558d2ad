// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// years is as long as a tenant may write.
const years = 100_000_000

func graceOfSeconds(seconds int64) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Spec.TerminationGracePeriodSeconds = &seconds }
}

// deletedFor has the pod be deleted now, with that grace.
func (f *fixture) deletedFor(p *corev1.Pod, grace time.Duration) {
	p = p.DeepCopy()
	p.DeletionTimestamp, p.DeletionGracePeriodSeconds = &metav1.Time{Time: f.clock.Now().Add(grace)}, ptr.To(int64(grace.Seconds()))
	f.set(p)
}

// A pod that is being deleted with a grace of years does not leave: where another is cheap that one is
// evicted, else it is, with its spec's grace.
func TestHostileGraceOfYears(t *testing.T) {
	for name, tt := range map[string]struct {
		cheap int32
		want  string
		on    string
	}{
		"beside a cheap victim": {1, names("cheap"), "preemption[GPU-n-1] [cheap]"},
		"and nobody else":       {1000, names("slow"), "preemption[GPU-n-0] [slow]"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "n")
			slow := f.run(holder("slow", 1, 5), "n", 0)
			f.run(holder("cheap", 1, tt.cheap), "n", 1)
			f.deletedFor(slow, years*time.Second)
			w := f.waiter(holder("urgent", v1alpha1.WholeGPU, 1000))
			if got := fmt.Sprint(f.preempt(w)); got != tt.want || f.reserved(w) != tt.on {
				t.Fatalf("evicted %s, want %s; reserved %s", got, tt.want, f.reserved(w))
			}
			if in := f.reservations.Of(w.Item).Expires.Sub(f.clock.Now()); in != 30*time.Second+LeaveLate {
				t.Errorf("reserved for %v", in)
			}
			if grace, is := f.graces["slow"]; is != (tt.want == names("slow")) || is && grace != 30 {
				t.Errorf("evicted with graces %v", f.graces)
			}
			// The API server has not shortened it yet: it is asked again.
			f.clock.Step(EvictAgain)
			if again := fmt.Sprint(f.preempt(w)); again != tt.want {
				t.Errorf("asked again for %s, want %s", again, tt.want)
			}
		})
	}
}

// A pod that is being deleted and takes no longer than the lookahead is waited for; its length is the
// operator's to say.
func TestLookahead(t *testing.T) {
	for lookahead, want := range map[time.Duration]string{time.Hour: names("low"), 3 * time.Hour: names()} {
		f := newFixture(t, "n")
		f.Preemption.lookahead = lookahead
		ends := f.run(holder("ends", 60, 2), "n", 0)
		f.run(holder("low", 60, 1), "n", 1)
		f.deletedFor(ends, 2*time.Hour)
		if got := fmt.Sprint(f.preempt(f.waiter(holder("p", 60, 10)))); got != want {
			t.Errorf("%v ahead: evicted %s, want %s", lookahead, got, want)
		}
	}
}

// No grace, and no second pod with one, keeps a pod: whoever would take longer has the lookahead.
func TestHostileGraceOfAMember(t *testing.T) {
	f := newFixture(t, "n")
	f.run(holder("important", 60, 1000), "n", 1)
	f.run(holder("large", 60, 1, objects.InGang("g", 2)), "n", 0)
	f.run(holder("member", 1, 1, objects.InGang("g", 2), graceOfSeconds(3601)), "n", 0)
	w := f.waiter(holder("urgent", 60, 10))
	if got := fmt.Sprint(f.preempt(w)); got != names("large", "member") {
		t.Errorf("evicted %s", got)
	}
	if want := map[string]int64{"member": 3600}; !maps.Equal(f.graces, want) {
		t.Errorf("with graces %v, want %v", f.graces, want)
	}
	if in := f.reservations.Of(w.Item).Expires.Sub(f.clock.Now()); in != backfill.Lookahead+LeaveLate {
		t.Errorf("reserved for %v", in)
	}
}

// Nor does it make a gang immune that one of its pods says another size.
func TestHostileSizeOfAGang(t *testing.T) {
	f := newFixture(t, "n")
	f.run(holder("important", 60, 1000), "n", 1)
	f.run(holder("large", 60, 1, objects.InGang("g", 2)), "n", 0)
	f.run(holder("member", 1, 1, objects.InGang("g", 3)), "n", 0)
	if got := fmt.Sprint(f.preempt(f.waiter(holder("urgent", 60, 10)))); got != names("large", "member") {
		t.Errorf("evicted %s", got)
	}
}

// Of two choices with as much work the one that leaves sooner ends; a few seconds of grace are no days
// of work.
func TestGraceWeighs(t *testing.T) {
	started := func(ago time.Duration) func(*corev1.Pod) {
		return func(p *corev1.Pod) { p.Status.StartTime = &metav1.Time{Time: time.Unix(1000, 0).Add(-ago)} }
	}
	for name, tt := range map[string]struct {
		a, b []func(*corev1.Pod)
		want string
	}{
		"equal work":          {[]func(*corev1.Pod){graceOfSeconds(60)}, []func(*corev1.Pod){graceOfSeconds(30)}, names("b")},
		"equal work, swapped": {[]func(*corev1.Pod){graceOfSeconds(30)}, []func(*corev1.Pod){graceOfSeconds(60)}, names("a")},
		"an hour of grace":    {[]func(*corev1.Pod){graceOfSeconds(3600), started(time.Minute)}, []func(*corev1.Pod){started(time.Hour)}, names("b")},
		"days of work":        {[]func(*corev1.Pod){graceOfSeconds(120), started(time.Minute)}, []func(*corev1.Pod){started(72 * time.Hour)}, names("a")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "n")
			f.run(holder("a", 60, 1, tt.a...), "n", 0)
			f.run(holder("b", 60, 1, tt.b...), "n", 1)
			if got := fmt.Sprint(f.preempt(f.waiter(holder("p", 60, 10)))); got != tt.want {
				t.Errorf("evicted %s, want %s", got, tt.want)
			}
		})
	}
}

// One whose eviction is refused each time room was reserved for that, as where its owner opens and shuts
// a budget, is not chosen again for a while: then others are.
func TestHostileBudgetThatFlaps(t *testing.T) {
	f := newFixtureWith(t, []*policyv1.PodDisruptionBudget{budget("b", "x", 1)}, &podgroup.Sizes{}, "n")
	f.run(holder("flaps", 60, 1, objects.Labelled("x")), "n", 0)
	f.run(holder("other", 60, 2), "n", 1)
	f.refuse = func(pod string, dry bool) error {
		if pod == "flaps" && !dry {
			return apierrors.NewTooManyRequests("the budget is used up", 10)
		}
		return nil
	}
	w := f.waiter(holder("urgent", 60, 10))
	if f.preempt(w); f.reserved(w) != "preemption[GPU-n-0] [flaps]" {
		t.Fatalf("reserved %q", f.reserved(w))
	}
	for range 150 {
		f.clock.Step(time.Second)
		f.VictimsChanged("ns")
		f.reservations.Review()
		f.preempt(w)
	}
	if f.reserved(w) != "preemption[GPU-n-1] [other]" {
		t.Errorf("after two minutes and a half reserved %q", f.reserved(w))
	}
}

// The event counts the pods of lower priority that cannot leave, by reason, without names of other namespaces.
func TestHostileVictimsThatStay(t *testing.T) {
	const ( // of a pod of 60 % that is on the one GPU on which others are not important
		refusedBy = "1 pod(s) of lower priority would make room and cannot leave: "
		secret    = "secret"
	)
	for name, tt := range map[string]struct {
		budgets []*policyv1.PodDisruptionBudget
		stays   func(*fixture, *corev1.Pod)
		member  []func(*corev1.Pod)
		want    string
		foreign string
	}{
		"a budget": {[]*policyv1.PodDisruptionBudget{budget(secret, "x", 0)}, nil, nil,
			refusedBy + "PodDisruptionBudget secret allows 0 evictions now, needs 0 healthy pods and has 0",
			refusedBy + "PodDisruptionBudgets of other namespaces"},
		"one that was to have ended": {nil, func(f *fixture, p *corev1.Pod) { f.deletedFor(p, -LeaveLate) }, nil,
			refusedBy + "pod secret is being deleted, and has not ended 30s after its grace period",
			refusedBy + "pods of other namespaces that are being deleted have not ended in time"},
		"a member of no lower priority": {nil, nil, []func(*corev1.Pod){objects.InGang(secret, 2), func(p *corev1.Pod) { p.Spec.Priority = ptr.To[int32](10) }},
			refusedBy + "Kueue's pod group ns/secret ends as a whole, and pod secret-member of it has no lower priority",
			refusedBy + "gangs of other namespaces, of which a pod has no lower priority"},
	} {
		for _, namespace := range []string{"ns", "foreign"} {
			t.Run(name+" in "+namespace, func(t *testing.T) {
				in := func(p *corev1.Pod) { p.Namespace = namespace }
				for i, b := range tt.budgets {
					b = b.DeepCopy()
					b.Namespace = namespace
					tt.budgets[i] = b
				}
				f := newFixtureWith(t, tt.budgets, &podgroup.Sizes{}, "n")
				f.run(holder("important", 60, 1000), "n", 1)
				edits := []func(*corev1.Pod){in, objects.Labelled("x")}
				if tt.member != nil {
					edits = append(edits, tt.member[0])
					f.run(holder("secret-member", 1, 1, append([]func(*corev1.Pod){in}, tt.member...)...), "n", 0)
				}
				p := f.run(holder(secret, 60, 1, edits...), "n", 0)
				if tt.stays != nil {
					tt.stays(f, p)
				}
				w, want := f.waiter(holder("urgent", 60, 10)), tt.want
				if namespace != "ns" {
					want = tt.foreign
				}
				f.queue.MarkUnschedulable(podsOf(w), false, notify.Why{Key: "short", Text: "short"})
				if got := f.preempt(w); len(got) > 0 || f.reserved(w) != "" {
					t.Fatalf("evicted %v, reserved %s", got, f.reserved(w))
				}
				if sent := f.newEvents(); !strings.HasSuffix(sent, "short; "+want) || namespace != "ns" && strings.Contains(sent, secret) {
					t.Errorf("events %q, want %q", sent, want)
				}
			})
		}
	}
}

// podsOf are the waiter's pods.
func podsOf(w Waiter) (pods []*corev1.Pod) {
	for _, r := range w.Pods {
		pods = append(pods, r.Pod)
	}
	return pods
}

// Several reasons have their counts.
func TestBarringCounts(t *testing.T) {
	f := newFixtureWith(t, []*policyv1.PodDisruptionBudget{budget("b", "x", 1)}, &podgroup.Sizes{}, "n")
	f.run(holder("important", 60, 1000), "n", 1)
	for i := range 3 {
		f.run(holder(fmt.Sprint("x", i), 30, 1, objects.Labelled("x")), "n", 0)
	}
	f.deletedFor(f.run(holder("late", 10, 1), "n", 0), -LeaveLate)
	w := f.waiter(holder("urgent", v1alpha1.WholeGPU, 10))
	f.queue.MarkUnschedulable(podsOf(w), false, notify.Why{Key: "short", Text: "short"})
	f.preempt(w)
	const want = "3 pod(s) of lower priority would make room and cannot leave: " +
		"2: PodDisruptionBudget b allows 1 evictions now, needs 0 healthy pods and has 0, 1: pod late is being deleted, and has not ended 30s after its grace period"
	if sent := f.newEvents(); !strings.HasSuffix(sent, want) {
		t.Errorf("events %q, want %q", sent, want)
	}
}

// The first that waits does not wait where a pod says that it ends in ten years, and nobody fills room until
// then.
func TestHostileDeadlines(t *testing.T) {
	f := newFixture(t, "n")
	f.run(holder("liar", 90, 1, endsIn(10*365*24*time.Hour)), "n", 0)
	f.run(holder("honest", 50, 1), "n", 1)
	w := f.waiter(holder("first", v1alpha1.WholeGPU, 0))
	if got := f.reserveHeads(w); got[0] != "head[GPU-n-1] [honest]" {
		t.Errorf("reserved %q, want where the least must leave", got)
	}
	// Also where the liar is the only one.
	f = newFixture(t, "n")
	f.run(holder("important", 90, 100), "n", 1)
	f.run(holder("liar", 50, 1, endsIn(10*365*24*time.Hour)), "n", 0)
	w = f.waiter(holder("first", v1alpha1.WholeGPU, 0))
	if got := f.reserveHeads(w); got[0] != "head[GPU-n-0] [liar]" {
		t.Fatalf("reserved %q", got)
	}
	for name, edit := range map[string]func(*corev1.Pod){"its later pod": endsIn(9 * 365 * 24 * time.Hour), "an older one": func(*corev1.Pod) {}, "a short one": endsIn(time.Minute)} {
		later := f.waiter(holder("later", 40, 0, edit))
		if against, filled := f.reservations.Against(scheduling.AskerOf(f.known, later.Item, later.Pods)); len(against) != 1 || len(filled) != 0 {
			t.Errorf("%s fills the room: %v", name, filled)
		}
	}
	if at := f.reservations.Of(w.Item).Expires; !at.IsZero() {
		t.Errorf("reserved until %v, whose end nobody knows", at)
	}
}

// Room for the first that waits is not kept where whoever was to leave is still there then.
func TestHostileEndThatDoesNotCome(t *testing.T) {
	f := newFixture(t, "n")
	f.run(holder("late", 90, 1, endsIn(10*time.Minute)), "n", 0)
	f.run(holder("busy", 80, 1), "n", 1)
	w := f.waiter(holder("first", v1alpha1.WholeGPU, 0))
	if got := f.reserveHeads(w); got[0] != "head[GPU-n-0] [late]" {
		t.Fatalf("reserved %q", got)
	}
	late := f.known.PodOf("late").DeepCopy()
	late.Status.StartTime = &metav1.Time{Time: f.clock.Now()}
	f.set(late)
	f.clock.SetTime(f.reservations.Of(w.Item).End)
	f.clock.Step(time.Second)
	if f.reservations.Review(); f.reserved(w) != "" {
		t.Fatalf("still reserved: %q", f.reserved(w))
	}
	if sent := f.newEvents(); sent != "Normal VernierUnreserved room is reserved for it no longer: a pod that was to leave is still there" {
		t.Errorf("events %q", sent)
	}
	if got := f.reserveHeads(w); got[0] != "head[GPU-n-1] [busy]" {
		t.Errorf("reserved %q, want elsewhere", got)
	}
}

// made gives the pod a controller.
func made(by string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.OwnerReferences = []metav1.OwnerReference{{APIVersion: "apps/v1", Kind: "ReplicaSet", Name: by, UID: types.UID(by), Controller: ptr.To(true)}}
	}
}

// Where a pod got reserved room and does not start, no room is made for others of its controller; until it
// does, or has gone for as long.
func TestHostileImageThatNeverComes(t *testing.T) {
	for name, tt := range map[string]struct {
		then  func(first *corev1.Pod) // nil where it does not start
		after string                  // the namespace of the next one
		want  string
	}{
		"never":                   {nil, "ns", names()},
		"late":                    {func(p *corev1.Pod) { p.Status.Phase = corev1.PodRunning }, "ns", names("low1")},
		"its init container runs": {func(p *corev1.Pod) { p.Status.InitContainerStatuses = []corev1.ContainerStatus{{ContainerID: "x"}} }, "ns", names("low1")},
		"another namespace's UID": {func(*corev1.Pod) {}, "other", names("low1")},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t, "n")
			low := f.run(holder("low0", 60, 1), "n", 0)
			f.run(holder("low1", 60, 2), "n", 1)
			first := f.waiter(holder("first", 60, 10, made("rs")))
			if got := fmt.Sprint(f.preempt(first)); got != names("low0") {
				t.Fatalf("evicted %s", got)
			}
			f.gone(low, "n")
			p := first.Pods[0].Pod.DeepCopy()
			p.Spec.SchedulingGates, p.Status.Phase = nil, corev1.PodPending
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ImagePullBackOff", Message: "no such image"}}}}
			p = f.run(p, "n", 0)
			if f.reservations.Review(); f.reserved(first) != "" {
				t.Fatalf("its room is reserved still: %s", f.reserved(first))
			}
			f.clock.Step(StartLate)
			f.newEvents()
			if tt.then != nil {
				p = p.DeepCopy()
				tt.then(p)
				p = f.set(p)
			}
			second := f.waiter(holder("second", 60, 10, made("rs"), func(p *corev1.Pod) { p.Namespace = tt.after }))
			f.queue.MarkUnschedulable(podsOf(second), false, notify.Why{Key: "short", Text: "short"})
			f.newEvents()
			if got := fmt.Sprint(f.preempt(second)); got != tt.want {
				t.Errorf("evicted %s for the next of its controller, want %s", got, tt.want)
			}
			if tt.then != nil {
				return
			}
			const want = "no room is made for it: pod first of its controller got the room that was reserved for it, and has not started for 10m0s: ImagePullBackOff: no such image"
			if sent := f.newEvents(); !strings.Contains(sent, want) {
				t.Errorf("events %q, want %q", sent, want)
			}
			if got := f.reserveHeads(second); got[0] != "" {
				t.Errorf("reserved %q", got)
			}
			if got := fmt.Sprint(f.preempt(f.waiter(holder("other", 60, 10)))); got != names("low1") {
				t.Errorf("evicted %s for a pod of nobody", got)
			}
			f.gone(p, "n")
			f.Forget(p)
			if got := f.notStarting(podsOf(second)); got == "" {
				t.Error("all is forgotten once it has gone")
			}
			f.clock.Step(StartLate)
			if got := f.notStarting(podsOf(second)); got != "" || len(f.given)+len(f.unstarted) > 0 {
				t.Errorf("%q, and %d notes are kept", got, len(f.given)+len(f.unstarted))
			}
		})
	}
}

// An owner that has come to select no node loses its room in PassedOver, is told, and gets none again.
func TestHostileSelectorThatChanges(t *testing.T) {
	f := newFixture(t, "n")
	f.run(holder("a", 90, 1), "n", 0)
	f.run(holder("b", 80, 1), "n", 1)
	w := f.waiter(holder("first", v1alpha1.WholeGPU, 0))
	if got := f.reserveHeads(w); got[0] == "" {
		t.Fatal("nothing reserved")
	}
	f.newEvents()
	recheck := func(w Waiter) string {
		if err := f.Recheck(t.Context(), w); err != nil {
			t.Fatal(err)
		}
		return f.reserved(w)
	}
	f.clock.Step(PassedOver)
	if recheck(w) == "" {
		t.Fatal("lost although nothing has changed")
	}
	p := w.Pods[0].Pod.DeepCopy()
	p.Spec.NodeSelector = map[string]string{"zone": "none"}
	changed := f.waiter(p)
	f.clock.Step(PassedOver - 1)
	if recheck(changed) == "" {
		t.Error("looked at before its time")
	}
	f.clock.Step(1)
	if got := recheck(changed); got != "" {
		t.Errorf("still reserved: %s", got)
	}
	if sent := f.newEvents(); sent != "Normal VernierUnreserved room is reserved for it no longer: the scheduler would refuse the pod on node n: node(s) didn't match node selector zone=none" {
		t.Errorf("events %q", sent)
	}
	if got := f.reserveHeads(changed); slices.Contains(got, "head") || got[0] != "" {
		t.Errorf("reserved %q", got)
	}
	if next := f.waiter(holder("next", v1alpha1.WholeGPU, 0)); f.reserveHeads(changed, next)[1] == "" {
		t.Error("nothing is reserved for the next")
	}
}
