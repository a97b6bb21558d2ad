// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/test/objects"
)

// BenchmarkGangWaits is what a look costs at a gang of eight that waits, with members that
// go by each other to one zone beside members that go anywhere: in a cluster that is full but
// for seven places, and in one with devices in all of its 20 zones, on nodes that are not theirs.
// ns/op is CPU time.
func BenchmarkGangWaits(b *testing.B) {
	const nodes, zones, members = 1_000, 20, 8
	for _, full := range []bool{true, false} {
		for _, kind := range []string{"anywhere", "near", "near unlike"} {
			b.Run(fmt.Sprintf("full=%v/%s", full, kind), func(b *testing.B) {
				a := benchAllocator(b, nil)
				a.begin(b.Context(), &queueInTest{clock: a.clock, later: map[queue.Item]time.Time{}})
				for i := range nodes {
					node := objects.Node(fmt.Sprint("n", i))
					node.Labels[corev1.LabelTopologyZone] = fmt.Sprint("z", i%zones)
					theirs := i < members-1
					if theirs {
						node.Labels["theirs"] = "yes"
					}
					a.SetNode(nil, node)
					l := objects.ReadyLedger(node.Name)
					for d := range 2 {
						if d == 0 || full && !theirs {
							if err := grants.Grant(l, "other", "ns/other", placement.Plan{Grants: []placement.Grant{{
								Container: fmt.Sprint("c", d), UUID: fmt.Sprintf("GPU-%s-%d", node.Name, d), Core: 60, Mem: 1}}}, time.Time{}); err != nil {
								b.Fatal(err)
							}
						}
					}
					l.ResourceVersion = "1"
					a.SetLedger(l)
				}
				var asks []scheduling.Request
				var pods []*corev1.Pod
				for i := range members {
					pod := objects.Single(fmt.Sprint("p", i), objects.Share(60, 600))
					pod.UID, pod.ResourceVersion = types.UID(pod.Name), "2"
					objects.InGang("g", members)(pod)
					pod.Labels["index"] = fmt.Sprint(i)
					pod.Spec.NodeSelector = map[string]string{"theirs": "yes"}
					if kind != "anywhere" {
						pod.Labels["app"] = "x"
						objects.Near("x")(pod)
						inZone(pod)
					}
					if kind == "near unlike" {
						objects.CPU(fmt.Sprint(i, "m"))(pod)
					}
					a.SetPod(pod)
					pods, asks = append(pods, pod), append(asks, requestsOf(a, pod)...)
				}
				now := threadTime(b)
				var spent time.Duration
				var judged float64
				for i := range b.N + 1 {
					start, before := now(), measured(b, "nodes_judged_sum")
					_, miss, err := fit(b.Context(), a, asks, members)
					if err != nil || miss == nil {
						b.Fatal(miss, err)
					}
					if !miss.Why.Known {
						a.queue.MarkUnschedulable(pods, miss.Why.Refused > 0, notify.Why{Cause: miss.Why.Cause(), Key: "gang " + miss.Why.Key(), Text: miss.Why.String()})
					}
					// The first look tells why, the others find that it is so still.
					if i > 0 {
						spent += now() - start
						judged += measured(b, "nodes_judged_sum") - before
					}
				}
				b.ReportMetric(float64(spent)/float64(b.N), "ns/op")
				b.ReportMetric(judged/float64(b.N), "judged/op")
			})
		}
	}
}
