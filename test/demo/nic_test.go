// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/deviceattribute"

	"vernier.dev/vernier/test/dra"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/system"
)

// The NIC beside the demo's GPUs. Where it is, and what it is called.
const (
	nicName = "mlx5_0"
	nicRoot = "pci0000:00"
	nicPath = nicRoot + "/0000:00:02.0/0000:05:00.0"
	nicNUMA = 0 // as the simulated GPUs
)

// sysfsWithNIC makes what the node agent reads of sysfs, with an RDMA device whose port is up.
func sysfsWithNIC(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	function := filepath.Join(dir, "devices", nicPath)
	device := filepath.Join(function, "infiniband", nicName)
	port, class := filepath.Join(device, "ports", "1"), filepath.Join(dir, "class", "infiniband")
	for _, d := range []string{port, class} {
		must.Do(t, os.MkdirAll(d, 0o755))
	}
	for path, text := range map[string]string{filepath.Join(function, "numa_node"): strconv.Itoa(nicNUMA), filepath.Join(port, "state"): "4: ACTIVE\n"} {
		must.Do(t, os.WriteFile(path, []byte(text), 0o600))
	}
	for path, to := range map[string]string{filepath.Join(device, "device"): function, filepath.Join(class, nicName): device} {
		must.Do(t, os.Symlink(to, path))
	}
	return dir
}

// serveNIC stands in for DRANET until the test is over: a driver of its name, with the NIC as it
// describes one. Pods get a device node as they get it there, one that does nothing.
func serveNIC(t *testing.T, sys *system.System) {
	t.Helper()
	const name, device = "dra.net", "pci-0000-05-00-0"
	yes, rdma, numa, root := true, nicName, int64(nicNUMA), nicRoot
	stop := must.Get(dra.Driver{
		Name: name,
		Devices: map[string]dra.Device{device: {CDI: name + "/nic=" + nicName, Attributes: map[resourcev1.QualifiedName]resourcev1.DeviceAttribute{
			name + "/rdma":       {BoolValue: &yes},
			name + "/rdmaDevice": {StringValue: &rdma},
			name + "/numaNode":   {IntValue: &numa},
			deviceattribute.StandardDeviceAttributePCIeRoot: {StringValue: &root},
		}}},
		Spec: `{"cdiVersion":"0.6.0","kind":"` + name + `/nic","devices":[{"name":"` + nicName + `",
			"containerEdits":{"deviceNodes":[{"path":"/dev/infiniband/uverbs0","hostPath":"/dev/null"}]}}]}`,
	}.Start(t.Context(), sys.Kube, sys.Node(node).Node))(t)
	t.Cleanup(func() { must.Report(t, stop()) })
}
