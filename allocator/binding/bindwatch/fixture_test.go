// SPDX-License-Identifier: Apache-2.0

package bindwatch

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/eventhandlers"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// on is the device of each container, by index.
type on = map[string]int

// fixture is a watch over pod p, which is placed on node n and has its slices there.
type fixture struct {
	*Watch
	t        *testing.T
	api      client.WithWatch
	handlers *eventhandlers.Handlers
	clock    *testclock.FakeClock
	work     *objects.Work[queue.Item]
	events   *record.FakeRecorder
	// claims is what is said of the pod's volume claims.
	claims string
}

func newFixture(t *testing.T, edits ...func(*corev1.Pod)) *fixture {
	l := objects.ReadyLedger("n")
	p := objects.Halves("p", "c")
	objects.Grant(l, objects.Place(p, l, on{"c": 0}), on{"c": 0})
	for _, edit := range edits {
		edit(p)
	}
	f := &fixture{t: t, api: objects.Server(t, l, p), clock: testclock.NewFakeClock(time.Unix(1000, 0)), work: objects.NewWork[queue.Item](), events: record.NewFakeRecorder(100)}
	known, groups := cache.New(objects.NoFilters{}, nil, logr.Discard()), gang.New(&podgroup.Sizes{})
	events := &notify.Notifier{Events: f.events, Clock: f.clock}
	q := queue.New(known, groups, events, func(*corev1.Pod) []string { return nil }, f.clock, logr.Discard())
	f.handlers = &eventhandlers.Handlers{Cache: known, Groups: groups, Queue: q}
	binder := &binding.Binder{Client: f.api, Cache: known, Queue: q, Handlers: f.handlers, Notify: events, Clock: f.clock, Requests: 1}
	f.Watch = New(known, q, binder, events, func(context.Context, *corev1.Pod) error { return nil }, func(*corev1.Pod) string { return f.claims }, f.clock)
	f.handlers.OnGone(f.Forget)
	f.handlers.SetLedger(f.ledger())
	f.handlers.SetPod(f.live())
	q.Open(f.work)
	f.work.Clear()
	return f
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) ledger() *v1alpha1.SliceLedger {
	l := &v1alpha1.SliceLedger{}
	f.must(f.api.Get(f.t.Context(), client.ObjectKey{Name: "n"}, l))
	return l
}

// live is what the API server has of the pod, nil when it is gone.
func (f *fixture) live() *corev1.Pod {
	p := &corev1.Pod{}
	if err := f.api.Get(f.t.Context(), client.ObjectKey(item.Pod), p); err != nil {
		f.must(client.IgnoreNotFound(err))
		return nil
	}
	return p
}

// status changes the pod's status in the API server; the watch shows it if shown.
func (f *fixture) status(shown bool, edit func(*corev1.Pod)) {
	f.t.Helper()
	p := f.live()
	edit(p)
	f.must(f.api.Status().Update(f.t.Context(), p))
	if shown {
		f.handlers.SetPod(p)
	}
}

// check has the newest version of the pod that is known looked at after some time.
func (f *fixture) check(after time.Duration) {
	f.t.Helper()
	f.clock.Step(after)
	f.work.Clear()
	f.must(f.Check(f.t.Context(), f.cache.Pod(item.Pod)))
}

var item = queue.Item{Pod: types.NamespacedName{Namespace: "ns", Name: "p"}}

// want is what there is to be of the pod, its slices, and its events since the last call.
func (f *fixture) want(when string, pod, slices bool, events int) {
	f.t.Helper()
	if got := f.live() != nil; got != pod {
		f.t.Errorf("%s there is a pod: %v, want %v", when, got, pod)
	}
	if got := len(f.ledger().Spec.Devices[0].Slices) > 0; got != slices {
		f.t.Errorf("%s it has slices: %v, want %v", when, got, slices)
	}
	if got := f.newEvents(); len(got) != events {
		f.t.Errorf("%s events %q, want %d events", when, got, events)
	}
}

func (f *fixture) newEvents() (events []string) {
	for len(f.events.Events) > 0 {
		events = append(events, <-f.events.Events)
	}
	return events
}

// again is in how long the pod is looked at again.
func (f *fixture) again(when string, want time.Duration) {
	f.t.Helper()
	if got := f.work.Later[item]; got != want {
		f.t.Errorf("%s looked at again in %v, want %v", when, got, want)
	}
}

func refused(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionFalse, Reason: corev1.PodReasonUnschedulable}}
}

func accepted(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
}

func unclaimed(p *corev1.Pod) { p.Spec.SchedulerName = "another" }
