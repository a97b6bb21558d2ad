// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"os/exec"
	"slices"
	"strconv"
	"testing"

	nvlib "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"

	"vernier.dev/vernier/test/must"
)

// The toolkit reads mig-minors at its absolute place in /proc whatever the
// driver root is, so this test runs itself again in a mount namespace in which
// the simulated file lies there.
func TestToolkitWritesSpecsForMIGDevices(t *testing.T) {
	if !InMountNamespace(t) {
		return
	}
	s, lib, d := migGPU(t, H100)
	root := t.TempDir()
	must.Do(t, s.DriverRoot(root, true))
	must.Do(t, MountProc(root))
	instance(t, d, nvml.GPU_INSTANCE_PROFILE_2_SLICE)
	mig := value(d.GetMigDeviceHandleByIndex(0))(t)
	uuid := value(mig.GetUUID())(t)
	gi := value(mig.GetGpuInstanceId())(t)

	toolkit := must.Get(nvcdi.New(nvcdi.WithNvmlLib(lib), nvcdi.WithDeviceLib(nvlib.New(lib)),
		nvcdi.WithMode(nvcdi.ModeNvml), nvcdi.WithDriverRoot(root), nvcdi.WithDevRoot(root),
		nvcdi.WithNVIDIACDIHookPath("/usr/bin/nvidia-cdi-hook"),
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils)))(t)
	devices := must.Get(toolkit.GetDeviceSpecsByID(uuid))(t)
	var nodes []string
	for _, n := range devices[0].ContainerEdits.DeviceNodes {
		nodes = append(nodes, n.Path)
	}
	// Of GPU 0: 9 nodes for each GPU instance from 3 on, its own first.
	access := 3 + 9*gi
	expected := []string{
		"/dev/nvidia0",
		"/dev/nvidia-caps/nvidia-cap" + strconv.Itoa(access),
		"/dev/nvidia-caps/nvidia-cap" + strconv.Itoa(access+1),
	}
	slices.Sort(nodes)
	slices.Sort(expected)
	if !slices.Equal(nodes, expected) {
		t.Errorf("nodes %v, want %v", nodes, expected)
	}
	// The instance is CUDA's only with its capability nodes.
	bare := t.TempDir()
	touch(t, bare, "dev/nvidia0")
	for dir, seen := range map[string]bool{root: true, bare: false} {
		cmd := exec.Command(s.Program("cudademo"))
		cmd.Env = s.Env("SIMGPU_ALL_DEVICES=0", DevRoot(dir))
		if err := cmd.Run(); (err == nil) != seen {
			t.Errorf("below %s: %v", dir, err)
		}
	}
}
