// SPDX-License-Identifier: Apache-2.0

package repair

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/eventhandlers"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// on is the device of each container, by index.
type on = map[string]int

const (
	first  = "GPU-n-0"
	second = "GPU-n-1"
)

// start is when tests begin.
var start = time.Unix(1000, 0)

// fixture is a reconciler, and an API server that has ledger n and pods.
type fixture struct {
	*Reconciler
	t        *testing.T
	api      client.WithWatch
	handlers *eventhandlers.Handlers
	clock    *testclock.FakeClock
	work     *objects.Work[queue.Item]
	recorder *record.FakeRecorder
	// specs, statuses and conditions are how often the spec and the status of a ledger were
	// written, and the status of a pod.
	specs, statuses, conditions int
	// refuse is the answer to a write of an object, nil where it is taken.
	refuse func(obj client.Object) error
	// evicted are the pods that were, and evictions, if set, is the answer to it.
	evicted   []string
	evictions func() error
}

func newFixture(t *testing.T, l *v1alpha1.SliceLedger, pods ...*corev1.Pod) *fixture {
	has := []client.Object{l}
	for _, p := range pods {
		has = append(has, p)
	}
	f := &fixture{t: t, api: objects.Server(t, has...), clock: testclock.NewFakeClock(start), work: objects.NewWork[queue.Item](), recorder: record.NewFakeRecorder(100), refuse: func(client.Object) error { return nil }}
	counted := interceptor.NewClient(f.api, interceptor.Funcs{
		SubResourceCreate: func(_ context.Context, _ client.Client, _ string, pod, _ client.Object, _ ...client.SubResourceCreateOption) error {
			if f.evictions != nil {
				return f.evictions()
			}
			f.evicted = append(f.evicted, pod.GetName())
			return nil
		},
		Update: func(ctx context.Context, c client.WithWatch, obj client.Object, o ...client.UpdateOption) error {
			f.specs++
			if err := f.refuse(obj); err != nil {
				return err
			}
			return c.Update(ctx, obj, o...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, kind string, obj client.Object, o ...client.SubResourceUpdateOption) error {
			f.statuses++
			if err := f.refuse(obj); err != nil {
				return err
			}
			return c.SubResource(kind).Update(ctx, obj, o...)
		},
		SubResourcePatch: func(ctx context.Context, c client.Client, kind string, obj client.Object, p client.Patch, o ...client.SubResourcePatchOption) error {
			f.conditions++
			if err := f.refuse(obj); err != nil {
				return err
			}
			return c.SubResource(kind).Patch(ctx, obj, p, o...)
		},
	})
	known, groups := cache.New(objects.NoFilters{}, nil, logr.Discard()), gang.New(&podgroup.Sizes{})
	events := &notify.Notifier{Events: f.recorder, Client: counted, Clock: f.clock}
	q := queue.New(known, groups, events, func(*corev1.Pod) []string { return nil }, f.clock, logr.Discard())
	f.handlers = &eventhandlers.Handlers{Cache: known, Groups: groups, Queue: q}
	binder := &binding.Binder{Client: counted, Cache: known, Queue: q, Handlers: f.handlers, Notify: events, Clock: f.clock, Requests: 1}
	f.Reconciler = &Reconciler{Cache: known, Queue: q, Binder: binder, Notify: events, Clock: f.clock, Log: logr.Discard()}
	f.handlers.SetLedger(f.ledger())
	for _, p := range pods {
		f.handlers.SetPod(f.pod(p.Name))
	}
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

// reconcile reconciles the ledger after some time.
func (f *fixture) reconcile(after time.Duration) {
	f.t.Helper()
	f.clock.Step(after)
	f.work.Clear()
	f.must(f.Reconcile(f.t.Context(), "n"))
}

func (f *fixture) ledger() *v1alpha1.SliceLedger {
	f.t.Helper()
	l := &v1alpha1.SliceLedger{}
	f.must(f.api.Get(f.t.Context(), client.ObjectKey{Name: "n"}, l))
	return l
}

// pod is what the API server has, nil when it is gone.
func (f *fixture) pod(name string) *corev1.Pod {
	f.t.Helper()
	p := &corev1.Pod{}
	if err := f.api.Get(f.t.Context(), client.ObjectKey{Namespace: "ns", Name: name}, p); err != nil {
		f.must(client.IgnoreNotFound(err))
		return nil
	}
	return p
}

// report changes the ledger's status as the node agent does, and the watch shows it.
func (f *fixture) report(edit func(*v1alpha1.SliceLedgerStatus)) {
	f.t.Helper()
	l := f.ledger()
	edit(&l.Status)
	f.must(f.api.Status().Update(f.t.Context(), l))
	f.handlers.SetLedger(l)
}

// device is where the ledger has the slices of a pod's container, empty for nowhere.
func (f *fixture) device(p *corev1.Pod, ctr string) string {
	if placed := grants.Placement(f.ledger(), p.UID); placed != nil && len(placed.Containers[ctr].Devices) > 0 {
		return placed.Containers[ctr].Devices[0].UUID
	}
	return ""
}

// newEvents are the reasons of the events that were written, and how many others there were.
func (f *fixture) newEvents() (once []string, others int) {
	f.t.Helper()
	list := &corev1.EventList{}
	f.must(f.api.List(f.t.Context(), list))
	for i := range list.Items {
		once = append(once, list.Items[i].Reason)
	}
	return once, len(f.recorder.Events)
}

// bound places the pod, and binds it to the ledger's node.
func bound(p *corev1.Pod, l *v1alpha1.SliceLedger, at on) *corev1.Pod {
	objects.Place(p, l, at).Spec.NodeName = l.Name
	return p
}

// failing has the kubelet fail to create the pod's containers.
func failing(p *corev1.Pod) *corev1.Pod {
	for _, c := range p.Spec.Containers {
		p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: c.Name,
			State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CreateContainerError", Message: "no hook"}}})
	}
	return p
}

// running has the container run, on the device.
func running(p *corev1.Pod, l *v1alpha1.SliceLedger, ctr, uuid string) {
	p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, corev1.ContainerStatus{Name: ctr, ContainerID: "id", State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
	l.Status.Slices = append(l.Status.Slices, v1alpha1.SliceStatus{Pod: p.UID, Ctr: ctr, UUID: uuid})
}
