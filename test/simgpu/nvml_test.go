// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"fmt"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/test/must"
)

// open loads the machine's NVML with unmodified go-nvml.
func open(t *testing.T, s *Sim) nvml.Interface {
	t.Helper()
	lib := nvml.New(nvml.WithLibraryPath(s.NVML()))
	ok(t, lib.Init())
	t.Cleanup(func() { lib.Shutdown() })
	return lib
}

func ok(t *testing.T, ret nvml.Return) {
	t.Helper()
	want(t, ret, nvml.SUCCESS)
}

func want(t *testing.T, got, expected nvml.Return) {
	t.Helper()
	if got != expected {
		t.Fatalf("NVML answered %d, want %d", got, expected)
	}
}

// value takes what a call of NVML returns: value(d.GetUUID())(t) is the UUID.
func value[T any](v T, ret nvml.Return) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		ok(t, ret)
		return v
	}
}

func device(t *testing.T, lib nvml.Interface, index int) nvml.Device {
	t.Helper()
	return value(lib.DeviceGetHandleByIndex(index))(t)
}

func TestInventory(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{
		{Model: A100}, {Model: H100, NUMA: 1}, {Model: H200, NUMA: 1}, {Model: T4},
	}})
	lib := open(t, s)
	count, ret := lib.DeviceGetCount()
	ok(t, ret)
	tests := []struct {
		name         string
		mib          uint64
		arch         nvml.DeviceArchitecture
		major, minor int
		mig          nvml.Return
	}{
		{"NVIDIA A100-SXM4-80GB", 81920, nvml.DEVICE_ARCH_AMPERE, 8, 0, nvml.SUCCESS},
		{"NVIDIA H100 80GB HBM3", 81559, nvml.DEVICE_ARCH_HOPPER, 9, 0, nvml.SUCCESS},
		{"NVIDIA H200", 143771, nvml.DEVICE_ARCH_HOPPER, 9, 0, nvml.SUCCESS},
		{"Tesla T4", 15360, nvml.DEVICE_ARCH_TURING, 7, 5, nvml.ERROR_NOT_SUPPORTED},
	}
	if count != len(tests) {
		t.Fatalf("count %d", count)
	}
	seen := map[string]bool{}
	for i, test := range tests {
		d := device(t, lib, i)
		name := value(d.GetName())(t)
		arch := value(d.GetArchitecture())(t)
		major, minor, ret := d.GetCudaComputeCapability()
		ok(t, ret)
		memory := value(d.GetMemoryInfo_v2())(t)
		if name != test.name || arch != test.arch || major != test.major || minor != test.minor || memory.Total != test.mib<<20 {
			t.Errorf("device %d: %s arch %d cc %d.%d total %d", i, name, arch, major, minor, memory.Total)
		}
		if memory.Reserved+memory.Used+memory.Free != memory.Total || memory.Used != 0 {
			t.Errorf("device %d: memory does not add up: %+v", i, memory)
		}
		uuid := value(d.GetUUID())(t)
		if seen[uuid] || !strings.HasPrefix(uuid, "GPU-") || len(uuid) != 40 {
			t.Errorf("device %d: UUID %q", i, uuid)
		}
		seen[uuid] = true
		same := value(lib.DeviceGetHandleByUUID(uuid))(t)
		index := value(same.GetIndex())(t)
		if index != i {
			t.Errorf("UUID of device %d leads to %d", i, index)
		}
		pci, ret := d.GetPciInfo()
		ok(t, ret)
		id := text(pci.BusId[:])
		if id != fmt.Sprintf("00000000:%02X:00.0", pci.Bus) {
			t.Errorf("device %d: bus id %q, bus %#x", i, id, pci.Bus)
		}
		same = value(lib.DeviceGetHandleByPciBusId(id))(t)
		minorNumber, ret := same.GetMinorNumber()
		ok(t, ret)
		if minorNumber != i {
			t.Errorf("device %d: minor number %d", i, minorNumber)
		}
		_, _, ret = d.GetMigMode()
		want(t, ret, test.mig)
	}
	_, ret = lib.DeviceGetHandleByIndex(count)
	want(t, ret, nvml.ERROR_INVALID_ARGUMENT)
	_, ret = lib.DeviceGetHandleByUUID("GPU-00000000-0000-0000-0000-000000000000")
	want(t, ret, nvml.ERROR_NOT_FOUND)
}

func text(chars []int8) string {
	var b strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		b.WriteByte(byte(c))
	}
	return b.String()
}

func TestUUIDsFollowFromTheSeed(t *testing.T) {
	uuid := func(seed string) string {
		s := New(t, Config{Seed: seed, GPUs: []GPU{{Model: A100}}})
		st := must.Get(s.Status())(t)
		return st.Devices[0].UUID
	}
	if a, b := uuid("node-1"), uuid("node-1"); a != b {
		t.Errorf("one seed, two UUIDs: %s %s", a, b)
	}
	if a, b := uuid("node-1"), uuid("node-2"); a == b {
		t.Errorf("two seeds, one UUID: %s", a)
	}
}

// A driver is as old as its symbols: callers look a symbol up before they call.
func TestOlderDriverLacksNewerSymbols(t *testing.T) {
	tests := []struct {
		driver, symbol string
		has            bool
	}{
		{DriverNewest, "nvmlDeviceSetMemoryLimits_v1", true},
		{DriverNewest, "nvmlDeviceGetPciInfoExt", true},
		{Driver535, "nvmlDeviceSetMemoryLimits_v1", false},
		{Driver535, "nvmlDeviceGetMemoryLimits_v1", false},
		{Driver535, "nvmlDeviceGetPciInfoExt", false},
		{Driver535, "nvmlDeviceGetMemoryInfo_v2", true},
		{Driver535, "nvmlDeviceGetGpuInstancePossiblePlacements_v2", true},
	}
	for _, test := range tests {
		t.Run(test.driver+"/"+test.symbol, func(t *testing.T) {
			s := New(t, Config{Driver: test.driver, GPUs: []GPU{{Model: A100}}})
			lib := open(t, s)
			version := value(lib.SystemGetDriverVersion())(t)
			if version != test.driver {
				t.Errorf("driver version %s", version)
			}
			if err := lib.Extensions().LookupSymbol(test.symbol); (err == nil) != test.has {
				t.Errorf("lookup: %v", err)
			}
		})
	}
}

// Whatever is not simulated is there and says so: a lazily bound call to a
// missing symbol would end the process.
func TestUnsimulatedCallsAnswerNotSupported(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100}}})
	d := device(t, open(t, s), 0)
	_, ret := d.GetFanSpeed()
	want(t, ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetSupportedVgpus()
	want(t, ret, nvml.ERROR_NOT_SUPPORTED)
	_, ret = d.GetNumaNodeId()
	want(t, ret, nvml.ERROR_NOT_SUPPORTED)
}

func TestNoStateFileIsNoDriver(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100}}})
	library := s.NVML()
	t.Setenv("SIMGPU_STATE", s.State+".missing")
	want(t, nvml.New(nvml.WithLibraryPath(library)).Init(), nvml.ERROR_DRIVER_NOT_LOADED)
}

// Invariant 3 rests on this: a device whose node cannot be opened is not there.
func TestOnlyOpenableDevicesAreSeen(t *testing.T) {
	s := New(t, Config{GPUs: []GPU{{Model: A100, Count: 3}}})
	root := t.TempDir()
	t.Setenv("SIMGPU_ALL_DEVICES", "0")
	t.Setenv("SIMGPU_DEVROOT", root)
	lib := open(t, s)
	count := func() int {
		n := value(lib.DeviceGetCount())(t)
		return n
	}
	if n := count(); n != 0 {
		t.Fatalf("%d devices without nodes", n)
	}
	touch(t, root, "dev/nvidia1")
	if n := count(); n != 1 {
		t.Fatalf("%d devices with one node", n)
	}
	minor, ret := device(t, lib, 0).GetMinorNumber()
	ok(t, ret)
	if minor != 1 {
		t.Errorf("the one device is %d", minor)
	}
	st := must.Get(s.Status())(t)
	_, ret = lib.DeviceGetHandleByUUID(st.Devices[0].UUID)
	want(t, ret, nvml.ERROR_NOT_FOUND)
}
