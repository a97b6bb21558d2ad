// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/state/podstate"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// answering is an API server that takes every write at once, and no time for it.
type answering struct {
	client.Client
	version int
	pods    map[types.NamespacedName]*corev1.Pod
	// told is what the watches have to show of it.
	sent []func(*Allocator)
	// writes are those of ledgers.
	writes int
}

func (c *answering) next() string {
	c.version++
	return strconv.Itoa(c.version)
}

func (c *answering) Update(_ context.Context, obj client.Object, _ ...client.UpdateOption) error {
	c.writes++
	obj.SetResourceVersion(c.next())
	shown := obj.(*v1alpha1.SliceLedger).DeepCopy()
	c.sent = append(c.sent, func(a *Allocator) { a.SetLedger(shown) })
	return nil
}

// Patch lets the pod go, and has it bound.
func (c *answering) Patch(_ context.Context, obj client.Object, p client.Patch, _ ...client.PatchOption) error {
	patch, err := p.Data(obj)
	if err != nil {
		return err
	}
	doc := &corev1.Pod{}
	if err := json.Unmarshal(patch, doc); err != nil {
		return err
	}
	written := obj.(*corev1.Pod)
	c.pods[podstate.KeyOf(written)].DeepCopyInto(written)
	written.Annotations[v1alpha1.AnnotationPlacement] = doc.Annotations[v1alpha1.AnnotationPlacement]
	written.Spec.Affinity, written.Spec.SchedulingGates, written.ResourceVersion = doc.Spec.Affinity, nil, c.next()
	shown, bound := written.DeepCopy(), written.DeepCopy()
	bound.Spec.NodeName, bound.ResourceVersion = podstate.TargetNode(written), c.next()
	bound.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodScheduled, Status: corev1.ConditionTrue}}
	c.sent = append(c.sent, func(a *Allocator) { a.SetPod(shown) }, func(a *Allocator) { a.SetPod(bound) })
	return nil
}

// BenchmarkPlace is what a pod costs an allocator from its creation until it is bound,
// beside its requests and what decodes them: the leader, and a standby that is shown the same.
// ns/op is CPU time.
func BenchmarkPlace(b *testing.B) {
	const nodes = 1_000
	ctx := b.Context()
	api := &answering{pods: map[types.NamespacedName]*corev1.Pod{}}
	leader, standby := benchAllocator(b, api), benchAllocator(b, api)
	leader.binder.Requests = 1 // the API server answers one at a time
	q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[queue.Item]())
	defer q.ShutDown()
	leader.begin(b.Context(), q)
	for i := range nodes {
		node := objects.Node(fmt.Sprint("n", i))
		for _, r := range []corev1.ResourceName{corev1.ResourcePods, v1alpha1.ResourceCore, v1alpha1.ResourceMemMiB, v1alpha1.ResourceMemPercent} {
			node.Status.Allocatable[r] = resource.MustParse("100000")
		}
		l := objects.Ledger(node.Name)
		for range 4 {
			objects.WithStatus(l)
		}
		for j := range l.Status.Devices {
			l.Status.Devices[j].UUID, l.Status.Devices[j].Index = fmt.Sprintf("GPU-%s-%d", l.Name, j), int32(j)
		}
		l.ResourceVersion = api.next()
		for _, a := range []*Allocator{leader, standby} {
			a.SetNode(nil, node)
			a.SetLedger(l.DeepCopy())
		}
	}
	var spent [2]time.Duration
	now := func() time.Duration {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_PROCESS_CPUTIME_ID, &t); err != nil {
			b.Fatal(err)
		}
		return time.Duration(t.Nano())
	}
	timed := func(who int, do func()) {
		start := now()
		do()
		spent[who] += now() - start
	}
	for q.Len() > 0 {
		leader.step(ctx)
	}
	rounds := 0
	b.ResetTimer()
	for done := 0; done < b.N; {
		// As many come at once as the control plane makes in some rounds.
		var come []*corev1.Pod
		for ; len(come) < 256 && done < b.N; done++ {
			core := []v1alpha1.Percent{10, 20, 30, 50}[done%4]
			pod := objects.Single(fmt.Sprint("p", done), objects.Share(core, 10*v1alpha1.MiB(core)))
			objects.CPU("100m")(pod)
			pod.UID, pod.ResourceVersion = types.UID(pod.Name), api.next()
			api.pods[podstate.KeyOf(pod)] = pod
			come = append(come, pod)
		}
		show := func(a *Allocator) {
			for _, pod := range come {
				a.SetPod(pod)
			}
		}
		timed(0, func() { show(leader) })
		timed(1, func() { show(standby) })
		for q.Len() > 0 {
			rounds++
			timed(0, func() { leader.step(ctx) })
			sent := api.sent
			api.sent = nil
			for who, a := range []*Allocator{leader, standby} {
				timed(who, func() {
					for _, tell := range sent {
						tell(a)
					}
				})
			}
		}
	}
	b.ReportMetric(float64(spent[0])/float64(b.N), "ns/op")
	b.ReportMetric(float64(spent[1])/float64(b.N), "standby-ns/op")
	b.ReportMetric(float64(rounds)/float64(b.N), "rounds/op")
	b.ReportMetric(float64(api.writes)/float64(b.N), "ledger-writes/op")
}
