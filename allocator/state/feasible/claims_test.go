// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	storagev1 "k8s.io/api/storage/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"

	"vernier.dev/vernier/allocator/state/podstate"
)

// claiming has the pod ask for the device of a resource claim.
func claiming(name string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "nic", ResourceClaimName: &name}}
	}
}

// made has the pod bound, and the scheduler have made a claim for what it asks of a class.
func made(claim string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.NodeName = "a"
		p.Status.ExtendedResourceClaimStatus = &corev1.PodExtendedResourceClaimStatus{ResourceClaimName: claim}
	}
}

// Claims that ask for more than is kept have their pods wait, and no others: the filters say why, or
// find no volume.
func TestHostileClaimsAreNotRead(t *testing.T) {
	values := make([]string, podstate.MaxSelectorTerms)
	for i := range values {
		values[i] = fmt.Sprint("v", i)
	}
	long := volume(func(v *corev1.PersistentVolume) {
		v.Labels = map[string]string{"k": "v1"}
		v.Spec.ClaimRef, v.Spec.NodeAffinity = nil, nil
		v.Spec.AccessModes, v.Spec.Capacity = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
		v.Status.Phase = corev1.VolumeAvailable
	})
	c := long[0].(*corev1.PersistentVolumeClaim)
	delete(c.Annotations, "pv.kubernetes.io/bind-completed")
	requirement := metav1.LabelSelectorRequirement{Key: "k", Operator: metav1.LabelSelectorOpIn, Values: values}
	c.Spec.Selector = &metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{requirement}}
	c.Spec.VolumeName, c.Spec.AccessModes, c.Status.Phase = "", []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}, corev1.ClaimPending
	c.Spec.Resources.Requests = corev1.ResourceList{corev1.ResourceStorage: resource.MustParse("1Gi")}
	class := long[2].(*storagev1.StorageClass)
	class.Provisioner, class.VolumeBindingMode = "kubernetes.io/no-provisioner", ptr.To(storagev1.VolumeBindingWaitForFirstConsumer)
	short := c.DeepCopy()
	short.Name, short.Spec.Selector.MatchExpressions[0].Values = "short", values[:3]

	large := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "device"}, Spec: resourcev1.ResourceClaimSpec{Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{
		Name: "r", Exactly: &resourcev1.ExactDeviceRequest{DeviceClassName: "nic", AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
			Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: strings.Repeat(" ", podstate.MaxClaimBytes) + "true"}}}}}}}}}
	f := newFilters(t, append(long, short, large)...)
	f.SetNode(gpuNode("a"))
	for what, tt := range map[string]struct {
		edit func(*corev1.Pod)
		want string
	}{
		"a long selector":  {claim, "node(s) didn't find available persistent volumes to bind"},
		"a short one":      {func(p *corev1.Pod) { claim(p); p.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "short" }, ""},
		"a large claim":    {claiming("device"), "resource claim ns/device, request of more than 32 KiB, which is not read: unknown request type"},
		"without any more": {func(*corev1.Pod) {}, ""},
	} {
		if got := refusals(t, f, gpuPod("p", tt.edit), "a"); got != tt.want {
			t.Errorf("%s: %q, want %q", what, got, tt.want)
		}
	}
}

// What two pods may take from each other is told while the filters don't know who has it,
// and not any longer.
func TestUndecided(t *testing.T) {
	bound := volume()
	change := func(volume func(*corev1.PersistentVolume), claim func(*corev1.PersistentVolumeClaim)) []runtime.Object {
		objects := []runtime.Object{bound[0].DeepCopyObject(), bound[1].DeepCopyObject(), bound[2]}
		claim(objects[0].(*corev1.PersistentVolumeClaim))
		volume(objects[1].(*corev1.PersistentVolume))
		return objects
	}
	asIs, unbound := func(*corev1.PersistentVolume) {}, func(c *corev1.PersistentVolumeClaim) { c.Spec.VolumeName = "" }
	static := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "static"}, Provisioner: "kubernetes.io/no-provisioner"}
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: "nic"}, Spec: resourcev1.DeviceClassSpec{ExtendedResourceName: ptr.To("example.com/nic")}}
	device := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "device"}}
	allocated := device.DeepCopy()
	allocated.Status.Allocation = &resourcev1.AllocationResult{}
	for _, tt := range []struct {
		name    string
		objects []runtime.Object
		edits   []func(*corev1.Pod)
		want    string
	}{
		{"nothing", nil, nil, "[]"},
		{"no such claim", nil, []func(*corev1.Pod){claim, claiming("device")}, "[]"},
		{"bound", bound, []func(*corev1.Pod){claim}, "[]"},
		{"unbound", change(asIs, unbound), []func(*corev1.Pod){claim}, "[claim ns/data]"},
		{"the claim knows, the volume does not", change(func(v *corev1.PersistentVolume) { v.Spec.ClaimRef = nil }, func(*corev1.PersistentVolumeClaim) {}),
			[]func(*corev1.Pod){claim}, "[claim ns/data]"},
		{"of a class without a provisioner", append(change(asIs, func(c *corev1.PersistentVolumeClaim) {
			unbound(c)
			c.Spec.StorageClassName = &static.Name
		}), static), []func(*corev1.Pod){claim}, "[claim ns/data volumes of class static]"},
		{"ephemeral", change(asIs, func(c *corev1.PersistentVolumeClaim) {
			unbound(c)
			c.Name = "p-scratch"
		}), []func(*corev1.Pod){func(p *corev1.Pod) {
			p.Spec.Volumes = []corev1.Volume{{Name: "scratch", VolumeSource: corev1.VolumeSource{Ephemeral: &corev1.EphemeralVolumeSource{}}}}
		}}, "[claim ns/p-scratch]"},
		{"a device", []runtime.Object{device}, []func(*corev1.Pod){claiming("device")}, "[resource claims]"},
		{"an allocated device", []runtime.Object{allocated}, []func(*corev1.Pod){claiming("device")}, "[]"},
		{"a device by an extended resource", []runtime.Object{class}, []func(*corev1.Pod){request("example.com/nic", "1")}, "[resource claims]"},
		{"a device by its class", []runtime.Object{class}, []func(*corev1.Pod){request("deviceclass.resource.kubernetes.io/nic", "1")}, "[resource claims]"},
		{"a device by its class, bound", []runtime.Object{class}, []func(*corev1.Pod){request("example.com/nic", "1"), func(p *corev1.Pod) { p.Spec.NodeName = "a" }}, "[]"},
		{"a device by its class, bound, its claim not seen", nil, []func(*corev1.Pod){made("device")}, "[resource claims]"},
		{"a device by its class, bound, its claim not seen allocated", []runtime.Object{device}, []func(*corev1.Pod){made("device")}, "[resource claims]"},
		{"a device by its class, bound, its claim allocated", []runtime.Object{allocated}, []func(*corev1.Pod){made("device")}, "[]"},
		{"another extended resource", []runtime.Object{class}, []func(*corev1.Pod){request("example.com/fpga", "1")}, "[]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f := newFilters(t, tt.objects...)
			if got := fmt.Sprint(f.Undecided(gpuPod("p", tt.edits...))); got != tt.want {
				t.Errorf("%s, want %s", got, tt.want)
			}
		})
	}
}

// What is not bound is named with who is to provide it, a few at most.
func TestUnboundClaims(t *testing.T) {
	of := func(name, class string) *corev1.PersistentVolumeClaim {
		return &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: ptr.To(class)}}
	}
	slow := &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: "slow"}, Provisioner: "example.com/never"}
	mounting := func(names ...string) func(*corev1.Pod) {
		return func(p *corev1.Pod) {
			for _, name := range names {
				p.Spec.Volumes = append(p.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{ClaimName: name}}})
			}
		}
	}
	for name, tt := range map[string]struct {
		objects []runtime.Object
		edit    func(*corev1.Pod)
		want    string
	}{
		"none":     {nil, mounting(), ""},
		"bound":    {volume(), claim, ""},
		"unbound":  {[]runtime.Object{of("a", "slow"), slow}, mounting("a"), "PersistentVolumeClaim a is not bound (StorageClass slow, provisioner example.com/never)"},
		"no class": {[]runtime.Object{of("a", "gone")}, mounting("a"), "PersistentVolumeClaim a is not bound (there is no StorageClass gone)"},
		"many": {[]runtime.Object{of("a", ""), of("b", ""), of("c", ""), of("d", ""), of("e", "")}, mounting("a", "b", "c", "d", "e"),
			"PersistentVolumeClaim a is not bound, PersistentVolumeClaim b is not bound, PersistentVolumeClaim c is not bound and 2 more"},
	} {
		if got := newFilters(t, tt.objects...).UnboundClaims(gpuPod("p", tt.edit)); got != tt.want {
			t.Errorf("%s: %q, want %q", name, got, tt.want)
		}
	}
}
