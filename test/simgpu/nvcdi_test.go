// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	nvlib "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	"tags.cncf.io/container-device-interface/specs-go"

	"vernier.dev/vernier/test/must"
)

func touch(t *testing.T, elements ...string) {
	t.Helper()
	path := filepath.Join(elements...)
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must.Do(t, os.WriteFile(path, nil, 0o644))
}

// The toolkit, unmodified, finds in the driver root all that it finds on a real
// node: for every UUID the device node, and the libraries in the common edits.
func TestToolkitWritesSpecs(t *testing.T) {
	needRoot(t, "device nodes need")
	for _, driver := range []string{DriverNewest, Driver535} {
		t.Run(driver, func(t *testing.T) {
			s := New(t, Config{Driver: driver, GPUs: []GPU{{Model: H100, Count: 2}, {Model: T4}}})
			root := t.TempDir()
			must.Do(t, s.DriverRoot(root, false))
			t.Setenv("SIMGPU_ALL_DEVICES", "0")
			t.Setenv("SIMGPU_DEVROOT", root)
			lib := open(t, s)
			toolkit := must.Get(nvcdi.New(
				nvcdi.WithNvmlLib(lib),
				nvcdi.WithDeviceLib(nvlib.New(lib)),
				nvcdi.WithMode(nvcdi.ModeNvml),
				nvcdi.WithDriverRoot(root),
				nvcdi.WithDevRoot(root),
				nvcdi.WithNVIDIACDIHookPath("/usr/bin/nvidia-cdi-hook"),
				nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils),
			))(t)
			st := must.Get(s.Status())(t)
			for _, d := range st.Devices {
				devices, err := toolkit.GetDeviceSpecsByID(d.UUID)
				if err != nil {
					t.Fatalf("%s: %v", d.UUID, err)
				}
				var nodes []string
				for _, n := range devices[0].ContainerEdits.DeviceNodes {
					nodes = append(nodes, n.Path)
				}
				node := "/dev/nvidia" + string(rune('0'+d.Minor))
				if !slices.Equal(nodes, []string{node}) {
					t.Errorf("%s: nodes %v, want %s", d.UUID, nodes, node)
				}
			}
			edits := must.Get(toolkit.GetCommonEdits())(t)
			for _, library := range []string{"libcuda.so.", "libnvidia-ml.so."} {
				if !slices.ContainsFunc(edits.Mounts, func(m *specs.Mount) bool {
					return strings.HasSuffix(m.ContainerPath, library+driver)
				}) {
					t.Errorf("no mount of %s%s among %d mounts", library, driver, len(edits.Mounts))
				}
			}
			for _, node := range []string{"/dev/nvidiactl", "/dev/nvidia-uvm"} {
				if !slices.ContainsFunc(edits.DeviceNodes, func(n *specs.DeviceNode) bool { return n.Path == node }) {
					t.Errorf("no device node %s", node)
				}
			}
		})
	}
}
