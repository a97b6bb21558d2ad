// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"vernier.dev/vernier/api/v1alpha1"
)

// claimDriver is another system's, with devices that are not what they are called.
const claimDriver = "gpu.example.org"

// claimed hands out by claims what it is given, by the CDI names.
type claimed map[string]string

func (d claimed) PrepareResourceClaims(_ context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	all := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		var prepared kubeletplugin.PrepareResult
		for _, r := range c.Status.Allocation.Devices.Results {
			prepared.Devices = append(prepared.Devices, kubeletplugin.Device{
				Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, CDIDeviceIDs: []string{d[r.Device]}})
		}
		all[c.UID] = prepared
	}
	return all, nil
}

func (claimed) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	all := map[types.UID]error{}
	for _, c := range claims {
		all[c.UID] = nil
	}
	return all, nil
}

func (claimed) HandleError(context.Context, error, string) {}

// A claim of another driver's gives no GPU, neither beside a share nor without one, by whatever
// name the device comes; and what is no GPU comes with a share.
func TestHostileClaims(t *testing.T) {
	node := sys.Node(small)
	uuid := ledger(t, small).Status.Devices[0].UUID
	devices := claimed{
		"renamed": claimDriver + "/card=renamed", "link": claimDriver + "/card=link",
		"ours": v1alpha1.CDIKind + "=" + uuid, "zero": claimDriver + "/card=zero",
	}
	spec := fmt.Sprintf(`{"cdiVersion":"0.6.0","kind":"%s/card","devices":[
		{"name":"renamed","containerEdits":{"deviceNodes":[{"path":"/dev/innocent","type":"c","major":195,"minor":0}]}},
		{"name":"link","containerEdits":{"deviceNodes":[{"path":"/dev/../dev/nvidiactl","hostPath":"/dev/null"}]}},
		{"name":"zero","containerEdits":{"deviceNodes":[{"path":"/dev/other","hostPath":"/dev/zero"}]}}]}`, claimDriver)
	file := filepath.Join(node.CDIDir(), "example.json")
	if err := os.WriteFile(file, []byte(spec), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.Remove(file); err != nil {
			t.Error(err)
		}
	})
	serve(t, devices)

	claims := sys.Kube.ResourceV1().ResourceClaims(namespace)
	claiming := func(p *pod, device string) *pod {
		claim := &resourcev1.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: p.Name}, Spec: resourcev1.ResourceClaimSpec{
			Devices: resourcev1.DeviceClaim{Requests: []resourcev1.DeviceRequest{{Name: "card", Exactly: &resourcev1.ExactDeviceRequest{
				DeviceClassName: claimDriver, AllocationMode: resourcev1.DeviceAllocationModeExactCount, Count: 1,
				Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{
					Expression: fmt.Sprintf("device.attributes['%s'].name == '%s'", claimDriver, device)}}},
			}}}}}}
		if _, err := claims.Create(t.Context(), claim, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := claims.Delete(context.Background(), claim.Name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
		p.Spec.ResourceClaims = []corev1.PodResourceClaim{{Name: "card", ResourceClaimName: &claim.Name}}
		p.main().Resources.Claims = []corev1.ResourceClaim{{Name: "card"}}
		return p
	}
	for device, says := range map[string]string{"renamed": "/dev/innocent past its slices", "link": "nvidiactl past its slices", "ours": v1alpha1.CDIKind + "=" + uuid + " past its slices"} {
		for _, p := range []*pod{newPod("claims-" + device).on(small), newPod("claims-beside-"+device).on(small).share(10, 10)} {
			made := create(t, claiming(p, device))
			awaitEvent(t, made, says)
			if now := get(t, made); now.Status.Phase != corev1.PodPending {
				t.Errorf("pod %s is %s", p.Name, now.Status.Phase)
			}
			remove(t, made) // a device has one claim at a time
		}
	}
	honest := awaitReady(t, create(t, claiming(newPod("claims-other").on(small).share(10, 10).args("--hold"), "zero")))
	if said := tryIn(t, honest, "head -c 1 /dev/other | wc -c"); said != "1\n" {
		t.Errorf("a device that is no GPU, beside a share: %q", said)
	}
	remove(t, honest)
}

// serve runs the driver for the small node's kubelet until the test is over.
func serve(t *testing.T, devices claimed) {
	t.Helper()
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: claimDriver}, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == '%s'", claimDriver)}}}}}
	classes, slices := sys.Kube.ResourceV1().DeviceClasses(), sys.Kube.ResourceV1().ResourceSlices()
	if _, err := classes.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dir := sys.Node(small).Dir()
	sockets := filepath.Join(dir, "dra")
	if err := os.MkdirAll(sockets, 0o755); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	helper, err := kubeletplugin.Start(ctx, devices, kubeletplugin.DriverName(claimDriver), kubeletplugin.NodeName(small), kubeletplugin.KubeClient(sys.Kube),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(dir, "kubelet", "plugins_registry")), kubeletplugin.PluginDataDirectoryPath(sockets))
	if err != nil {
		stop()
		t.Fatal(err)
	}
	t.Cleanup(func() {
		helper.Stop()
		stop()
		if err := errors.Join(
			slices.DeleteCollection(context.Background(), metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: resourcev1.ResourceSliceSelectorDriver + "=" + claimDriver}),
			classes.Delete(context.Background(), claimDriver, metav1.DeleteOptions{}),
		); err != nil {
			t.Error(err)
		}
	})
	var all []resourcev1.Device
	for name := range devices {
		all = append(all, resourcev1.Device{Name: name, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{"name": {StringValue: &name}}})
	}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{small: {Slices: []resourceslice.Slice{{Devices: all}}}}}); err != nil {
		t.Fatal(err)
	}
	await(t, "the kubelet to know the driver", func() (bool, string) {
		now := helper.RegistrationStatus()
		return now != nil && now.PluginRegistered, fmt.Sprint(now)
	})
}
