// SPDX-License-Identifier: Apache-2.0

package reservation

import (
	"fmt"
	"math/rand"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/index"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/priority"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// fixture are reservations over the node n with two devices.
type fixture struct {
	*Reservations
	t     *testing.T
	known *cache.Cache
	clock *testclock.FakeClock
	work  *objects.Work[queue.Item]
	made  int
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, known: cache.New(objects.NoFilters{}, nil, logr.Discard()), clock: testclock.NewFakeClock(time.Unix(1000, 0)), work: objects.NewWork[queue.Item]()}
	events := &notify.Notifier{Events: &record.FakeRecorder{}, Clock: f.clock}
	q := queue.New(f.known, gang.New(&podgroup.Sizes{}), events, func(*corev1.Pod) []string { return nil }, f.clock, logr.Discard())
	f.Reservations = New(f.known, q, f.clock, backfill.Lookahead)
	f.change(func(*v1alpha1.SliceLedger) {})
	q.Open(f.work)
	f.work.Clear()
	return f
}

// drop ends the owner's reservation.
func (f *fixture) drop(owner queue.Item) {
	f.keep(func(r *Reservation) bool { return r.Owner != owner })
}

// change has the cache know of another version of the ledger.
func (f *fixture) change(edit func(*v1alpha1.SliceLedger)) {
	f.made++
	l := f.known.Index.Ledger("n")
	if l == nil {
		l = objects.ReadyLedger("n")
	}
	l = l.DeepCopy()
	l.ResourceVersion = fmt.Sprint(f.made)
	edit(l)
	f.known.SetLedger(l)
}

// waiting is a pod that waits.
func (f *fixture) waiting(name string) *corev1.Pod {
	f.made++
	p := objects.Pod(name, map[string]v1alpha1.Share{"c": objects.Share(50, 500)})
	p.ResourceVersion = fmt.Sprint(f.made)
	f.known.SetPod(p)
	return p
}

func itemOf(p *corev1.Pod) queue.Item { return queue.Item{Pod: podstate.KeyOf(p)} }

func on(device string, core v1alpha1.Percent, mem v1alpha1.MiB) placement.Plan {
	return placement.Plan{Node: "n", Grants: []placement.Grant{{Container: "c", UUID: device, Core: core, Mem: mem, Mode: v1alpha1.ModeLimiter}}}
}

// runs has a pod run on the first device, where it ends or not.
func (f *fixture) runs(name string, core v1alpha1.Percent, ends bool, edits ...func(*corev1.Pod)) {
	p := f.waiting(name).DeepCopy()
	f.change(func(l *v1alpha1.SliceLedger) {
		if len(l.Spec.Devices) == 0 {
			l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: "GPU-n-0", Core: v1alpha1.WholeGPU, Mem: objects.DeviceMiB}}
		}
		l.Spec.Devices[0].Slices = append(l.Spec.Devices[0].Slices, slice(name, core, 100))
	})
	p = objects.Place(p, f.known.Index.Ledger("n"), map[string]int{"c": 0})
	f.made++
	p.ResourceVersion, p.Spec.NodeName = fmt.Sprint(f.made), "n"
	if ends {
		p.DeletionTimestamp = &metav1.Time{Time: f.clock.Now()}
	}
	for _, e := range edits {
		e(p)
	}
	f.known.SetPod(p)
}

// counts is a priority that counts in all namespaces.
func counts(value int32) priority.Priority {
	return priority.Priority{Namespace: "ns", Within: value, Across: value}
}

// reserve makes a reservation of a device for pods, by the name of the first, which is theirs once
// the pod "leaves" has left.
func (f *fixture) reserve(value int32, pods ...*corev1.Pod) *Reservation {
	f.t.Helper()
	r := &Reservation{Kind: Preemption, Owner: itemOf(pods[0]), Pods: pods, Priority: counts(value), Plans: []placement.Plan{on("GPU-n-0", 50, 500)}, Leaving: leaving("leaves"), Made: f.clock.Now()}
	if !f.Put(r) {
		f.t.Fatal("too many")
	}
	return r
}

// woken reports whether an owner, and all that wait, are looked at again.
func (f *fixture) woken(owner queue.Item) bool {
	return f.work.Due[owner] && slices.ContainsFunc(slices.Collect(keys(f.work.Due)), queue.Item.IsMove)
}

func keys(m map[queue.Item]bool) func(func(queue.Item) bool) {
	return func(yield func(queue.Item) bool) {
		for it := range m {
			if !yield(it) {
				return
			}
		}
	}
}

// An owner has one at most, and is looked at again when it expires; there are so many at most.
func TestPut(t *testing.T) {
	f := newFixture(t)
	p := f.waiting("p")
	first := f.reserve(1, p)
	if f.Of(itemOf(p)) != first || f.Of(queue.Item{Node: "n"}) != nil || len(f.work.Later) != 0 {
		t.Errorf("reserved %+v, later %v", f.Of(itemOf(p)), f.work.Later)
	}
	before := f.All()
	of := func(namespace string, i int) *Reservation {
		return &Reservation{Owner: queue.Item{Pod: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint("p", i)}}, Priority: counts(1)}
	}
	for i := range MostOf {
		if got, want := f.Put(of("ns", i)), i < MostOf-1; got != want {
			t.Errorf("number %d of a namespace: %v", i, got)
		}
		f.Put(of("other", i))
	}
	lowest := of("another", 0)
	lowest.Priority = counts(0)
	if f.Put(lowest) || len(f.All()) != Most {
		t.Errorf("%d reservations, beside one of a low priority", len(f.All()))
	}
	f.drop(of("other", 0).Owner)
	f.Put(lowest)
	f.Review()
	f.work.Clear()
	if !f.Put(of("another", 1)) || len(f.All()) != Most || f.Of(lowest.Owner) != nil || !f.work.Due[lowest.Owner] || f.notes[lowest] != nil {
		t.Errorf("one of a higher priority does not take the place of the lowest: %d, %+v", len(f.All()), f.Of(lowest.Owner))
	}
	second := &Reservation{Kind: Head, Owner: itemOf(p), Pods: []*corev1.Pod{p}, Expires: f.clock.Now().Add(time.Minute)}
	if !f.Put(second) || f.Of(itemOf(p)) != second || len(f.All()) != Most || f.work.Later[itemOf(p)] != time.Minute {
		t.Errorf("instead of the one before: %+v of %d, later %v", f.Of(itemOf(p)), len(f.All()), f.work.Later)
	}
	if len(before) != 1 || before[0] != first {
		t.Error("what was returned has changed")
	}
	if f.drop(itemOf(p)); f.Of(itemOf(p)) != nil || !f.Put(of("ns", MostOf)) {
		t.Error("there is no room after one was dropped")
	}
	if f.Clear(); len(f.All()) != 0 || len(f.notes) != 0 {
		t.Error("some are left")
	}
}

// A tenant whose namespaces have all reservations keeps nobody from having one: of one priority each
// namespace comes to as many as the others, and then nobody takes another's. A higher priority takes
// the place of the lowest, and within its namespace also where that has its most.
func TestHostileReservations(t *testing.T) {
	f := newFixture(t)
	made := 0
	put := func(namespace string, kind Kind, value int32) bool {
		made++
		return f.Put(&Reservation{Kind: kind, Owner: queue.Item{Pod: types.NamespacedName{Namespace: namespace, Name: fmt.Sprint("p", made)}}, Priority: priority.Priority{Namespace: namespace, Within: value, Across: value}})
	}
	of := func(namespace string, value int32) (n int) {
		for _, r := range f.All() {
			if r.Owner.Namespace() == namespace && r.Priority.Across == value {
				n++
			}
		}
		return n
	}
	for range MostOf {
		if !put("hostile-a", Head, 0) || !put("hostile-b", Preemption, 0) {
			t.Fatal("there are fewer reservations than there may be")
		}
	}
	if put("hostile-a", Head, 0) || put("hostile-b", Head, 0) {
		t.Error("a namespace has more than its most")
	}
	if !put("honest", Head, 0) || of("hostile-a", 0) != MostOf-1 || of("hostile-b", 0) != MostOf {
		t.Errorf("of namespaces with the same number one was taken for which pods were ended: %d, %d", of("hostile-a", 0), of("hostile-b", 0))
	}
	if got := f.All()[2*MostOf-2].Owner.Pod.Name; got != fmt.Sprint("p", 2*MostOf) {
		t.Errorf("the last but one is %s: not the youngest was taken", got)
	}
	for range Most {
		for _, namespace := range []string{"hostile-a", "honest", "hostile-b"} {
			put(namespace, Head, 0)
		}
	}
	if a, b, honest := of("hostile-a", 0), of("hostile-b", 0), of("honest", 0); min(a, b, honest) != Most/3 || a+b+honest != Most {
		t.Errorf("%d and %d of a tenant's namespaces, %d of an honest one", a, b, honest)
	}
	all := f.All()
	for _, namespace := range []string{"hostile-a", "hostile-b", "honest"} {
		if put(namespace, Head, 0) && of(namespace, 0) > Most/3+1 {
			t.Errorf("%s takes another's although it has as many", namespace)
		}
	}
	if len(f.All()) != len(all) {
		t.Errorf("%d reservations", len(f.All()))
	}
	for i := range MostOf {
		if !put("important", Head, 1000) || of("important", 1000) != i+1 || len(f.All()) != Most {
			t.Fatalf("number %d of a higher priority: %d of %d", i, of("important", 1000), len(f.All()))
		}
	}
	if put("important", Head, 1000) || !put("important", Head, 2000) || of("important", 1000) != MostOf-1 || len(f.All()) != Most {
		t.Errorf("in a namespace with its most: %d of 1000, %d of 2000", of("important", 1000), of("important", 2000))
	}
	if put("honest", Head, -1) {
		t.Error("a lower priority takes a place")
	}
}

// Who sees through which.
func TestAgainst(t *testing.T) {
	f := newFixture(t)
	p, q := f.waiting("p"), f.waiting("q")
	r := f.reserve(5, p)
	until := f.clock.Now().Add(time.Hour)
	ends := func(p *corev1.Pod, d time.Duration) *corev1.Pod {
		p = p.DeepCopy()
		p.Spec.ActiveDeadlineSeconds, p.Spec.TerminationGracePeriodSeconds = ptr.To(int64(d/time.Second)), ptr.To[int64](0)
		return p
	}
	for name, tt := range map[string]struct {
		asker           Asker
		until           time.Time
		against, filled bool
	}{
		"its own":              {Asker{itemOf(p), counts(0), []*corev1.Pod{p}}, until, false, false},
		"of higher priority":   {Asker{itemOf(q), counts(6), []*corev1.Pod{q}}, until, false, false},
		"of its own namespace": {Asker{itemOf(q), priority.Priority{Namespace: "ns", Within: 6}, []*corev1.Pod{q}}, until, false, false},
		"of another namespace": {Asker{itemOf(q), priority.Priority{Namespace: "other", Within: 6, Across: 6}, []*corev1.Pod{q}}, until, false, false},
		"where it counts less": {Asker{itemOf(q), priority.Priority{Namespace: "other", Within: 6}, []*corev1.Pod{q}}, until, true, false},
		"of equal priority":    {Asker{itemOf(q), counts(5), []*corev1.Pod{q}}, until, true, false},
		"of lower priority":    {Asker{itemOf(q), counts(4), []*corev1.Pod{q}}, until, true, false},
		"ends before":          {Asker{itemOf(q), counts(4), []*corev1.Pod{ends(q, time.Hour-backfill.Slack-time.Second)}}, until, false, true},
		"ends with it":         {Asker{itemOf(q), counts(4), []*corev1.Pod{ends(q, time.Hour-backfill.Slack)}}, until, true, false},
		"until nobody knows":   {Asker{itemOf(q), counts(4), []*corev1.Pod{ends(q, time.Second)}}, time.Time{}, true, false},
		"one of them ends":     {Asker{itemOf(q), counts(4), []*corev1.Pod{ends(q, time.Second), q}}, until, true, false},
		"all of them end":      {Asker{itemOf(q), counts(4), []*corev1.Pod{ends(q, time.Second), ends(q, time.Minute)}}, until, false, true},
		"the last is too late": {Asker{itemOf(q), counts(4), []*corev1.Pod{ends(q, time.Second), ends(q, 2*time.Hour)}}, until, true, false},
		"no pods":              {Asker{itemOf(q), counts(4), nil}, until, true, false},
	} {
		r.End = tt.until
		against, filled := f.Against(tt.asker)
		if len(against) == 1 != tt.against || len(filled) == 1 != tt.filled {
			t.Errorf("%s: against %d, filled %d", name, len(against), len(filled))
		}
	}
	r.Kind = Head
	if against, _ := f.Against(Asker{itemOf(q), priority.Priority{Namespace: "ns", Within: 6}, []*corev1.Pod{q}}); len(against) != 1 {
		t.Error("who is above the first at home only sees through what is kept from others for it")
	}
}

// What ends a reservation; its owner is looked at again, and all that wait.
func TestReview(t *testing.T) {
	for name, tt := range map[string]struct {
		then func(f *fixture, p *corev1.Pod)
		ends bool
	}{
		"nothing happens": {func(*fixture, *corev1.Pod) {}, false},
		"it is not over":  {func(f *fixture, _ *corev1.Pod) { f.clock.Step(time.Hour - 1) }, false},
		"it is over":      {func(f *fixture, _ *corev1.Pod) { f.clock.Step(time.Hour) }, true},
		"the owner is placed": {func(f *fixture, p *corev1.Pod) {
			p = objects.Place(p.DeepCopy(), f.known.Index.Ledger("n"), map[string]int{"c": 0})
			p.ResourceVersion = "1000"
			f.known.SetPod(p)
		}, true},
		"the owner waits for others": {func(f *fixture, p *corev1.Pod) {
			p = p.DeepCopy()
			p.ResourceVersion = "1000"
			p.Spec.SchedulingGates = append(p.Spec.SchedulingGates, corev1.PodSchedulingGate{Name: "example.com/other"})
			f.known.SetPod(p)
		}, true},
		"the owner is being deleted": {func(f *fixture, p *corev1.Pod) {
			p = p.DeepCopy()
			p.ResourceVersion, p.DeletionTimestamp = "1000", &metav1.Time{Time: f.clock.Now()}
			f.known.SetPod(p)
		}, true},
		"the owner is gone": {func(f *fixture, p *corev1.Pod) { f.known.DeletePod(p, true) }, true},
		"another has its name": {func(f *fixture, p *corev1.Pod) {
			p = p.DeepCopy()
			p.ResourceVersion, p.UID = "1000", "another"
			f.known.SetPod(p)
		}, true},
		"the device is cordoned": {func(f *fixture, _ *corev1.Pod) {
			f.change(func(l *v1alpha1.SliceLedger) { l.Spec.Cordons = []v1alpha1.Cordon{{UUID: "GPU-n-0"}} })
		}, true},
		"the other device is cordoned": {func(f *fixture, _ *corev1.Pod) {
			f.change(func(l *v1alpha1.SliceLedger) { l.Spec.Cordons = []v1alpha1.Cordon{{UUID: "GPU-n-1"}} })
		}, false},
		"the device is unhealthy": {func(f *fixture, _ *corev1.Pod) {
			f.change(func(l *v1alpha1.SliceLedger) { l.Status.Devices[0].Healthy = false })
		}, true},
		"the device is gone": {func(f *fixture, _ *corev1.Pod) {
			f.change(func(l *v1alpha1.SliceLedger) { l.Status.Devices = l.Status.Devices[1:] })
		}, true},
		"the ledger is gone":                        {func(f *fixture, _ *corev1.Pod) { f.known.DeleteLedger(f.known.Index.Ledger("n")) }, true},
		"one of higher priority has taken the room": {func(f *fixture, _ *corev1.Pod) { f.runs("taker", 60, false) }, true},
		"another beside has room":                   {func(f *fixture, _ *corev1.Pod) { f.runs("taker", 40, false) }, false},
		"one fills the room for a while": {func(f *fixture, _ *corev1.Pod) {
			f.Of(itemOf(f.known.Pod(types.NamespacedName{Namespace: "ns", Name: "p"}))).End = f.clock.Now().Add(time.Hour)
			f.runs("taker", 60, false, func(p *corev1.Pod) { p.Spec.ActiveDeadlineSeconds = ptr.To[int64](60) })
		}, false},
		"the room is free, and the owner does not start": {func(f *fixture, _ *corev1.Pod) {
			f.change(func(l *v1alpha1.SliceLedger) { l.Spec.Devices[0].Slices = nil })
			f.Review()
			f.clock.Step(MaxAway)
		}, true},
		"the room is free since a moment": {func(f *fixture, _ *corev1.Pod) {
			f.change(func(l *v1alpha1.SliceLedger) { l.Spec.Devices[0].Slices = nil })
			f.Review()
			f.clock.Step(MaxAway - 1)
		}, false},
		"who is to leave is not evicted": {func(f *fixture, _ *corev1.Pod) {
			f.stays("leaves")
			f.clock.Step(MaxRefused)
		}, true},
		"who is to leave may be evicted yet": {func(f *fixture, _ *corev1.Pod) {
			f.stays("leaves")
			f.clock.Step(MaxRefused - 1)
		}, false},
		"who is to leave ends by itself": {func(f *fixture, p *corev1.Pod) {
			f.stays("leaves")
			f.Of(itemOf(p)).Kind = Head
			f.clock.Step(MaxRefused)
		}, false},
		"the node is away for a moment": {func(f *fixture, _ *corev1.Pod) {
			f.leave()
			f.Review()
			f.clock.Step(MaxAway - 1)
		}, false},
		"the node is away for long": {func(f *fixture, _ *corev1.Pod) {
			f.leave()
			f.Review()
			f.clock.Step(MaxAway)
		}, true},
		"the node is away twice": {func(f *fixture, _ *corev1.Pod) {
			f.leave()
			f.Review()
			f.clock.Step(MaxAway - 1)
			f.change(func(l *v1alpha1.SliceLedger) { l.Status.Conditions[0].Status = metav1.ConditionTrue })
			f.Review()
			f.leave()
			f.Review()
			f.clock.Step(MaxAway - 1)
		}, false},
	} {
		f := newFixture(t)
		f.runs("leaves", 60, true)
		p := f.waiting("p")
		r := f.reserve(1, p)
		r.Expires = f.clock.Now().Add(time.Hour)
		kept := f.reserve(1, f.waiting("other"))
		kept.Plans, kept.Leaving = nil, nil
		f.queue.MarkUnschedulable(kept.Pods, false, notify.Why{Key: "devices", Text: "why"})
		f.work.Clear()
		tt.then(f, p)
		f.Review()
		if ends := f.Of(r.Owner) == nil; ends != tt.ends || f.woken(r.Owner) != tt.ends || f.Of(kept.Owner) != kept {
			t.Errorf("%s: it ends: %v, its owner is woken: %v, the other is kept: %v", name, ends, f.woken(r.Owner), f.Of(kept.Owner) == kept)
		}
		if len(f.notes) != len(f.All()) {
			t.Errorf("%s: %d notes on %d reservations", name, len(f.notes), len(f.All()))
		}
	}
}

// stays has a pod that was ending end not.
func (f *fixture) stays(name string) {
	p := f.known.Pod(types.NamespacedName{Namespace: "ns", Name: name}).DeepCopy()
	f.made++
	p.ResourceVersion, p.DeletionTimestamp = fmt.Sprint(f.made), nil
	f.known.SetPod(p)
}

// leave has the node take no slices.
func (f *fixture) leave() {
	f.change(func(l *v1alpha1.SliceLedger) { l.Status.Conditions[0].Status = metav1.ConditionFalse })
}

// The owner of room on a node that is away is looked at when that has lasted.
func TestAwayIsLookedAtAgain(t *testing.T) {
	f := newFixture(t)
	f.runs("leaves", 60, true)
	r := f.reserve(1, f.waiting("p"))
	f.leave()
	f.Review()
	if f.work.Later[r.Owner] != MaxAway {
		t.Errorf("looked at again in %v", f.work.Later[r.Owner])
	}
	second := f.reserve(1, r.Pods...)
	if f.Review(); len(f.notes) != 1 || f.Of(r.Owner) != second {
		t.Errorf("%d notes, want one on the reservation that there is", len(f.notes))
	}
}

// A reservation ends with any of its pods, and with no other of the name.
func TestForget(t *testing.T) {
	f := newFixture(t)
	a, b, c := f.waiting("a"), f.waiting("b"), f.waiting("c")
	r, other := f.reserve(1, a, b), f.reserve(1, c)
	f.queue.MarkUnschedulable(other.Pods, false, notify.Why{Key: "devices", Text: "why"})
	f.work.Clear()
	namesake := b.DeepCopy()
	namesake.UID = "another"
	if f.Forget(namesake); f.Of(r.Owner) != r || len(f.work.Due) != 0 {
		t.Error("it ends with another pod of the name")
	}
	if f.Forget(b); f.Of(r.Owner) != nil || !f.woken(r.Owner) || f.Of(other.Owner) != other {
		t.Errorf("it is left: %+v, its owner is woken: %v", f.Of(r.Owner), f.woken(r.Owner))
	}
}

// seenUnder is the ledger's room under reservations.
func seenUnder(l *v1alpha1.SliceLedger, against ...*Reservation) *placement.Node {
	return Hide(against, index.Room(l), l)
}

func slice(pod string, core v1alpha1.Percent, mem v1alpha1.MiB) v1alpha1.Slice {
	return v1alpha1.Slice{Pod: types.UID(pod), Owner: "ns/" + pod, Ctr: "c", Core: core, Mem: mem}
}

func leaving(pods ...string) map[types.UID]types.NamespacedName {
	all := map[types.UID]types.NamespacedName{}
	for _, p := range pods {
		all[types.UID(p)] = types.NamespacedName{Namespace: "ns", Name: p}
	}
	return all
}

// Whatever is promised to whom, of a device is seen min(free, max(0, free + leaving - reserved)), and
// one that leaves for two leaves once.
func TestHide(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	less, shared := 0, 0
	for range 5000 {
		l := objects.ReadyLedger("n")
		var on [2][]v1alpha1.Slice
		for i := range on {
			core, mem := v1alpha1.WholeGPU, v1alpha1.MiB(objects.DeviceMiB)
			for j := range r.Intn(5) {
				s := slice(fmt.Sprint("p", j), v1alpha1.Percent(r.Intn(int(core)+1)), v1alpha1.MiB(1+r.Intn(int(mem))))
				if r.Intn(3) == 0 {
					s.ReuseCore, s.ReuseMem = s.Core/2, s.Mem/2
				}
				if core, mem = core-s.Core, mem-s.Mem; mem < 1 {
					break
				}
				on[i] = append(on[i], s)
			}
			l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: l.Status.Devices[i].UUID, Core: v1alpha1.WholeGPU, Mem: objects.DeviceMiB, Slices: on[i]})
		}
		whole := index.Room(l)
		var against []*Reservation
		promised, slots, goes := [2]amount{}, [2]int{}, map[string]bool{}
		for range 1 + r.Intn(2) {
			held := &Reservation{Leaving: map[types.UID]types.NamespacedName{}}
			for range 1 + r.Intn(2) {
				i := r.Intn(2)
				g := placement.Grant{UUID: l.Status.Devices[i].UUID, Core: v1alpha1.Percent(r.Intn(101)), Mem: v1alpha1.MiB(1 + r.Intn(500)), Mode: v1alpha1.ModeLimiter}
				promised[i], slots[i] = amount{promised[i].core + g.Core, promised[i].mem + g.Mem}, slots[i]+1
				held.Plans = append(held.Plans, placement.Plan{Node: "n", Grants: []placement.Grant{g}}, placement.Plan{Node: "m", Grants: []placement.Grant{g}})
			}
			for j := range 5 {
				if name := fmt.Sprint("p", j); r.Intn(2) == 0 {
					if goes[name] {
						shared++
					}
					goes[name] = true
					held.Leaving[types.UID(name)] = types.NamespacedName{Namespace: "ns", Name: name}
				}
			}
			against = append(against, held)
		}
		elsewhere := &Reservation{Plans: []placement.Plan{{Node: "m", Grants: []placement.Grant{{UUID: "GPU-n-0", Core: 100, Mem: 1000}}}}, Leaving: leaving("p0", "p1", "p2", "p3", "p4")}
		seen := seenUnder(l, append(against, elsewhere)...)
		for i, d := range whole.Devices {
			want := d
			if slots[i] > 0 {
				core, mem, n := d.FreeCore-promised[i].core, d.FreeMem-promised[i].mem, d.Slots-slots[i]
				for _, s := range on[i] {
					if goes[string(s.Pod)] {
						core, mem, n = core+s.Core-s.ReuseCore, mem+s.Mem-s.ReuseMem, n+1
					}
				}
				want.FreeCore, want.FreeMem, want.Slots = min(d.FreeCore, max(0, core)), min(d.FreeMem, max(0, mem)), min(d.Slots, max(0, n))
			}
			got := seen.Devices[i]
			if got.FreeCore != want.FreeCore || got.FreeMem != want.FreeMem || got.Slots != want.Slots {
				t.Fatalf("device %d of %v, with %+v promised: %+v, want %+v", i, l.Spec.Devices, against, got, want)
			}
			if got.FreeCore < d.FreeCore {
				less++
			}
		}
	}
	if less < 500 || shared < 500 {
		t.Errorf("%d times less was seen, %d left for two: the test no longer shows anything", less, shared)
	}
}

type amount struct {
	core v1alpha1.Percent
	mem  v1alpha1.MiB
}

// Two that wait for the end of one pod share what it leaves.
func TestHideOfOneThatLeavesForTwo(t *testing.T) {
	l := objects.ReadyLedger("n")
	l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: "GPU-n-0", Core: v1alpha1.WholeGPU, Mem: objects.DeviceMiB, Slices: []v1alpha1.Slice{slice("p", 60, 600)}}}
	first := &Reservation{Plans: []placement.Plan{on("GPU-n-0", 50, 500)}, Leaving: leaving("p")}
	second := &Reservation{Plans: []placement.Plan{on("GPU-n-0", 40, 400)}, Leaving: leaving("p")}
	if got := seenUnder(l, first, second).Device("GPU-n-0"); got.FreeCore != 10 || got.FreeMem != 100 {
		t.Errorf("%d %% and %d MiB are seen, want 10 and 100", got.FreeCore, got.FreeMem)
	}
	if got := seenUnder(l, first).Device("GPU-n-0"); got.FreeCore != 40 || got.FreeMem != 400 {
		t.Errorf("of the first alone %d %% and %d MiB are seen, want 40 and 400: all that is free now", got.FreeCore, got.FreeMem)
	}
	if room := index.Room(l); Hide([]*Reservation{{Plans: []placement.Plan{{Node: "m"}}}}, room, l) != room || Hide([]*Reservation{first}, nil, l) != nil {
		t.Error("what hides nothing changes something")
	}
}

// A promised place of a device in MIG mode is taken, also while its holder is on it; and a device on which
// one in mode mps is promised takes nothing else.
func TestHideModes(t *testing.T) {
	profile := v1alpha1.MIGProfile{ID: 19, Core: 14, Mem: 100, Size: 1, Starts: []int32{0, 1, 2}, Max: 3}
	l := objects.ReadyLedger("n")
	l.Status.Devices[0].Profiles, l.Status.Devices[0].MIG = []v1alpha1.MIGProfile{profile}, v1alpha1.MIGEnabled
	cut := func(start int32, pod string) v1alpha1.Slice {
		s := slice(pod, 10, 50)
		place := profile.Place(start)
		s.Mode, s.MIG = v1alpha1.ModeMIG, &place
		return s
	}
	l.Spec.Devices = []v1alpha1.DeviceLedger{{UUID: "GPU-n-0", Core: v1alpha1.WholeGPU, Mem: objects.DeviceMiB, Slices: []v1alpha1.Slice{cut(0, "p"), cut(1, "q")}}}
	asks := &placement.Demand{Policy: v1alpha1.PolicyPack, Containers: []placement.Container{{Name: "c", Mode: v1alpha1.ModeMIG, Share: objects.Share(10, 50)}}}
	for start, want := range map[int32]bool{0: true, 1: true, 2: false} {
		held := &Reservation{Plans: []placement.Plan{{Node: "n", Grants: []placement.Grant{{UUID: "GPU-n-0", Core: 10, Mem: 50, Mode: v1alpha1.ModeMIG, MIG: profile.Place(start)}}}}, Leaving: leaving("p", "q")}
		plan, fits := placement.Fit(asks, seenUnder(l, held))
		if fits != want || fits && plan.Grants[0].MIG.Start != 2 {
			t.Errorf("place %d is promised: fits %v at %+v", start, fits, plan.Grants)
		}
	}

	l = objects.ReadyLedger("n")
	l.Status.Devices, l.Status.Driver.MPS = l.Status.Devices[:1], true
	for promised, other := range map[v1alpha1.Mode]v1alpha1.Mode{v1alpha1.ModeMPS: v1alpha1.ModeLimiter, v1alpha1.ModeLimiter: v1alpha1.ModeMPS} {
		plan := on("GPU-n-0", 10, 50)
		plan.Grants[0].Mode = promised
		seen := seenUnder(l, &Reservation{Plans: []placement.Plan{plan}})
		asks.Containers[0].Mode = promised
		like := placement.Fits(asks, seen)
		asks.Containers[0].Mode = other
		if !like || placement.Fits(asks, seen) {
			t.Errorf("beside one in mode %s: one in mode %s fits: %v, one in mode %s: %v", promised, promised, like, other, placement.Fits(asks, seen))
		}
	}
}
