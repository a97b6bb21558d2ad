// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package allocator

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/allocator/state/grants"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/objects"
)

// Invariant 1: the API server refuses a ledger that grants more than a device
// has, whoever writes it, at the largest size that a ledger can have.
func TestRulesOfTheLedger(t *testing.T) {
	s := start(t)
	l := objects.Ledger("big")
	l.UID = ""
	for d := range v1alpha1.MaxDevices {
		device := v1alpha1.DeviceLedger{UUID: fmt.Sprintf("GPU-%036d", d), Core: 100, Mem: 256}
		for i := range v1alpha1.MaxSlicesPerDevice {
			device.Slices = append(device.Slices, v1alpha1.Slice{Pod: types.UID(fmt.Sprintf("%036d", i)), Owner: "namespace/some-pod", Ctr: "train", Mem: 1})
		}
		device.Slices[0].Core = 100
		l.Spec.Devices = append(l.Spec.Devices, device)
	}
	// A machine that has no time for so large a ledger may let a request time out.
	patiently := func(do func() error) (err error) {
		t.Helper()
		s.await("the API server to answer", func(context.Context) (bool, error) { err = do(); return !apierrors.IsTimeout(err), nil })
		return err
	}
	s.must(patiently(func() error { return client.IgnoreAlreadyExists(s.Create(t.Context(), l)) }))
	l.ResourceVersion = s.ledger(l.Name).ResourceVersion
	// Each rule is broken on a device of its own, all in one write: they take long.
	bad := l.DeepCopy()
	refused := func(want ...string) {
		t.Helper()
		err := patiently(func() error { return s.Update(t.Context(), bad) })
		for _, w := range want {
			if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), w) {
				t.Errorf("%v, want %q", err, w)
			}
		}
	}
	on := func(i int) *v1alpha1.DeviceLedger { return &bad.Spec.Devices[v1alpha1.MaxDevices-i] }
	on(1).Slices[1].Core = 1
	on(2).Slices[1].Mem = 2
	on(3).Slices[1].ReuseMem = 2
	on(4).UUID = l.Spec.Devices[0].UUID
	refused("spec.devices[31].slices: Invalid value: slices add up to more compute than the device has",
		"spec.devices[30].slices: Invalid value: slices add up to more memory than the device has",
		"spec.devices[29].slices[1]: Invalid value: reuseMem is more than mem",
		"spec.devices: Invalid value: a device may be listed once only")
	bad = l.DeepCopy()
	on(1).Slices = append(on(1).Slices, on(1).Slices[1])
	refused("spec.devices[31].slices: Too many")
	s.must(patiently(func() error { return s.Update(t.Context(), l) }))
}

// Invariant 1: the write of a leader that was deposed without noticing, on a
// version of the ledger that is no longer the last, changes nothing.
func TestLateWriteConflicts(t *testing.T) {
	s := start(t)
	s.addNode("gpu-1")
	late := s.ledger("gpu-1")
	s.run()
	s.addPod("a", objects.Share(60, 500))
	s.awaitPlaced("a")
	plan := placement.Plan{Node: "gpu-1", Grants: []placement.Grant{{Container: "c", UUID: gpu("gpu-1", 0), Core: 10, Mem: 10}}}
	s.must(grants.Grant(late, "late", "ns/late", plan, time.Time{}))
	old := apiserver.Client(t, apiserver.AsServiceAccount(s.cfg, v1alpha1.AllocatorServiceAccount))
	if err := old.Update(t.Context(), late); !apierrors.IsConflict(err) {
		t.Errorf("the late write: %v, want a conflict", err)
	}
	// Nor may it write what nodes say.
	says := s.ledger("gpu-1")
	says.Status.Devices[0].Healthy = false
	if err := old.Status().Update(t.Context(), says); !apierrors.IsInvalid(err) {
		t.Errorf("a status written by the allocator: %v, want it refused", err)
	}
}

// Invariants 1 and 6: three replicas that all lead place the same pods on the same
// nodes at the same time. Each pod gets its slices once.
func TestAllLead(t *testing.T) {
	s := start(t)
	nodes := []string{"gpu-1", "gpu-2"}
	for _, n := range nodes {
		s.addNode(n)
	}
	s.runLeaders(3)
	// 4 devices, 40 core each: 8 of 12 fit.
	var made []*corev1.Pod
	for i := range 12 {
		made = append(made, s.addPod(fmt.Sprintf("p%d", i), objects.Share(40, 400)))
	}
	placed := func() (n int) {
		for _, p := range made {
			if len(s.pod(p.Name).Spec.SchedulingGates) == 0 {
				n++
			}
		}
		return n
	}
	granted := func() map[types.UID]int {
		held := map[types.UID]int{}
		for _, n := range nodes {
			for _, d := range s.ledger(n).Spec.Devices {
				if len(d.Slices) > 2 {
					t.Errorf("Invariant 1: %s of %s has %d slices of 40 core", d.UUID, n, len(d.Slices))
				}
				for _, sl := range d.Slices {
					held[sl.Pod]++
				}
			}
		}
		return held
	}
	s.await("8 pods to be placed and hold 8 slices", func(context.Context) (bool, error) {
		return placed() == 8 && len(granted()) == 8, nil
	})
	for _, p := range made {
		if p = s.pod(p.Name); len(p.Spec.SchedulingGates) == 0 {
			s.awaitPlaced(p.Name)
			if n := granted()[p.UID]; n != 1 {
				t.Errorf("Invariant 6: pod %s has %d slices", p.Name, n)
			}
		}
	}
}

// runLeaders starts replicas that all lead.
func (s *server) runLeaders(n int) {
	s.t.Helper()
	for range n {
		ctx, stop := context.WithCancel(context.Background())
		cfg := apiserver.AsServiceAccount(s.cfg, v1alpha1.AllocatorServiceAccount)
		cfg.QPS = -1
		mgr, err := manager.New(cfg, manager.Options{Scheme: objects.Scheme(s.t), LeaderElection: false})
		s.must(err)
		s.must(setup(ctx, mgr, Options{Page: "0"}, templates, s.clock, s.agents))
		ended := make(chan error, 1)
		go func() { ended <- mgr.Start(ctx) }()
		s.t.Cleanup(func() { stop(); <-ended })
	}
}
