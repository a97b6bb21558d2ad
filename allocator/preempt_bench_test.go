// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/preemption"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// BenchmarkPreempt is what a look costs at a pod with a priority that is refused on all of
// 5,000 nodes, with 31 pods on each: where the scheduler would end others for it, where it
// would not even so, where all but one node have nobody of lower priority, and where it was
// asked a moment ago. A crowd is what 64 pods cost that come at once. ns/op is CPU time.
func BenchmarkPreempt(b *testing.B) {
	const nodes, small = 5_000, 30
	for _, kind := range []string{"would", "in vain", "nobody below", "asked before", "crowd"} {
		b.Run(kind, func(b *testing.B) {
			a := benchAllocator(b, nil)
			a.begin(b.Context(), &queueInTest{clock: a.clock, later: map[queue.Item]time.Time{}})
			version := 1
			set := func(p *corev1.Pod) {
				version++
				p.UID, p.ResourceVersion = types.UID(p.Name), fmt.Sprint(version)
				a.SetPod(p)
			}
			plain := func(node string, i int, cpu string, priority int32) {
				set(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprintf("%s-%d", node, i)}, Spec: corev1.PodSpec{NodeName: node, Priority: ptr.To(priority),
					Containers: []corev1.Container{{Name: "c", Resources: corev1.ResourceRequirements{Requests: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse(cpu)}}}}}})
			}
			for i := range nodes {
				node := objects.Node(fmt.Sprint("n", i))
				a.SetNode(nil, node)
				l := objects.ReadyLedger(node.Name)
				l.ResourceVersion = "1"
				a.SetLedger(l)
				large := int32(0)
				if kind != "would" && kind != "crowd" {
					large = 1000
				}
				plain(node.Name, 0, "30", large)
				for j := range small {
					p := int32(0)
					if kind == "nobody below" && i > 0 {
						p = 1000
					}
					plain(node.Name, j+1, "1", p)
				}
			}
			now := threadTime(b)
			var spent, first time.Duration
			pods := 1
			if kind == "crowd" {
				pods = queue.MaxRound
			}
			for i := range (b.N + 1) * pods {
				if i%pods == 0 {
					a.clock.(*skippingClock).ahead += time.Minute // past the pause, which leaves time for others
				}
				pod := objects.Single(fmt.Sprint("p", i), objects.Share(60, 600))
				objects.Priority(1000)(pod)
				objects.CPU("40")(pod)
				if kind == "asked before" {
					pod.Name = "p"
				}
				set(pod)
				asks := requestsOf(a, pod)
				start := now()
				chosen, err := decide(b.Context(), a, asks[0])
				if err != nil || kind != "crowd" && (chosen != nil) != (kind == "would") {
					b.Fatal(chosen, err)
				}
				if i >= pods {
					spent += now() - start
				} else {
					first += now() - start
				}
			}
			b.ReportMetric(float64(spent)/float64(b.N), "ns/op")
			b.ReportMetric(float64(first), "first-ns")
		})
	}
}

// evicting is an API server that takes every eviction and nomination, and no time for it.
type evicting struct{ client.Client }

func (evicting) Status() client.SubResourceWriter { return evicted{} }

func (evicting) SubResource(string) client.SubResourceClient { return evicted{} }

type evicted struct{ client.SubResourceClient }

func (evicted) Create(context.Context, client.Object, client.Object, ...client.SubResourceCreateOption) error {
	return nil
}

func (evicted) Patch(context.Context, client.Object, client.Patch, ...client.SubResourcePatchOption) error {
	return nil
}

// BenchmarkVictims is what a look for pods to evict costs in a full cluster of 5,000 nodes of 8
// GPUs with 31 pods each: for a part of a GPU, for a whole one, and for all of a node. A gang is
// of 8 that take one each. ns/op is CPU time; first-ns is that of the first look, which has the
// pods of all nodes to count.
func BenchmarkVictims(b *testing.B) {
	const nodes, devices, pods = 5_000, 8, 31
	a := benchAllocator(b, evicting{})
	a.begin(b.Context(), &queueInTest{clock: a.clock, later: map[queue.Item]time.Time{}})
	version := 1
	set := func(p *corev1.Pod) {
		version++
		p.UID, p.ResourceVersion = types.UID(p.Name), fmt.Sprint(version)
		a.SetPod(p)
	}
	for i := range nodes {
		node := objects.Node(fmt.Sprint("n", i))
		node.Status.Allocatable[v1alpha1.ResourceCore] = resource.MustParse("100000")
		node.Status.Allocatable[v1alpha1.ResourceMemMiB] = resource.MustParse("100000")
		a.SetNode(nil, node)
		l := objects.Ledger(node.Name)
		for range devices / 2 {
			l = objects.WithStatus(l)
		}
		for d := range l.Status.Devices {
			seen := &l.Status.Devices[d]
			seen.UUID, seen.Index = fmt.Sprint("GPU-", i, "-", d), int32(d)
			l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: seen.UUID, Core: v1alpha1.WholeGPU, Mem: seen.Mem})
		}
		for j := range pods {
			name := fmt.Sprintf("n%d-%d", i, j)
			set(&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, Annotations: map[string]string{v1alpha1.AnnotationShares: "{}"}},
				Spec: corev1.PodSpec{NodeName: node.Name, Priority: ptr.To(int32((i + j) % 5))}})
			d := &l.Spec.Devices[j%devices]
			d.Slices = append(d.Slices, v1alpha1.Slice{Pod: types.UID(name), Owner: "ns/" + name, Ctr: "c", Core: 25, Mem: 250, Mode: v1alpha1.ModeLimiter})
		}
		bump(l)
		a.SetLedger(l)
	}
	seq := 0
	for _, kind := range []struct {
		name  string
		share v1alpha1.Share
		need  int
	}{
		{"part", objects.Share(40, 400), 1}, {"whole", objects.Share(v1alpha1.WholeGPU, objects.DeviceMiB), 1},
		{"node", v1alpha1.Share{GPUs: devices, Core: v1alpha1.WholeGPU, MemMiB: objects.DeviceMiB}, 1}, {"gang", objects.Share(v1alpha1.WholeGPU, objects.DeviceMiB), 8},
	} {
		b.Run(kind.name, func(b *testing.B) {
			now := threadTime(b)
			var spent, first time.Duration
			for i := range b.N + 1 {
				a.clock.(*skippingClock).ahead += time.Minute
				var w preemption.Waiter
				for range kind.need {
					seq++
					pod := objects.Pod(fmt.Sprint("p", seq), map[string]v1alpha1.Share{"c": kind.share})
					objects.Priority(1000)(pod)
					if kind.need > 1 {
						objects.InGang(fmt.Sprint("g", i, "-", b.N), kind.need)(pod)
					}
					set(pod)
					asks := requestsOf(a, pod)
					w.Pods = append(w.Pods, asks...)
				}
				w.Item, w.Need = a.queue.ItemOf(w.Pods[0].Pod), kind.need
				start := now()
				if err := a.preemption.Preempt(b.Context(), w, func() {}); err != nil || a.reservations.Of(w.Item) == nil {
					b.Fatal("nothing is reserved: ", err)
				}
				if i == 0 {
					first = now() - start
				} else {
					spent += now() - start
				}
				a.reservations.Forget(w.Pods[0].Pod)
			}
			b.ReportMetric(float64(spent)/float64(b.N), "ns/op")
			b.ReportMetric(float64(first), "first-ns")
		})
	}
}
