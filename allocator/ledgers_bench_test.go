// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"fmt"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/allocator/binding"
	"vernier.dev/vernier/allocator/queue"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/objects"
)

const (
	benchNodes         = 200
	benchDevices       = 8
	slicesPerBenchUnit = 4
)

// BenchmarkLedgerWrites has an allocator write every ledger once per iteration: each
// node says that a pod is gone, and its slice is taken out. Beside it, in turn, as many
// requests at a time update the same ledgers, one slice larger, without an allocator.
//
// Metrics: writes a second of both, and the ratio.
func BenchmarkLedgerWrites(b *testing.B) {
	cfg := apiserver.Start(b, apiserver.Options{})
	cfg.QPS = -1
	c, err := client.New(cfg, client.Options{Scheme: objects.Scheme(b)})
	if err != nil {
		b.Fatal(err)
	}
	a := benchAllocator(b, c)
	ledgers := make([]*v1alpha1.SliceLedger, benchNodes)
	for i := range ledgers {
		ledgers[i] = fullLedger(fmt.Sprintf("n%03d", i))
		status := ledgers[i].Status
		if err := c.Create(b.Context(), ledgers[i]); err != nil {
			b.Fatal(err)
		}
		ledgers[i].Status = status
		if err := c.Status().Update(b.Context(), ledgers[i]); err != nil {
			b.Fatal(err)
		}
	}
	var raw, ours time.Duration
	for b.Loop() {
		begun := time.Now()
		var g errgroup.Group
		g.SetLimit(requests)
		for i := range ledgers {
			g.Go(func() error {
				ledgers[i].Spec = fullLedger(ledgers[i].Name).Spec
				return c.Update(b.Context(), ledgers[i], binding.FieldOwner)
			})
		}
		if err := g.Wait(); err != nil {
			b.Fatal(err)
		}
		raw += time.Since(begun)

		q := workqueue.NewTypedRateLimitingQueue(workqueue.DefaultTypedControllerRateLimiter[queue.Item]())
		for _, l := range ledgers {
			l.Status.Released = []types.UID{l.Spec.Devices[0].Slices[0].Pod}
			a.SetLedger(l.DeepCopy())
		}
		a.begin(b.Context(), q)
		begun = time.Now()
		for q.Len() > 0 {
			a.step(b.Context())
		}
		ours += time.Since(begun)
		a.end()
		q.ShutDown()
		for i, l := range ledgers {
			ledgers[i] = a.cache.Index.Ledger(l.Name).DeepCopy()
			if n := len(ledgers[i].Spec.Devices[0].Slices); n != slicesPerBenchUnit-1 {
				b.Fatalf("%s has %d slices on its first device, want one less than %d", l.Name, n, slicesPerBenchUnit)
			}
		}
	}
	writes := float64(b.N * benchNodes)
	b.ReportMetric(writes/raw.Seconds(), "raw-writes/s")
	b.ReportMetric(writes/ours.Seconds(), "writes/s")
	b.ReportMetric(raw.Seconds()/ours.Seconds(), "of-raw")
	b.ReportMetric(0, "ns/op")
}

// fullLedger has as many slices as a busy node.
func fullLedger(name string) *v1alpha1.SliceLedger {
	l := objects.Ledger(name)
	l.UID = ""
	for d := range benchDevices {
		uuid := fmt.Sprintf("GPU-%s-0000-4000-8000-%012d", name, d)
		l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: uuid, Index: int32(d), Model: "T4", Mem: objects.DeviceMiB, Healthy: true})
		device := v1alpha1.DeviceLedger{UUID: uuid, Core: v1alpha1.WholeGPU, Mem: objects.DeviceMiB}
		for s := range slicesPerBenchUnit {
			pod := fmt.Sprintf("%s-pod-%02d-%02d", name, d, s)
			device.Slices = append(device.Slices, v1alpha1.Slice{
				Pod: types.UID("4e5f6a7b-0000-4000-8000-" + pod), Owner: "team/" + pod, Ctr: "main", Core: 25, Mem: objects.DeviceMiB / 4})
		}
		l.Spec.Devices = append(l.Spec.Devices, device)
	}
	return l
}
