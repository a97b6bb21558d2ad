// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"bufio"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// Activity is of the time between two samples, which are a second apart at least, and is
// known only of devices and drivers that have it.
func TestActivity(t *testing.T) {
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.H100}, {Model: simgpu.A100}, {Model: simgpu.H100, MIG: true}}})
	inv := open(t, s, Options{})
	devices := scan(t, inv).Devices
	now := time.Unix(1000, 0)
	inv.now = func() time.Time { return now }
	for i := range devices[1:] {
		if a, err := inv.Activity(devices[1+i].UUID); !errors.Is(err, device.ErrUnsupported) {
			t.Errorf("device %d: %v, %v", 1+i, a, err)
		}
	}
	uuid := devices[0].UUID
	ask := func() device.Activity {
		t.Helper()
		return must.Get(inv.Activity(uuid))(t)
	}
	if a := ask(); a != nil {
		t.Errorf("known from one sample: %v", a)
	}
	for metric, value := range map[int]float64{3: 13.7, 10: 19, 20: 5.5, 21: 27.5, 60: 3, 61: 4} {
		must.Do(t, s.GPM(uuid, metric, value))
	}
	burn(t, s)
	now = now.Add(999 * time.Millisecond)
	if a := ask(); a != nil {
		t.Errorf("too soon: %v", a)
	}
	now = now.Add(time.Millisecond)
	a := ask()
	for figure, want := range map[device.Figure]float64{
		device.SMOccupancy: 0.137, device.DRAMActive: 0.19, device.PCIeTransmit: 5.5 * (1 << 20), device.PCIeReceive: 27.5 * (1 << 20),
		device.NVLinkReceive: 3 << 20, device.NVLinkTransmit: 4 << 20,
	} {
		if got := a[figure]; got < want*0.9999 || got > want*1.0001 {
			t.Errorf("figure %d: %v, want %v", figure, got, want)
		}
	}
	if busy := a[device.SMActive]; busy <= 0 || busy > 1 {
		t.Errorf("busy: %v", busy)
	}
	must.Do(t, s.GPM(uuid, 10, 20))
	if again := ask(); again[device.DRAMActive] != a[device.DRAMActive] {
		t.Errorf("a reader that comes just after another: %v", again)
	}
	now = now.Add(time.Minute)
	if a := ask(); a[device.SMActive] != 0 || a[device.DRAMActive] != 0.2 {
		t.Errorf("idle: %v", a)
	}

	// A device that doesn't answer begins again when it does.
	must.Do(t, s.Lose(uuid))
	now = now.Add(time.Minute)
	if a, err := inv.Activity(uuid); err == nil {
		t.Errorf("lost: %v", a)
	}
	must.Do(t, s.Recover(uuid))
	if a := ask(); a != nil {
		t.Errorf("over the time for which it was lost: %v", a)
	}
	now = now.Add(time.Minute)
	if a := ask(); a == nil {
		t.Error("not known again")
	}
}

// burn has the first device work a little.
func burn(t *testing.T, s *simgpu.Sim) {
	t.Helper()
	cmd := exec.Command(s.Program("cudademo"), "--burn", "20")
	cmd.Env = s.Env("SIMGPU_ALL_DEVICES=1")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// Processes are listed on the device that they have a context on, and use its
// memory, whatever the driver's version, until they end.
func TestProcesses(t *testing.T) {
	for _, driver := range []string{simgpu.DriverNewest, simgpu.Driver535} {
		t.Run(driver, func(t *testing.T) {
			s := simgpu.New(t, simgpu.Config{Driver: driver, GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 2}}})
			inv := open(t, s, Options{})
			devices := scan(t, inv).Devices
			use := must.Get(inv.Use(devices[0].UUID))(t)
			idle := use.MemoryBytes
			demo := exec.Command(s.Program("cudademo"), "--alloc", "16", "--hold")
			demo.Env = s.Env("CUDA_VISIBLE_DEVICES=1")
			out := must.Get(demo.StdoutPipe())(t)
			must.Do(t, demo.Start())
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
	must.Do(t, demo.Start())
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
