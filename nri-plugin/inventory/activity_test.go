// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"os/exec"
	"testing"
	"time"

	"vernier.dev/vernier/nri-plugin/device"
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
		a, err := inv.Activity(uuid)
		must(t, err)
		return a
	}
	if a := ask(); a != nil {
		t.Errorf("known from one sample: %v", a)
	}
	for metric, value := range map[int]float64{3: 13.7, 10: 19, 20: 5.5, 21: 27.5, 60: 3, 61: 4} {
		must(t, s.GPM(uuid, metric, value))
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
	must(t, s.GPM(uuid, 10, 20))
	if again := ask(); again[device.DRAMActive] != a[device.DRAMActive] {
		t.Errorf("a reader that comes just after another: %v", again)
	}
	now = now.Add(time.Minute)
	if a := ask(); a[device.SMActive] != 0 || a[device.DRAMActive] != 0.2 {
		t.Errorf("idle: %v", a)
	}

	// A device that doesn't answer begins again when it does.
	must(t, s.Lose(uuid))
	now = now.Add(time.Minute)
	if a, err := inv.Activity(uuid); err == nil {
		t.Errorf("lost: %v", a)
	}
	must(t, s.Recover(uuid))
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
