// SPDX-License-Identifier: Apache-2.0

//go:build envtest

package deploy_test

import (
	"fmt"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/test/apiserver"
	"vernier.dev/vernier/test/must"
)

// Any writer of a ledger's spec, with a stolen token of the allocator or as a bearer of
// vernier-operator, enters no device that the node does not have, and none larger than it is.
func TestHostileLedgerSpec(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml"}})
	admin := apiserver.Client(t, cfg)
	c := apiserver.Client(t, stolen(t, cfg, v1alpha1.AllocatorServiceAccount, nil))
	device := func(uuid string, mem v1alpha1.MiB, slices ...v1alpha1.Slice) v1alpha1.DeviceLedger {
		return v1alpha1.DeviceLedger{UUID: uuid, Core: v1alpha1.WholeGPU, Mem: mem, Slices: slices}
	}
	slice := v1alpha1.Slice{Pod: "uid", Owner: "ns/pod", Ctr: "main", Core: 10, Mem: 100}
	// As the node has them now. GPU-1 was larger when it was entered, GPU-2 smaller, and GPU-9 is gone.
	seen := []v1alpha1.DeviceStatus{{UUID: "GPU-0", Mem: 1000}, {UUID: "GPU-1", Mem: 1000}, {UUID: "GPU-2", Mem: 1000}}
	was := []v1alpha1.DeviceLedger{device("GPU-1", 2000, slice, slice), device("GPU-2", 500, slice), device("GPU-9", 700, slice)}
	half := device("GPU-0", 1000)
	half.Core = 50
	const refused = "a device that is new or larger must be as in status.devices"
	for name, tt := range map[string]struct {
		devices []v1alpha1.DeviceLedger
		want    string
	}{
		"unchanged":                      {was, ""},
		"slices released":                {[]v1alpha1.DeviceLedger{device("GPU-1", 2000, slice), device("GPU-2", 500), device("GPU-9", 700)}, ""},
		"slices granted":                 {[]v1alpha1.DeviceLedger{device("GPU-1", 2000, slice, slice, slice), was[1], was[2]}, ""},
		"entries gone":                   {nil, ""},
		"a device that the node has":     {append([]v1alpha1.DeviceLedger{device("GPU-0", 1000, slice)}, was...), ""},
		"one that grew, as it is now":    {[]v1alpha1.DeviceLedger{was[0], device("GPU-2", 1000, slice), was[2]}, ""},
		"one that shrank, as it is now":  {[]v1alpha1.DeviceLedger{device("GPU-1", 1000, slice), was[1], was[2]}, ""},
		"a device that is gone, smaller": {[]v1alpha1.DeviceLedger{device("GPU-9", 600, slice)}, ""},
		"a device that the node has not": {append([]v1alpha1.DeviceLedger{device("GPU-8", 1000)}, was...), refused},
		"a new one larger than it is":    {append([]v1alpha1.DeviceLedger{device("GPU-0", 1001)}, was...), refused},
		"a new one smaller than it is":   {append([]v1alpha1.DeviceLedger{device("GPU-0", 999)}, was...), refused},
		"a new one of half the compute":  {append([]v1alpha1.DeviceLedger{half}, was...), refused},
		"one that grows":                 {[]v1alpha1.DeviceLedger{device("GPU-1", 2001, slice), was[1], was[2]}, refused},
		"one that grows too far":         {[]v1alpha1.DeviceLedger{was[0], device("GPU-2", 1001, slice), was[2]}, refused},
		"one that is gone and grows":     {[]v1alpha1.DeviceLedger{was[0], was[1], device("GPU-9", 701, slice)}, refused},
		"as large as none is":            {[]v1alpha1.DeviceLedger{device("GPU-0", 1<<23)}, "4194304"},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledgerOf(t, admin, was, seen)
			l.Spec.Devices = tt.devices
			expect(t, name, c.Update(t.Context(), l), tt.want)
		})
	}

	l := ledgerOf(t, admin, was, seen)
	l.Spec.Devices = nil
	expect(t, "all entries gone", c.Update(t.Context(), l), "")
	l.Spec.Devices = was[:1]
	expect(t, "and back in their old size", c.Update(t.Context(), l), refused)

	l = ledgerOf(t, admin, was, seen)
	l.Status.Devices[0].Mem = 1 << 23
	expect(t, "a device of 8 TiB in the status", admin.Status().Update(t.Context(), l), "4194304")
	expect(t, "the cordon of somebody who may", admin.Patch(t.Context(), ledgerOf(t, admin, was, nil), client.RawPatch(types.MergePatchType,
		[]byte(`{"spec":{"cordons":[{"uuid":"GPU-1","since":"2026-01-01T00:00:00Z"}]}}`))), "")
}

// The rule's cost stays within the API server's budget: a node with as many devices and slices
// as there may be, all of which have grown.
func TestHostileLedgerSpec_WhenLedgerIsFull_UpdatePasses(t *testing.T) {
	admin := apiserver.Client(t, apiserver.Start(t, apiserver.Options{}))
	var was []v1alpha1.DeviceLedger
	var seen []v1alpha1.DeviceStatus
	since := metav1.Now()
	for i := range v1alpha1.MaxDevices {
		d := v1alpha1.DeviceLedger{UUID: fmt.Sprintf("GPU-%02d-0000-0000-0000-000000000000", i), Core: v1alpha1.WholeGPU, Mem: 1000}
		for j := range v1alpha1.MaxSlicesPerDevice {
			d.Slices = append(d.Slices, v1alpha1.Slice{Pod: types.UID(fmt.Sprint(i, j)), Owner: "ns/pod", Ctr: "main", Mem: 3, Since: &since})
		}
		was = append(was, d)
		// In another order, so that all are looked for.
		seen = append([]v1alpha1.DeviceStatus{{UUID: d.UUID, Mem: 2000}}, seen...)
	}
	l := ledgerOf(t, admin, was, seen)
	for i := range l.Spec.Devices {
		l.Spec.Devices[i].Mem = 2000
	}
	expect(t, "a full ledger", admin.Update(t.Context(), l), "")
}

// ledgerOf makes a ledger. A spec is written without a look at the status when it is created.
func ledgerOf(t *testing.T, admin client.Client, granted []v1alpha1.DeviceLedger, seen []v1alpha1.DeviceStatus) *v1alpha1.SliceLedger {
	t.Helper()
	l := &v1alpha1.SliceLedger{ObjectMeta: metav1.ObjectMeta{GenerateName: "node-"}, Spec: v1alpha1.SliceLedgerSpec{Devices: granted}}
	must.Do(t, admin.Create(t.Context(), l))
	l.Status.Devices = seen
	must.Do(t, admin.Status().Update(t.Context(), l))
	return l
}

// With a stolen token of the allocator nobody changes of a class but whether there is a GPU for it.
func TestHostileClassStatus(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml", "admission/allocator-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	c := apiserver.Client(t, stolen(t, cfg, v1alpha1.AllocatorServiceAccount, nil))
	class := gold()
	must.Do(t, admin.Create(t.Context(), class))
	set := func(kind, want string) {
		t.Helper()
		meta.SetStatusCondition(&class.Status.Conditions, metav1.Condition{Type: kind, Status: metav1.ConditionFalse, Reason: "Test"})
		class.Spec.Mode = v1alpha1.ModeMPS
		expect(t, kind, c.Status().Update(t.Context(), class), want)
	}
	set(v1alpha1.ConditionAvailable, "")
	if class.Spec.Mode == v1alpha1.ModeMPS || len(class.Status.Conditions) != 1 {
		t.Errorf("written: %+v", class)
	}
	set("Other", "the allocator may change the condition Available of a class, and no other")
	expect(t, "the class", c.Update(t.Context(), class), "forbidden")
	expect(t, "another class", c.Create(t.Context(), &v1alpha1.GPUClass{ObjectMeta: metav1.ObjectMeta{Name: "mine"}, Spec: class.Spec}), "forbidden")
}

// With a stolen token of the allocator nobody changes of a ledger's status but whether the
// node agent is reachable: what the node has and does would be what the thief says.
func TestHostileLedgerStatus(t *testing.T) {
	cfg := apiserver.Start(t, apiserver.Options{Manifests: []string{"namespace.yaml", "rbac/allocator.yaml", "admission/allocator-policy.yaml"}})
	admin := apiserver.Client(t, cfg)
	c := apiserver.Client(t, stolen(t, cfg, v1alpha1.AllocatorServiceAccount, nil))
	condition := func(l *v1alpha1.SliceLedger, kind string, status metav1.ConditionStatus) {
		meta.SetStatusCondition(&l.Status.Conditions, metav1.Condition{Type: kind, Status: status, Reason: "Test"})
	}
	const refused = "the allocator may change the condition AgentReachable of a ledger"
	for name, tt := range map[string]struct {
		edit func(*v1alpha1.SliceLedger)
		want string
	}{
		"the agent is away":  {func(l *v1alpha1.SliceLedger) { condition(l, v1alpha1.ConditionAgentReachable, metav1.ConditionFalse) }, ""},
		"the agent is ready": {func(l *v1alpha1.SliceLedger) { condition(l, v1alpha1.ConditionReady, metav1.ConditionTrue) }, refused},
		"no condition":       {func(l *v1alpha1.SliceLedger) { l.Status.Conditions = nil }, refused},
		"a device more": {func(l *v1alpha1.SliceLedger) {
			l.Status.Devices = append(l.Status.Devices, v1alpha1.DeviceStatus{UUID: "GPU-9", Mem: 1000})
		}, refused},
		"no device":        {func(l *v1alpha1.SliceLedger) { l.Status.Devices = nil }, refused},
		"a pod's release":  {func(l *v1alpha1.SliceLedger) { l.Status.Released = []types.UID{"uid"} }, refused},
		"a driver's limit": {func(l *v1alpha1.SliceLedger) { l.Status.Driver.MemoryLimits = true }, refused},
	} {
		t.Run(name, func(t *testing.T) {
			l := ledgerOf(t, admin, nil, []v1alpha1.DeviceStatus{{UUID: "GPU-0", Mem: 1000}})
			condition(l, v1alpha1.ConditionReady, metav1.ConditionFalse)
			must.Do(t, admin.Status().Update(t.Context(), l))
			tt.edit(l)
			expect(t, name, c.Status().Update(t.Context(), l), tt.want)
		})
	}
}
