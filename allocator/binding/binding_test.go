// SPDX-License-Identifier: Apache-2.0

package binding

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

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

// fixture is a binder, an API server, and what the binder writes to beside it.
type fixture struct {
	*Binder
	t     *testing.T
	api   client.WithWatch
	clock *testclock.FakeClock
	work  *objects.Work[queue.Item]
	// updates is how many ledgers the binder has written or tried to. answer, if set, is
	// what the API server answers then; done says that it has written it all the same.
	updates int
	answer  error
	done    bool
}

// newFixture knows the objects, which the API server has.
func newFixture(t *testing.T, has ...client.Object) *fixture {
	f := &fixture{t: t, api: objects.Server(t, has...), clock: testclock.NewFakeClock(time.Unix(1000, 0)), work: objects.NewWork[queue.Item]()}
	known, groups := cache.New(objects.NoFilters{}, nil, logr.Discard()), gang.New(&podgroup.Sizes{})
	events := &notify.Notifier{Events: &record.FakeRecorder{}, Clock: f.clock}
	q := queue.New(known, groups, events, func(*corev1.Pod) []string { return nil }, f.clock, logr.Discard())
	f.Binder = &Binder{
		Client: interceptor.NewClient(f.api, interceptor.Funcs{Update: f.update}), Cache: known, Queue: q,
		Handlers: &eventhandlers.Handlers{Cache: known, Groups: groups, Queue: q}, Notify: events, Clock: f.clock, Requests: 1,
	}
	for _, obj := range has {
		switch obj := obj.(type) {
		case *v1alpha1.SliceLedger:
			f.Handlers.SetLedger(f.ledger(obj.Name))
		case *corev1.Pod:
			f.Handlers.SetPod(f.pod(obj.Name))
		}
	}
	q.Open(f.work)
	f.work.Clear()
	return f
}

func (f *fixture) update(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.UpdateOption) error {
	f.updates++
	if f.answer != nil && !f.done {
		return f.answer
	}
	return errors.Join(c.Update(ctx, obj, o...), f.answer)
}

func (f *fixture) must(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

// ledger and pod are what the API server has.
func (f *fixture) ledger(name string) *v1alpha1.SliceLedger {
	f.t.Helper()
	l := &v1alpha1.SliceLedger{}
	f.must(f.api.Get(f.t.Context(), client.ObjectKey{Name: name}, l))
	return l
}

func (f *fixture) pod(name string) *corev1.Pod {
	f.t.Helper()
	p := &corev1.Pod{}
	f.must(f.api.Get(f.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, p))
	return p
}

// behind changes an object in the API server: no watch has shown it yet.
func (f *fixture) behind(obj client.Object) {
	f.t.Helper()
	f.must(f.api.Update(f.t.Context(), obj))
}

// known is the cache's newest version of a ledger.
func (f *fixture) known(name string) *v1alpha1.SliceLedger { return f.Cache.Index.Ledger(name) }

var errInternal = apierrors.NewInternalError(errors.New("injected"))

// Whatever the API server answers to a write, the index has the ledger as it is then.
func TestWrite(t *testing.T) {
	p, other := objects.Halves("p", "c"), objects.Halves("other", "c")
	tests := []struct {
		name  string
		setup func(*fixture)
		// err is the error, has is whether the pod has its slices then.
		err func(error) bool
		has bool
	}{
		{"written", func(*fixture) {}, func(err error) bool { return err == nil }, true},
		{"another has written", func(f *fixture) { f.behind(objects.Grant(f.ledger("n"), other, on{"c": 1})) },
			func(err error) bool { return errors.Is(err, queue.ErrAgain) }, false},
		{"deleted", func(f *fixture) { f.must(f.api.Delete(t.Context(), f.ledger("n"))) },
			func(err error) bool { return apierrors.IsNotFound(err) && !errors.Is(err, queue.ErrAgain) }, false},
		{"refused", func(f *fixture) { f.answer = errInternal }, func(err error) bool { return errors.Is(err, errInternal) }, false},
		{"the answer is lost", func(f *fixture) { f.answer, f.done = errInternal, true }, func(err error) bool { return errors.Is(err, errInternal) }, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := newFixture(t, objects.ReadyLedger("n"))
			tt.setup(f)
			if err := f.Write(t.Context(), objects.Grant(f.known("n").DeepCopy(), p, on{"c": 0})); !tt.err(err) {
				t.Errorf("error %v", err)
			}
			if got := len(f.Cache.Index.Holders(p.UID)) > 0; got != tt.has {
				t.Errorf("the index has the pod's slices: %v, want %v", got, tt.has)
			}
			live := &v1alpha1.SliceLedger{}
			err := f.api.Get(t.Context(), client.ObjectKey{Name: "n"}, live)
			if known := f.known("n"); (known != nil) != (err == nil) || err == nil && known.ResourceVersion != live.ResourceVersion {
				t.Errorf("the index has version %v, the API server %q (%v)", known, live.ResourceVersion, err)
			}
		})
	}
}

// What holds no slices takes no write, and the rest goes in one.
func TestRelease(t *testing.T) {
	p, other := objects.Halves("p", "c"), objects.Halves("other", "c")
	f := newFixture(t, objects.Grant(objects.Grant(objects.ReadyLedger("n"), p, on{"c": 0}), other, on{"c": 0}))
	f.must(f.Release(t.Context(), f.known("n"), func(uid types.UID) bool { return uid == "third" }))
	if f.updates != 0 {
		t.Errorf("%d writes for nothing", f.updates)
	}
	f.must(f.Release(t.Context(), f.known("n"), func(types.UID) bool { return true }))
	if f.updates != 1 || len(f.Cache.Index.Holders(p.UID))+len(f.Cache.Index.Holders(other.UID)) > 0 {
		t.Errorf("%d writes, left: %v", f.updates, f.known("n").Spec.Devices)
	}
}

// A pod that was bound since it was seen stays.
func TestDeleteAsSeen(t *testing.T) {
	for _, changed := range []bool{false, true} {
		f := newFixture(t, objects.Halves("p", "c"))
		seen := f.pod("p")
		if changed {
			now := f.pod("p")
			now.Spec.NodeName = "n"
			f.behind(now)
		}
		f.must(f.DeleteAsSeen(t.Context(), seen))
		if err := f.api.Get(t.Context(), client.ObjectKeyFromObject(seen), &corev1.Pod{}); apierrors.IsNotFound(err) == changed {
			t.Errorf("changed: %v, then read: %v", changed, err)
		}
		f.must(f.DeleteAsSeen(t.Context(), seen)) // gone is as good
	}
}

// The conditions of others stay as they are.
func TestSetCondition(t *testing.T) {
	p := objects.Halves("p", "c")
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	f := newFixture(t, p)
	ours := corev1.PodCondition{Type: v1alpha1.PodConditionGPUHealthy, Status: corev1.ConditionFalse}
	f.must(f.SetCondition(t.Context(), f.pod("p"), ours))
	if got := f.pod("p").Status.Conditions; len(got) != 2 {
		t.Errorf("conditions %v", got)
	}
	if got := f.Cache.Current(p); got.ResourceVersion != f.pod("p").ResourceVersion {
		t.Error("the cache does not know what was written")
	}
	f.must(f.SetCondition(t.Context(), objects.Halves("gone", "c"), ours))
}

// So many requests are under way at a time, and all are made.
func TestRequestsAreBounded(t *testing.T) {
	for _, atATime := range []int{1, 4} {
		synctest.Test(t, func(t *testing.T) {
			b := &Binder{Requests: atATime}
			var begun atomic.Int32
			answer, done := make(chan bool), false
			go func() {
				b.Each(10, func(int) {
					begun.Add(1)
					<-answer
				})
				done = true
			}()
			for answered := range 10 {
				synctest.Wait() // until no other can begin
				if now := int(begun.Load()) - answered; now != min(atATime, 10-answered) {
					t.Errorf("%d requests under way after %d answers, want %d", now, answered, min(atATime, 10-answered))
				}
				answer <- true
			}
			if synctest.Wait(); !done || begun.Load() != 10 {
				t.Errorf("%d of 10 requests, over: %v", begun.Load(), done)
			}
		})
	}
}
