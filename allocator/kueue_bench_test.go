// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"fmt"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// BenchmarkVerdict is what the verdict on a Workload of Kueue's costs the worker before it is written, on 1,000
// nodes of eight devices that have 30 % free each. The pods of some fit, those of others find no whole
// device: then it is found out why, and what would help. Each Workload asks for other amounts
// than those before. p99-ms is of the clock.
func BenchmarkVerdict(b *testing.B) {
	const nodes, devices, free = 1_000, 8, 30
	a := benchAllocator(b, nil)
	a.begin(b.Context(), &queueInTest{clock: a.clock, later: map[queue.Item]time.Time{}})
	for i := range nodes {
		node := objects.Node(fmt.Sprint("n", i))
		node.Status.Allocatable[v1alpha1.ResourceCore] = resource.MustParse("100000")
		a.SetNode(nil, node)
		l := objects.ReadyLedger(node.Name)
		for d := range devices {
			uuid := fmt.Sprintf("GPU-%s-%d", l.Name, d)
			if d >= len(l.Status.Devices) {
				next := l.Status.Devices[0]
				next.UUID, next.Index, next.Minor = uuid, int32(d), int32(d)
				l.Status.Devices = append(l.Status.Devices, next)
			}
			holder := objects.Pod(fmt.Sprintf("p%d-%d", i, d), map[string]v1alpha1.Share{"c": objects.Share(v1alpha1.WholeGPU-free, 100)})
			holder.ResourceVersion, holder.Spec.NodeName, holder.Spec.SchedulingGates = "1", node.Name, nil
			a.SetPod(holder)
			l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: uuid, Core: v1alpha1.WholeGPU, Mem: objects.DeviceMiB, Slices: []v1alpha1.Slice{
				{Pod: holder.UID, Ctr: "c", Owner: "ns/" + holder.Name, Core: v1alpha1.WholeGPU - free, Mem: 100, Mode: v1alpha1.ModeLimiter}}})
		}
		l.ResourceVersion = "1"
		a.SetLedger(l)
	}
	for _, of := range []struct {
		pods int
		core v1alpha1.Percent
		want scheduling.Outlook
	}{{1, free, scheduling.Fits}, {64, free, scheduling.Fits}, {1, v1alpha1.WholeGPU, scheduling.Waits}, {64, v1alpha1.WholeGPU, scheduling.Waits}} {
		b.Run(fmt.Sprintf("pods=%d/core=%d", of.pods, of.core), func(b *testing.B) {
			var took []time.Duration
			for i := range b.N {
				var asks []scheduling.Request
				for j := range of.pods {
					pod := objects.Pod(fmt.Sprintf("w%d/%d", i, j), map[string]v1alpha1.Share{"c": objects.Share(of.core, 10+v1alpha1.MiB(i%500))})
					pod.UID, pod.ResourceVersion = types.UID(pod.Name), strconv.Itoa(i+2)
					demand, err := placement.DemandOf(podrequest.Of(pod), nil)
					if err != nil {
						b.Fatal(err)
					}
					asks = append(asks, scheduling.Request{Pod: pod, Demand: demand})
				}
				start := time.Now()
				_, outlook, why, err := a.scheduler.Foresee(b.Context(), podrequest.Group{API: podrequest.Workload, Namespace: "ns", Name: fmt.Sprint("w", i)}, asks, true)
				took = append(took, time.Since(start))
				if err != nil || outlook != of.want {
					b.Fatal(outlook, why, err)
				}
			}
			slices.Sort(took)
			b.ReportMetric(float64(took[len(took)*99/100])/1e6, "p99-ms")
		})
	}
}
