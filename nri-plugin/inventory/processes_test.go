// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bufio"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

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
	if _, _, err := inv.Utilization("GPU-unknown", 0); err == nil {
		t.Error("an unknown device is busy")
	}
	if _, err := inv.Processes("GPU-unknown"); err == nil {
		t.Error("an unknown device has processes")
	}
	if _, err := inv.Use("GPU-unknown"); err == nil {
		t.Error("an unknown device is in use")
	}
}

// A process that works is busy, and one sample of it counts once.
func TestUtilization(t *testing.T) {
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}}})
	inv := open(t, s, Options{})
	uuid := scan(t, inv).Devices[0].UUID
	if busy, last, err := inv.Utilization(uuid, 3); err != nil || len(busy) != 0 || last != 3 {
		t.Errorf("of an idle device %v, %d, %v; want nobody, and the time as before", busy, last, err)
	}
	demo := exec.Command(s.Program("cudademo"), "--burn", "600000")
	demo.Env = s.Env()
	if err := demo.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = demo.Process.Kill()
		_ = demo.Wait()
	})
	deadline := time.Now().Add(time.Minute)
	for {
		busy, last, err := inv.Utilization(uuid, 0)
		if err != nil || time.Now().After(deadline) {
			t.Fatalf("%v, %v; want process %d busy", busy, err, demo.Process.Pid)
		}
		if len(busy) == 1 && busy[demo.Process.Pid] > 0 {
			if busy, _, err := inv.Utilization(uuid, last+uint64(time.Hour.Microseconds())); err != nil || len(busy) != 0 {
				t.Errorf("later than the last sample: %v, %v", busy, err)
			}
			return
		}
	}
}
