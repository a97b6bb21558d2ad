// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/eventhandlers"
	"vernier.dev/vernier/allocator/queue/gang"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/backfill"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/cache"
	"vernier.dev/vernier/allocator/state/feasible"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/allocator/state/priority"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// fixture is a Preemption with the scheduler's own filters, over nodes of 64 CPUs.
type fixture struct {
	*Preemption
	t       *testing.T
	filters *feasible.Filters
	known   *cache.Cache
	clock   *testclock.FakeClock
	work    *objects.Work[queue.Item]
	// asked is how often the filters were, and takes how long that is.
	asked  int
	takes  time.Duration
	events *record.FakeRecorder
	// members are the pods of groups.
	members *gang.Groups
	// dry and evicted are the pods of which an eviction was tried, and asked for. refuse, if set, is
	// what the API server answers.
	dry, evicted []string
	// graces are those, in seconds, with which pods were evicted that have others of their own.
	graces map[string]int64
	refuse func(pod string, dry bool) error
	made   int
}

func newFixture(t *testing.T, nodes ...string) *fixture {
	return newFixtureWith(t, nil, &podgroup.Sizes{}, nodes...)
}

// newFixtureWith is for a cluster that has PodDisruptionBudgets, and groups of pods.
func newFixtureWith(t *testing.T, budgets []*policyv1.PodDisruptionBudget, sizes *podgroup.Sizes, nodes ...string) *fixture {
	var has []runtime.Object
	for _, b := range budgets {
		has = append(has, b)
	}
	filters := objects.Filters(t.Context(), t, has...)
	f := &fixture{t: t, filters: filters, known: cache.New(filters, nil, logr.Discard()), clock: testclock.NewFakeClock(time.Unix(1000, 0)), work: objects.NewWork[queue.Item](), graces: map[string]int64{}}
	f.events = record.NewFakeRecorder(1000)
	f.known.Priorities.Everywhere = []string{priority.Any}
	events := &notify.Notifier{Events: f.events, Clock: f.clock}
	f.members = gang.New(sizes)
	q := queue.New(f.known, f.members, events, filters.Undecided, f.clock, logr.Discard())
	q.Open(f.work)
	f.Preemption = New(Config{Cache: f.known, Groups: f.members, Queue: q, Filters: filters, Notify: events, Reservations: reservation.New(f.known, q, f.clock, backfill.Lookahead), Lookahead: backfill.Lookahead, Clock: f.clock, Log: logr.Discard(),
		Binder: &binding.Binder{Cache: f.known, Queue: q, Notify: events, Clock: f.clock, Requests: 1, Client: interceptor.NewClient(objects.Server(t), interceptor.Funcs{SubResourceCreate: f.evicts, Update: f.updates}),
			Handlers: &eventhandlers.Handlers{Cache: f.known, Groups: f.members, Queue: q}}})
	f.reservations.OnEnd(f.Ended)
	for _, node := range nodes {
		filters.SetNode(objects.Node(node))
		f.known.SetLedger(objects.ReadyLedger(node))
	}
	return f
}

// other counts a pod without a share on a node.
func (f *fixture) other(node string, priority int32, cpu string) {
	f.t.Helper()
	name := fmt.Sprintf("other-%s-%d", node, priority)
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, UID: types.UID(name)}, Spec: corev1.PodSpec{
		NodeName: node, Priority: ptr.To(priority), Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{
			Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}}}
	if _, err := f.filters.Count(p, node); err != nil {
		f.t.Fatal(err)
	}
}

// newPod asks for slices and CPUs, with the priority 1000.
func newPod(name, cpu string) *corev1.Pod {
	p := objects.Pod(name, map[string]v1alpha1.Share{"c": objects.Share(10, 100)})
	p.Spec.Priority = ptr.To[int32](1000)
	r := &p.Spec.Containers[0].Resources
	r.Requests = r.Requests.DeepCopy()
	r.Requests[corev1.ResourceCPU] = resource.MustParse(cpu)
	return p
}

// add has the cache know a pod.
func (f *fixture) add(p *corev1.Pod) *corev1.Pod {
	f.known.SetPod(p)
	return p
}

// postFilter is the node that is chosen for the pod, empty for none.
func (f *fixture) postFilter(p *corev1.Pod) (node string, later bool) {
	f.t.Helper()
	demand, err := placement.DemandOf(podrequest.Of(p), nil)
	if err != nil {
		f.t.Fatal(err)
	}
	best, later, err := f.PostFilter(f.t.Context(), scheduling.Request{Pod: p, Demand: demand}, f.known.Index.Room, func() (*feasible.Cycle, error) {
		f.asked++
		f.clock.Step(f.takes)
		return f.filters.Start(f.t.Context(), p)
	})
	if err != nil {
		f.t.Fatal(err)
	}
	if best == nil {
		return "", later
	}
	if best.Room.Name != best.Plan.Node {
		f.t.Errorf("the room of %s for a plan on %s", best.Room.Name, best.Plan.Node)
	}
	return best.Plan.Node, later
}

// again is in how long the pod is looked at again.
func (f *fixture) again(p *corev1.Pod) time.Duration {
	return f.work.Later[queue.Item{Pod: podstate.KeyOf(p)}]
}

// kept is how many notes on pods there are.
func (f *fixture) kept() int { return len(f.lastAttempt) + len(f.nominated) }

// evicts is the API server.
func (f *fixture) evicts(_ context.Context, _ client.Client, _ string, _, sub client.Object, _ ...client.SubResourceCreateOption) error {
	e := sub.(*policyv1.Eviction)
	dry := len(e.DeleteOptions.DryRun) > 0
	if f.refuse != nil {
		if err := f.refuse(e.Name, dry); err != nil {
			return err
		}
	}
	if dry {
		f.dry = append(f.dry, e.Name)
	} else {
		f.evicted = append(f.evicted, e.Name)
		if grace := e.DeleteOptions.GracePeriodSeconds; grace != nil {
			f.graces[e.Name] = *grace
		}
	}
	return nil
}

// updates takes a ledger as it is written.
func (f *fixture) updates(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.UpdateOption) error {
	f.made++
	o.SetResourceVersion(fmt.Sprint(f.made))
	return nil
}

// holder asks for so much of a device, and the hundredth of its memory for each percent.
func holder(name string, core v1alpha1.Percent, priority int32, edits ...func(*corev1.Pod)) *corev1.Pod {
	p := objects.Pod(name, map[string]v1alpha1.Share{"c": objects.Share(core, max(1, v1alpha1.MiB(core)*objects.DeviceMiB/100))})
	p.Spec.Priority = ptr.To(priority)
	for _, e := range edits {
		e(p)
	}
	return p
}

// set has all know of the pod.
func (f *fixture) set(p *corev1.Pod) *corev1.Pod {
	f.made++
	p = p.DeepCopy()
	p.ResourceVersion = fmt.Sprint(f.made)
	if p.CreationTimestamp.IsZero() {
		p.CreationTimestamp = metav1.NewTime(time.Unix(int64(f.made), 0))
	}
	f.known.SetPod(p)
	f.members.Update(p)
	return p
}

// change has the cache know of another version of a node's ledger.
func (f *fixture) change(node string, edit func(*v1alpha1.SliceLedger)) {
	f.made++
	l := f.known.Index.Ledger(node).DeepCopy()
	l.ResourceVersion = fmt.Sprint(f.made)
	edit(l)
	f.known.SetLedger(l)
}

// run has the pod run on a device of a node.
func (f *fixture) run(p *corev1.Pod, node string, device int) *corev1.Pod {
	on := map[string]int{"c": device}
	f.change(node, func(l *v1alpha1.SliceLedger) { objects.Grant(l, p, on) })
	p = objects.Place(p.DeepCopy(), f.known.Index.Ledger(node), on)
	p.Spec.NodeName = node
	return f.set(p)
}

// gone has the pod and its slices go.
func (f *fixture) gone(p *corev1.Pod, node string) {
	f.known.DeletePod(p, true)
	f.members.Delete(p)
	f.reservations.Forget(p)
	f.change(node, func(l *v1alpha1.SliceLedger) {
		for i := range l.Spec.Devices {
			d := &l.Spec.Devices[i]
			d.Slices = slices.DeleteFunc(d.Slices, func(s v1alpha1.Slice) bool { return s.Pod == p.UID })
		}
	})
}

// told is the last event since the last call.
func (f *fixture) newEvents() (last string) {
	for len(f.events.Events) > 0 {
		last = objects.EventText(<-f.events.Events)
	}
	return last
}

// waiter waits with its gang, or alone.
func (f *fixture) waiter(pods ...*corev1.Pod) Waiter {
	f.t.Helper()
	w := Waiter{Item: queue.Item{Pod: podstate.KeyOf(pods[0])}, Need: len(pods)}
	if name, is := podrequest.GroupOf(pods[0]); is {
		w.Item = queue.Item{Gang: name}
	}
	for _, p := range pods {
		demand, err := placement.DemandOf(podrequest.Of(p), nil)
		if err != nil {
			f.t.Fatal(err)
		}
		w.Pods = append(w.Pods, scheduling.Request{Pod: f.set(p), Demand: demand})
	}
	return w
}

// preempt looks for room for a waiter, and returns who is evicted since the last look.
func (f *fixture) preempt(w Waiter) []string {
	f.t.Helper()
	f.evicted = nil
	if err := f.Preempt(f.t.Context(), w, func() { f.asked++; f.clock.Step(f.takes) }); err != nil {
		f.t.Fatal(err)
	}
	slices.Sort(f.evicted)
	return f.evicted
}

// reserved is what is reserved for a waiter, in words: a node's devices and who leaves.
func (f *fixture) reserved(w Waiter) string {
	r := f.reservations.Of(w.Item)
	if r == nil {
		return ""
	}
	var on, leave []string
	for _, p := range r.Plans {
		for _, g := range p.Grants {
			on = append(on, g.UUID)
		}
	}
	for uid := range r.Leaving {
		leave = append(leave, string(uid))
	}
	slices.Sort(on)
	slices.Sort(leave)
	return fmt.Sprint(r.Kind, on, leave)
}
