// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"context"
	"errors"
	"testing"

	"github.com/go-logr/logr"
	dto "github.com/prometheus/client_model/go"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/refused"
	"vernier.dev/vernier/test/must"
)

// Invariant 6: what the watch delivered before the agent said that a device is unhealthy, or
// healthy again, is behind: slices may have been moved since.
func TestBehindWhatIsWell(t *testing.T) {
	scheme := runtime.NewScheme()
	must.Do(t, v1alpha1.AddToScheme(scheme))
	l := twoDevices()
	l.Name = "n"
	lost := false
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(l).WithStatusSubresource(l).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, kind string, obj client.Object, o ...client.SubResourceUpdateOption) error {
			if err := c.SubResource(kind).Update(ctx, obj, o...); err != nil || !lost {
				return err
			}
			return errors.New("the answer was lost")
		},
	}).Build()
	healthy, cache := true, &Cache{Node: "n", Live: api}
	var misaligned []v1alpha1.MisalignedPod
	w := NewWriter(Writer{Node: "n", Live: api, Cache: cache, Log: logr.Discard(), Fill: func(s *v1alpha1.SliceLedgerStatus) {
		s.Devices = []v1alpha1.DeviceStatus{{UUID: "GPU-0", Mem: 80, Healthy: healthy}}
		s.Misaligned = misaligned
	}})
	deliver := func() {
		t.Helper()
		now := &v1alpha1.SliceLedger{}
		must.Do(t, api.Get(t.Context(), client.ObjectKey{Name: "n"}, now))
		cache.Set(now)
	}
	expect := func(when string, behind bool) {
		t.Helper()
		if cache.Behind() != behind {
			t.Errorf("%s: behind %v, want %v", when, !behind, behind)
		}
	}
	write := func() error { return w.Write(t.Context()) }
	must := func(err error) {
		t.Helper()
		must.Do(t, err)
	}
	deliver()
	expect("before the first write", true)
	must(write())
	expect("before the watch", true)
	deliver()
	expect("after it", false)
	must(write())
	expect("with nothing new to say", false)
	healthy = false
	must(write())
	expect("unhealthy", true)
	deliver()
	expect("unhealthy, and delivered", false)
	if g := (Grant{UUID: "GPU-0"}); cache.Index().Healthy(g) {
		t.Error("a device that is unhealthy is shown as well")
	}
	healthy, lost = true, true
	if write() == nil {
		t.Fatal("the answer was not lost")
	}
	deliver()
	expect("with the answer lost", true)
	lost = false
	must(write())
	expect("once it is known to be so", false)
	if g := (Grant{UUID: "GPU-0"}); !cache.Index().Healthy(g) || cache.Index().Healthy(Grant{UUID: "GPU-1"}) {
		t.Error("not just GPU-0 is shown as well")
	}
	misaligned = []v1alpha1.MisalignedPod{{Pod: "p", NUMA: 1}}
	must(write())
	expect("misaligned", true)
	deliver()
	expect("misaligned, and delivered", false)
	if node, is := cache.Index().Misaligned("p"); !is || node != 1 {
		t.Errorf("misaligned %v, to node %d", is, node)
	}
	if _, is := cache.Index().Misaligned("other"); is {
		t.Error("another pod is misaligned")
	}
}

// What an agent says as it ends is written although others write just then, and the API
// server is busy.
func TestLastWords(t *testing.T) {
	scheme := runtime.NewScheme()
	must.Do(t, v1alpha1.AddToScheme(scheme))
	l := twoDevices()
	l.Name = "n"
	refusals := []error{
		apierrors.NewConflict(schema.GroupResource{Resource: "sliceledgers"}, "n", errors.New("the object has been modified")),
		apierrors.NewTooManyRequests("busy", 1),
	}
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(l).WithStatusSubresource(l).WithInterceptorFuncs(interceptor.Funcs{
		SubResourceUpdate: func(ctx context.Context, c client.Client, kind string, obj client.Object, o ...client.SubResourceUpdateOption) error {
			if len(refusals) > 0 {
				err := refusals[0]
				refusals = refusals[1:]
				return err
			}
			return c.SubResource(kind).Update(ctx, obj, o...)
		},
	}).Build()
	w := NewWriter(Writer{Node: "n", Live: api, Cache: &Cache{Node: "n", Live: api}, Log: logr.Discard(), Fill: func(s *v1alpha1.SliceLedgerStatus) {
		s.Driver.Version = "replaced"
	}})
	must.Do(t, w.WriteLast(t.Context()))
	now := &v1alpha1.SliceLedger{}
	if err := api.Get(t.Context(), client.ObjectKey{Name: "n"}, now); err != nil || now.Status.Driver.Version != "replaced" {
		t.Errorf("it says %+v, %v", now.Status.Driver, err)
	}
}

// refusedWrites is how many were counted.
func refusedWrites(t *testing.T) float64 {
	t.Helper()
	m := &dto.Metric{}
	must.Do(t, refused.Writes.WithLabelValues(refused.LedgerStatus).Write(m))
	return m.GetCounter().GetValue()
}

// A status, or a ledger, that the API server refuses is counted, and is an error to be tried again.
func TestRefusedStatusIsCounted(t *testing.T) {
	scheme := runtime.NewScheme()
	must.Do(t, errors.Join(corev1.AddToScheme(scheme), v1alpha1.AddToScheme(scheme)))
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "sliceledgers"}, "n", errors.New("a policy of the operator's"))
	for name, l := range map[string]client.Object{"status": &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{Name: "n"}}, "ledger": &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n"}}} {
		api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(l).WithStatusSubresource(&v1alpha1.SliceLedger{}).WithInterceptorFuncs(interceptor.Funcs{
			SubResourceUpdate: func(context.Context, client.Client, string, client.Object, ...client.SubResourceUpdateOption) error {
				return forbidden
			},
			Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error { return forbidden },
		}).Build()
		w := NewWriter(Writer{Node: "n", Live: api, Cache: &Cache{Node: "n", Live: api}, Log: logr.Discard(), Fill: func(s *v1alpha1.SliceLedgerStatus) { s.Driver.Version = "1" }})
		counted := refusedWrites(t)
		if err := w.Write(t.Context()); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
		if n := refusedWrites(t) - counted; n != 1 {
			t.Errorf("%s: %v refusals counted", name, n)
		}
	}
}

func TestWellInstances(t *testing.T) {
	place := v1alpha1.MIGPlace{Profile: 14, Start: 2, Size: 2}
	l := &v1alpha1.SliceLedger{}
	l.Status.Devices = []v1alpha1.DeviceStatus{{UUID: "GPU-0", Healthy: true, Instances: []v1alpha1.MIGInstance{{MIGPlace: place, Reason: "Xid 94"}}}}
	x := NewIndex(l)
	g := Grant{UUID: "GPU-0", Mode: v1alpha1.ModeMIG, MIG: place}
	if x.Healthy(g) {
		t.Error("an instance that is unhealthy is shown as well")
	}
	if g.MIG.Start = 0; !x.Healthy(g) {
		t.Error("another instance of the device is shown as unhealthy")
	}
}
