// SPDX-License-Identifier: Apache-2.0

// Package dra is another system's driver, which hands out devices that pods claim (DRA). It is
// real to the API server, the scheduler and the kubelet; what a container gets with a device
// is what a CDI spec says.
package dra

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"vernier.dev/vernier/test/cluster"
)

// patience bounds the wait for the kubelet.
const patience = time.Minute

// Driver hands out devices of one node, to one claim at a time each.
type Driver struct {
	// Name is the driver's, and that of the DeviceClass of all its devices.
	Name    string
	Devices map[string]Device
	// Spec is the CDI spec of the devices that no one else describes.
	Spec string
}

// Device is what pods can claim.
type Device struct {
	// CDI is its name for the runtime.
	CDI        string
	Attributes map[resourcev1.QualifiedName]resourcev1.DeviceAttribute
}

// Start runs the driver in this process until stop, which leaves nothing of it: no pod may have
// a device any more. Once Start has returned the kubelet knows the driver.
func (d Driver) Start(ctx context.Context, kube kubernetes.Interface, node *cluster.Node) (func() error, error) {
	classes, slices := kube.ResourceV1().DeviceClasses(), kube.ResourceV1().ResourceSlices()
	class := &resourcev1.DeviceClass{ObjectMeta: metav1.ObjectMeta{Name: d.Name}, Spec: resourcev1.DeviceClassSpec{
		Selectors: []resourcev1.DeviceSelector{{CEL: &resourcev1.CELDeviceSelector{Expression: fmt.Sprintf("device.driver == '%s'", d.Name)}}}}}
	_, err := classes.Create(ctx, class, metav1.CreateOptions{})
	if err != nil {
		return nil, err
	}
	spec, sockets := filepath.Join(node.CDIDir(), d.Name+".json"), filepath.Join(node.Dir(), "dra")
	running := context.WithoutCancel(ctx)
	var helper *kubeletplugin.Helper // it can be stopped although it is nil
	stop := func() error {
		helper.Stop()
		return errors.Join(
			slices.DeleteCollection(running, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: resourcev1.ResourceSliceSelectorDriver + "=" + d.Name}),
			classes.Delete(running, d.Name, metav1.DeleteOptions{}),
			os.RemoveAll(spec), os.RemoveAll(sockets))
	}
	if err := errors.Join(os.WriteFile(spec, []byte(d.Spec), 0o600), os.MkdirAll(sockets, 0o755)); err != nil {
		return nil, errors.Join(err, stop())
	}
	helper, err = kubeletplugin.Start(running, plugin{d}, kubeletplugin.DriverName(d.Name), kubeletplugin.NodeName(node.Name), kubeletplugin.KubeClient(kube),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(node.Dir(), "kubelet", "plugins_registry")), kubeletplugin.PluginDataDirectoryPath(sockets))
	if err == nil {
		err = d.publish(running, helper, node.Name)
	}
	if err == nil {
		err = wait.PollUntilContextTimeout(ctx, 100*time.Millisecond, patience, true, func(context.Context) (bool, error) {
			now := helper.RegistrationStatus()
			return now != nil && now.PluginRegistered, nil
		})
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("DRA driver %s on node %s: %w", d.Name, node.Name, err), stop())
	}
	return stop, nil
}

func (d Driver) publish(ctx context.Context, helper *kubeletplugin.Helper, node string) error {
	var all []resourcev1.Device
	for name, device := range d.Devices {
		all = append(all, resourcev1.Device{Name: name, Attributes: device.Attributes})
	}
	return helper.PublishResources(ctx, resourceslice.DriverResources{
		Pools: map[string]resourceslice.Pool{node: {Slices: []resourceslice.Slice{{Devices: all}}}}})
}

// plugin is the kubelet's side of a driver.
type plugin struct{ Driver }

func (p plugin) PrepareResourceClaims(_ context.Context, claims []*resourcev1.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	all := map[types.UID]kubeletplugin.PrepareResult{}
	for _, c := range claims {
		var prepared kubeletplugin.PrepareResult
		for _, r := range c.Status.Allocation.Devices.Results {
			if r.Driver == p.Name {
				prepared.Devices = append(prepared.Devices, kubeletplugin.Device{
					Requests: []string{r.Request}, PoolName: r.Pool, DeviceName: r.Device, CDIDeviceIDs: []string{p.Devices[r.Device].CDI}})
			}
		}
		all[c.UID] = prepared
	}
	return all, nil
}

func (plugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	all := map[types.UID]error{}
	for _, c := range claims {
		all[c.UID] = nil
	}
	return all, nil
}

func (plugin) HandleError(context.Context, error, string) {}
