// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

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
			a.begin(&queueInTest{clock: a.clock, later: map[queue.Item]time.Time{}})
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
				l := objects.WithStatus(objects.Ledger(node.Name))
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
					a.clock.(*skippingClock).ahead += time.Second // past the pause, which leaves time for others
				}
				pod := objects.Pod(fmt.Sprint("p", i), map[string]v1alpha1.Share{"c": objects.Share(60, 600)})
				priority(1000)(pod)
				cpu("40")(pod)
				if kind == "asked before" {
					pod.Name = "p"
				}
				set(pod)
				asks, _ := a.asks([]*corev1.Pod{pod})
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
