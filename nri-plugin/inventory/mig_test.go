// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

func migDevice(t *testing.T, model string) (*Inventory, v1alpha1.DeviceStatus) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("MIG needs root")
	}
	inv := open(t, simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: model, MIG: true}}}), Options{})
	return inv, scan(t, inv).Devices[0]
}

// What a device can be cut into is what its driver says.
func TestProfiles(t *testing.T) {
	_, d := migDevice(t, simgpu.H200)
	var got []string
	for _, p := range d.Profiles {
		if p.Mem < 1 {
			t.Errorf("%+v", p)
		}
		got = append(got, fmt.Sprint(p.ID, p.Core, p.Size, p.Starts, p.Max))
	}
	want := []string{
		"19 14 1 [0 1 2 3 4 5 6] 7", "14 28 2 [0 2 4] 3", "9 42 4 [0 4] 2", "5 57 4 [0] 1", "0 100 8 [0] 1",
		"20 14 1 [0 1 2 3 4 5 6] 1", "15 14 2 [0 2 4 6] 4",
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("profiles %q, want %q", got, want)
	}
}

// Instances are made where they are asked for, seen in the next scan, and
// destroyed; each call may be repeated.
func TestInstances(t *testing.T) {
	inv, d := migDevice(t, simgpu.A100)
	three, one := v1alpha1.MIGPlace{Profile: 9, Start: 4, Size: 4}, v1alpha1.MIGPlace{Profile: 19, Start: 2, Size: 1}
	for range 2 {
		must.Do(t, inv.CreateInstance(d.UUID, three))
		must.Do(t, inv.CreateInstance(d.UUID, one))
	}
	got := scan(t, inv).Devices[0].Instances
	if len(got) != 2 || got[0].MIGPlace != one || got[1].MIGPlace != three || got[0].UUID == "" || got[1].UUID == "" || got[0].UUID == got[1].UUID {
		t.Fatalf("instances %+v", got)
	}
	if err := inv.CreateInstance(d.UUID, v1alpha1.MIGPlace{Profile: 14, Start: 4, Size: 2}); !errors.Is(err, nvml.ERROR_INSUFFICIENT_RESOURCES) {
		t.Errorf("a place that is taken: %v", err)
	}
	for range 2 {
		must.Do(t, inv.DestroyInstance(d.UUID, three))
	}
	if got, err := inv.Instances(d.UUID); err != nil || len(got) != 1 || got[0].MIGPlace != one {
		t.Errorf("instances %+v, %v", got, err)
	}
}

// An instance that was left half made is finished, and one that somebody has cut
// up further is nobody's to give.
func TestInstanceHalfMade(t *testing.T) {
	inv, d := migDevice(t, simgpu.A100)
	u := must.Get(inv.unit(d.UUID))(t)
	_, r := u.handle.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: 14}, &nvml.GpuInstancePlacement{Start: 2, Size: 2})
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	at := v1alpha1.MIGPlace{Profile: 14, Start: 2, Size: 2}
	if got, err := inv.Instances(d.UUID); err != nil || len(got) != 1 || got[0] != (v1alpha1.MIGInstance{MIGPlace: at}) {
		t.Errorf("half made: %+v, %v", got, err)
	}
	must.Do(t, inv.CreateInstance(d.UUID, at))
	if got, err := inv.Instances(d.UUID); err != nil || len(got) != 1 || got[0].UUID == "" {
		t.Errorf("finished: %+v, %v", got, err)
	}
	must.Do(t, inv.DestroyInstance(d.UUID, at))

	gi, r := u.handle.CreateGpuInstanceWithPlacement(&nvml.GpuInstanceProfileInfo{Id: 14}, &nvml.GpuInstancePlacement{Start: 2, Size: 2})
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	half, r := gi.GetComputeInstanceProfileInfo(nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE, nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED)
	if r != nvml.SUCCESS {
		t.Fatal(r)
	}
	for range 2 {
		if _, r := gi.CreateComputeInstance(&half); r != nvml.SUCCESS {
			t.Fatal(r)
		}
		if got, err := inv.Instances(d.UUID); err != nil || len(got) != 1 || got[0].UUID != "" {
			t.Errorf("cut up: %+v, %v", got, err)
		}
	}
	must.Do(t, inv.DestroyInstance(d.UUID, at))
	if got, err := inv.Instances(d.UUID); err != nil || len(got) != 0 {
		t.Errorf("destroyed: %+v, %v", got, err)
	}
}

// A driver without the calls shows nothing to cut, and nothing is placed there.
func TestNoPlacements(t *testing.T) {
	inv, d := migDevice(t, simgpu.A100)
	inv.symbols[symbolPlace] = false
	now := scan(t, inv)
	if now.Devices[0].Profiles != nil || len(now.Usable()) != 0 {
		t.Errorf("%+v", now)
	}
	if d := now.Devices[0]; !d.Healthy || !strings.Contains(d.Reason, "they come with R470") {
		t.Errorf("nobody is told why: healthy %t, %q", d.Healthy, d.Reason)
	}
	if err := inv.CreateInstance(d.UUID, v1alpha1.MIGPlace{}); !errors.Is(err, device.ErrUnsupported) {
		t.Errorf("%v", err)
	}
}

// An event of one instance makes that one unhealthy, for as long as it is there: its
// neighbours and the device are well, and so is what is made in its place.
func TestInstanceIll(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("MIG needs root")
	}
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, MIG: true}}})
	inv := open(t, s, Options{})
	uuid := scan(t, inv).Devices[0].UUID
	first, second := v1alpha1.MIGPlace{Profile: 19, Start: 0, Size: 1}, v1alpha1.MIGPlace{Profile: 19, Start: 1, Size: 1}
	must.Do(t, inv.CreateInstance(uuid, first))
	must.Do(t, inv.CreateInstance(uuid, second))
	u := must.Get(inv.unit(uuid))(t)
	gi, found, err := inv.find(u, second)
	if err != nil || !found {
		t.Fatal(found, err)
	}
	info, _ := gi.GetInfo()
	must.Do(t, s.InstanceXid(uuid, 31, int(info.Id))) // a program's fault
	must.Do(t, s.InstanceXid(uuid, 48, int(info.Id)))
	event(t, inv)
	reasons := func() (device string, instances []string) {
		d := scan(t, inv).Devices[0]
		for _, i := range d.Instances {
			instances = append(instances, i.Reason)
		}
		return d.Reason, instances
	}
	if device, all := reasons(); device != "" || len(all) != 2 || all[0] != "" || !strings.Contains(all[1], "Xid 48") {
		t.Errorf("device %q, instances %q; want the second to be unhealthy", device, all)
	}
	must.Do(t, inv.DestroyInstance(uuid, second))
	reasons()
	must.Do(t, inv.CreateInstance(uuid, second))
	if device, all := reasons(); device != "" || len(all) != 2 || all[1] != "" {
		t.Errorf("made again: device %q, instances %q", device, all)
	}
	if len(inv.marks) != 0 {
		t.Errorf("marks %+v are left", inv.marks)
	}
	must.Do(t, s.Xid(uuid, 48))
	event(t, inv)
	if device, all := reasons(); !strings.Contains(device, "Xid 48") || all[0] != "" {
		t.Errorf("an event of the whole device: device %q, instances %q", device, all)
	}
}

// pendingMIG is the mode that the device has after its next reset.
func pendingMIG(t *testing.T, inv *Inventory, uuid string) int {
	t.Helper()
	u := must.Get(inv.unit(uuid))(t)
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
	out := must.Get(client.StdoutPipe())(t)
	must.Do(t, client.Start())
	buffer := make([]byte, 4096)
	for said := ""; !strings.Contains(said, "hold"); {
		n := must.Get(out.Read(buffer))(t)
		said += string(buffer[:n])
	}
	if err := inv.EnableMIG(uuid); err == nil || !strings.Contains(err.Error(), "does not switch it now") {
		t.Errorf("with a client: %v", err)
	}
	if got := pendingMIG(t, inv, uuid); got != nvml.DEVICE_MIG_DISABLE {
		t.Errorf("with a client: %d is pending", got)
	}
	must.Do(t, client.Process.Kill())
	_ = client.Wait()
	must.Do(t, inv.EnableMIG(uuid))
	if d := scan(t, inv).Devices[0]; d.MIG != v1alpha1.MIGEnabled || len(d.Profiles) == 0 {
		t.Errorf("afterwards: %+v", d)
	}
	must.Do(t, inv.EnableMIG(uuid))
}
