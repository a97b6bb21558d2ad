// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"context"
	"fmt"
	"runtime"
	"strconv"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/record"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/allocator/queue/notify"
	"vernier.dev/vernier/allocator/queue/podgroup"
	"vernier.dev/vernier/allocator/scheduling"
	"vernier.dev/vernier/allocator/scheduling/reservation"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/objects"
)

// BenchmarkDecide is what a pod costs the worker before it writes: what arrived and
// changed is shown to the engine, the engine ranks, and the scheduler's own filters
// judge. ns/op is the CPU time of that, and the same however many nodes there are. Of the
// nodes some may have a device that is reserved for others, or eight devices in pairs below PCIe
// switches, of which each pod asks for two: in one pair, or what NVLink it can get, which is none.
func BenchmarkDecide(b *testing.B) {
	for _, of := range []struct {
		nodes, reserved int
		near            bool
		wish            string
	}{{nodes: 100}, {nodes: 5_000}, {nodes: 5_000, reserved: reservation.Most},
		{nodes: 5_000, near: true}, {nodes: 5_000, near: true, wish: "pcie"}, {nodes: 5_000, near: true, wish: "nvlink"}} {
		nodes := of.nodes
		name := fmt.Sprintf("nodes=%d", nodes)
		if of.reserved > 0 {
			name += fmt.Sprintf("/reserved=%d", of.reserved)
		}
		if of.near {
			name += "/near/wish=" + of.wish
		}
		b.Run(name, func(b *testing.B) {
			a := benchAllocator(b, nil)
			a.begin(b.Context(), &queueInTest{})
			for i := range of.reserved {
				a.reservations.Put(&reservation.Reservation{Kind: reservation.Head, Owner: queue.Item{Pod: types.NamespacedName{Name: fmt.Sprint("owner", i)}},
					Plans: []placement.Plan{{Node: fmt.Sprint("n", i), Grants: []placement.Grant{{Container: "c", UUID: fmt.Sprintf("GPU-n%d-0", i), Core: v1alpha1.WholeGPU, Mem: objects.DeviceMiB, Mode: v1alpha1.ModeLimiter}}}}})
			}
			for i := range nodes {
				node := objects.Node(fmt.Sprint("n", i))
				node.Status.Allocatable[v1alpha1.ResourceCore] = resource.MustParse("100000")
				a.SetNode(nil, node)
				l := objects.ReadyLedger(node.Name)
				if of.near {
					for d := 2; d < 8; d++ {
						next := l.Status.Devices[0]
						next.UUID, next.Index = fmt.Sprintf("GPU-%s-%d", l.Name, d), int32(d)
						l.Status.Devices = append(l.Status.Devices, next)
					}
					l.Status.Topology = &v1alpha1.TopologyStatus{NUMA: []v1alpha1.DeviceSet{"0-3", "4-7"}, PCIe: []v1alpha1.DeviceSet{"0-1", "2-3", "4-5", "6-7"}}
				}
				l.ResourceVersion = "1"
				a.SetLedger(l)
			}
			now := threadTime(b)
			var placed []*corev1.Pod
			var deciding time.Duration
			judged := measured(b, "nodes_judged_sum")
			for i := range b.N {
				core := v1alpha1.Percent(5 + i*7%40)
				share := objects.Share(core, 10*v1alpha1.MiB(core))
				if of.near {
					share.GPUs = 2
				}
				pod := objects.Pod(fmt.Sprint("p", i), map[string]v1alpha1.Share{"c": share})
				pod.UID, pod.ResourceVersion = types.UID(pod.Name), strconv.Itoa(i+2)
				pod.Annotations[v1alpha1.AnnotationTopology] = of.wish
				a.SetPod(pod)
				demand, err := placement.DemandOf(podrequest.Of(pod), nil)
				if err != nil {
					b.Fatal(err)
				}
				start := now()
				c, _, err := a.scheduler.Schedule(b.Context(), scheduling.Request{Pod: pod, Demand: demand})
				deciding += now() - start
				if err != nil || c == nil {
					b.Fatal(c, err)
				}
				l := c.Ledger.DeepCopy()
				if err := grants.Grant(l, pod.UID, "ns/"+pod.Name, c.Plan, time.Time{}); err != nil {
					b.Fatal(err)
				}
				bump(l)
				a.SetLedger(l)
				bound := pod.DeepCopy()
				bound.Spec.SchedulingGates, bound.Spec.NodeName = nil, c.Plan.Node
				a.SetPod(bound)
				if placed = append(placed, bound); len(placed) > 3*nodes {
					gone := placed[0]
					placed = placed[1:]
					l := a.cache.Index.Ledger(gone.Spec.NodeName).DeepCopy()
					grants.Release(l, func(uid types.UID) bool { return uid == gone.UID })
					bump(l)
					a.DeletePod(gone, true)
					a.SetLedger(l)
				}
			}
			b.ReportMetric(float64(deciding)/float64(b.N), "ns/op")
			b.ReportMetric((measured(b, "nodes_judged_sum")-judged)/float64(b.N), "judged/op")
		})
	}
}

// BenchmarkRefused is what a pod that fits nowhere costs the worker at its first look: to see
// that, and to find out why. Each is of a kind that nobody has asked for before; 5,000 nodes
// of 8 devices lack the devices, or have them and lack CPU. ns/op is CPU time.
func BenchmarkRefused(b *testing.B) {
	for _, lack := range []string{"devices", "cpu"} {
		b.Run(lack, func(b *testing.B) {
			a := benchAllocator(b, nil)
			a.begin(b.Context(), &queueInTest{})
			for i := range 5_000 {
				node := objects.Node(fmt.Sprint("n", i))
				node.Status.Allocatable[v1alpha1.ResourceCore] = resource.MustParse("100000")
				a.SetNode(nil, node)
				l := objects.Ledger(node.Name)
				for range 4 {
					l = objects.WithStatus(l)
				}
				for d := range l.Status.Devices {
					seen := &l.Status.Devices[d]
					seen.UUID, seen.Index = fmt.Sprint("GPU-", i, "-", d), int32(d)
					if lack == "devices" {
						l.Spec.Devices = append(l.Spec.Devices, v1alpha1.DeviceLedger{UUID: seen.UUID, Core: 100, Mem: seen.Mem,
							Slices: []v1alpha1.Slice{{Pod: "u", Owner: "ns/u", Ctr: "c", Core: v1alpha1.Percent(60 + i%40), Mem: 1024, Mode: v1alpha1.ModeLimiter}}})
					}
				}
				bump(l)
				a.SetLedger(l)
			}
			now := threadTime(b)
			var spent time.Duration
			judged := measured(b, "nodes_judged_sum")
			for i := range b.N + 1 {
				pod := objects.Single(fmt.Sprint("p", i), objects.Share(60, v1alpha1.MiB(1+i)))
				pod.UID, pod.ResourceVersion = types.UID(pod.Name), strconv.Itoa(i+2)
				if lack == "cpu" {
					objects.CPU("100000")(pod)
				}
				a.SetPod(pod)
				demand, err := placement.DemandOf(podrequest.Of(pod), nil)
				if err != nil {
					b.Fatal(err)
				}
				start := now()
				chosen, err := decide(b.Context(), a, scheduling.Request{Pod: pod, Demand: demand})
				if err != nil || chosen != nil {
					b.Fatal(chosen, err)
				}
				// The first one finds the cluster as nobody has seen it yet.
				if i > 0 {
					spent += now() - start
				} else {
					judged = measured(b, "nodes_judged_sum")
				}
			}
			b.ReportMetric(float64(spent)/float64(b.N), "ns/op")
			b.ReportMetric((measured(b, "nodes_judged_sum")-judged)/float64(b.N), "judged/op")
		})
	}
}

func bump(l *v1alpha1.SliceLedger) {
	v, _ := strconv.Atoi(l.ResourceVersion)
	l.ResourceVersion = strconv.Itoa(v + 1)
}

// benchAllocator is an allocator that sees what the benchmark shows it.
// decide decides on a pod as the worker does, without the writes.
func decide(ctx context.Context, a *Allocator, pod scheduling.Request) (*binding.Assignment, error) {
	chosen, why, err := a.scheduler.Schedule(ctx, pod)
	if why != nil && !why.Known {
		a.queue.MarkUnschedulable([]*corev1.Pod{pod.Pod}, why.Refused > 0, notify.Why{Cause: why.Cause(), Key: why.Key(), Text: why.String()})
	}
	return chosen, err
}

func benchAllocator(b testing.TB, c client.Client) *Allocator {
	b.Helper()
	ctx, stop := context.WithCancel(context.Background())
	b.Cleanup(stop)
	filters := objects.Filters(ctx, b)
	return New(Config{Client: c, Filters: filters, Events: &record.FakeRecorder{}, Clock: &skippingClock{WithTicker: clock.RealClock{}}, Log: logr.Discard(),
		Groups: &podgroup.Sizes{}, Requests: requests})
}

// skippingClock is ahead of the real one.
type skippingClock struct {
	clock.WithTicker
	ahead time.Duration
}

func (c *skippingClock) Now() time.Time { return c.WithTicker.Now().Add(c.ahead) }

func (c *skippingClock) Since(t time.Time) time.Duration { return c.Now().Sub(t) }

// threadTime reads the CPU time of the benchmark's own thread, which nobody else runs on
// until the benchmark is over.
func threadTime(b testing.TB) func() time.Duration {
	runtime.LockOSThread()
	b.Cleanup(runtime.UnlockOSThread)
	return func() time.Duration {
		var t unix.Timespec
		if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
			b.Fatal(err)
		}
		return time.Duration(t.Nano())
	}
}
