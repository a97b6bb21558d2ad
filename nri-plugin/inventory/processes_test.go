// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bufio"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/simgpu"
)

// Processes are listed on the device that they have a context on, and use its
// memory, whatever the driver's version, until they end.
func TestProcesses(t *testing.T) {
	for _, driver := range []string{simgpu.DriverNewest, simgpu.Driver535} {
		t.Run(driver, func(t *testing.T) {
			s := simgpu.New(t, simgpu.Config{Driver: driver, GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 2}}})
			inv := open(t, s, Options{})
			devices := scan(t, inv).Devices
			use, err := inv.Use(devices[0].UUID)
			if err != nil {
				t.Fatal(err)
			}
			idle := use.MemoryBytes
			demo := exec.Command(s.Program("cudademo"), "--alloc", "16", "--hold")
			demo.Env = s.Env("CUDA_VISIBLE_DEVICES=1")
			out, err := demo.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := demo.Start(); err != nil {
				t.Fatal(err)
			}
			end := func() {
				_ = demo.Process.Kill()
				_ = demo.Wait()
			}
			t.Cleanup(end)
			for lines := bufio.NewScanner(out); lines.Scan() && !strings.HasPrefix(lines.Text(), "hold"); {
			}
			for i, want := range [][]int{nil, {demo.Process.Pid}} {
				if got, err := inv.Processes(devices[i].UUID); err != nil || !slices.Equal(got, want) {
					t.Errorf("device %d: %v, %v; want %v", i, got, err, want)
				}
				if use, err := inv.Use(devices[i].UUID); err != nil || (use.MemoryBytes > idle) != (len(want) > 0) {
					t.Errorf("device %d: %+v, %v; idle it uses %d", i, use, err, idle)
				}
			}
			end()
			if got, err := inv.Processes(devices[1].UUID); err != nil || len(got) != 0 {
				t.Errorf("after its end: %v, %v", got, err)
			}
		})
	}
	inv := open(t, simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}}}), Options{})
	if _, err := inv.Processes("GPU-unknown"); err == nil {
		t.Error("an unknown device has processes")
	}
	if _, err := inv.Use("GPU-unknown"); err == nil {
		t.Error("an unknown device is in use")
	}
}
