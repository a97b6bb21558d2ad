// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/test/simgpu"
)

// pendingMIG is the mode that the device has after its next reset.
func pendingMIG(t *testing.T, inv *Inventory, uuid string) int {
	t.Helper()
	u, err := inv.unit(uuid)
	must(t, err)
	_, pending, r := u.handle.GetMigMode()
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	return pending
}

// A device that takes a reset for it is never put into MIG mode.
func TestEnableMIGBeforeHopper(t *testing.T) {
	inv := open(t, simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}}}), Options{})
	uuid := scan(t, inv).Devices[0].UUID
	if err := inv.EnableMIG(uuid); !errors.Is(err, device.ErrUnsupported) || !strings.Contains(err.Error(), "takes a reset") {
		t.Errorf("%v", err)
	}
	if got := pendingMIG(t, inv, uuid); got != nvml.DEVICE_MIG_DISABLE {
		t.Errorf("%d is pending", got)
	}
}

// A device is put into MIG mode at once, or nothing of it is left to come; never one that
// somebody uses.
func TestEnableMIG(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("MIG needs root")
	}
	sim := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.H100}}})
	inv := open(t, sim, Options{})
	uuid := scan(t, inv).Devices[0].UUID
	client := exec.Command(sim.Program("cudademo"), "--alloc", "1", "--hold")
	client.Env = sim.Env()
	out, err := client.StdoutPipe()
	must(t, err)
	must(t, client.Start())
	buffer := make([]byte, 4096)
	for said := ""; !strings.Contains(said, "hold"); {
		n, err := out.Read(buffer)
		must(t, err)
		said += string(buffer[:n])
	}
	if err := inv.EnableMIG(uuid); err == nil || !strings.Contains(err.Error(), "does not switch it now") {
		t.Errorf("with a client: %v", err)
	}
	if got := pendingMIG(t, inv, uuid); got != nvml.DEVICE_MIG_DISABLE {
		t.Errorf("with a client: %d is pending", got)
	}
	must(t, client.Process.Kill())
	_ = client.Wait()
	must(t, inv.EnableMIG(uuid))
	if d := scan(t, inv).Devices[0]; d.MIG != v1alpha1.MIGEnabled || len(d.Profiles) == 0 {
		t.Errorf("afterwards: %+v", d)
	}
	must(t, inv.EnableMIG(uuid))
}
