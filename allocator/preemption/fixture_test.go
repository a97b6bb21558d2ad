// SPDX-License-Identifier: Apache-2.0

package preemption

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	testclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/cache"
	"vernier.dev/vernier/allocator/feasible"
	"vernier.dev/vernier/allocator/group"
	"vernier.dev/vernier/allocator/notify"
	"vernier.dev/vernier/allocator/podgroup"
	"vernier.dev/vernier/allocator/podrequest"
	"vernier.dev/vernier/allocator/podstate"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/reservation"
	"vernier.dev/vernier/allocator/scheduling"
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
	asked int
	takes time.Duration
}

func newFixture(t *testing.T, nodes ...string) *fixture {
	filters := objects.Filters(t.Context(), t)
	f := &fixture{t: t, filters: filters, known: cache.New(filters, logr.Discard()), clock: testclock.NewFakeClock(time.Unix(1000, 0)), work: objects.NewWork[queue.Item]()}
	events := &notify.Notifier{Events: &record.FakeRecorder{}, Clock: f.clock}
	q := queue.New(f.known, podgroup.New(&group.Sizes{}), events, filters.Undecided, f.clock, logr.Discard())
	q.Open(f.work)
	f.Preemption = New(Config{Cache: f.known, Queue: q, Filters: filters, Notify: events, Reservations: reservation.New(f.known, q, f.clock), Clock: f.clock, Log: logr.Discard()})
	for _, node := range nodes {
		filters.SetNode(objects.Node(node))
		f.known.SetLedger(objects.WithStatus(objects.Ledger(node)))
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
	p := objects.WithUID(objects.Pod(name, map[string]v1alpha1.Share{"c": objects.Share(10, 100)}))
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
	demand, _, err := podrequest.Of(p)
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
