// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"fmt"
	"strings"
	"testing"

	nvlib "github.com/NVIDIA/go-nvlib/pkg/nvlib/device"
	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/test/must"
)

func migGPU(t *testing.T, model string) (*Sim, nvml.Interface, nvml.Device) {
	t.Helper()
	needRoot(t, "MIG needs")
	s := New(t, Config{GPUs: []GPU{{Model: model, MIG: true}}})
	lib := open(t, s)
	return s, lib, device(t, lib, 0)
}

func profile(t *testing.T, d nvml.Device, number int) *nvml.GpuInstanceProfileInfo {
	t.Helper()
	info := value(d.GetGpuInstanceProfileInfo(number))(t)
	return &info
}

// instance makes a GPU instance with one compute instance over all of it.
func instance(t *testing.T, d nvml.Device, number int) (nvml.GpuInstance, nvml.ComputeInstance) {
	t.Helper()
	gi := value(d.CreateGpuInstance(profile(t, d, number)))(t)
	whole := map[int]int{
		nvml.GPU_INSTANCE_PROFILE_1_SLICE: nvml.COMPUTE_INSTANCE_PROFILE_1_SLICE,
		nvml.GPU_INSTANCE_PROFILE_2_SLICE: nvml.COMPUTE_INSTANCE_PROFILE_2_SLICE,
		nvml.GPU_INSTANCE_PROFILE_3_SLICE: nvml.COMPUTE_INSTANCE_PROFILE_3_SLICE,
		nvml.GPU_INSTANCE_PROFILE_4_SLICE: nvml.COMPUTE_INSTANCE_PROFILE_4_SLICE,
		nvml.GPU_INSTANCE_PROFILE_7_SLICE: nvml.COMPUTE_INSTANCE_PROFILE_7_SLICE,
	}
	info := value(gi.GetComputeInstanceProfileInfo(whole[number], nvml.COMPUTE_INSTANCE_ENGINE_PROFILE_SHARED))(t)
	ci := value(gi.CreateComputeInstance(&info))(t)
	return gi, ci
}

func TestMIGProfiles(t *testing.T) {
	for model, gb := range map[string][3]int{A100: {10, 40, 80}, H100: {10, 40, 80}, H200: {18, 71, 141}} {
		t.Run(model, func(t *testing.T) {
			_, lib, d := migGPU(t, model)
			tests := []struct {
				number     int
				id, slices uint32
				max        uint32
				starts     string
			}{
				{nvml.GPU_INSTANCE_PROFILE_1_SLICE, 19, 1, 7, "[{0 1} {1 1} {2 1} {3 1} {4 1} {5 1} {6 1}]"},
				{nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV1, 20, 1, 1, "[{0 1} {1 1} {2 1} {3 1} {4 1} {5 1} {6 1}]"},
				{nvml.GPU_INSTANCE_PROFILE_1_SLICE_REV2, 15, 1, 4, "[{0 2} {2 2} {4 2} {6 2}]"},
				{nvml.GPU_INSTANCE_PROFILE_2_SLICE, 14, 2, 3, "[{0 2} {2 2} {4 2}]"},
				{nvml.GPU_INSTANCE_PROFILE_3_SLICE, 9, 3, 2, "[{0 4} {4 4}]"},
				{nvml.GPU_INSTANCE_PROFILE_4_SLICE, 5, 4, 1, "[{0 4}]"},
				{nvml.GPU_INSTANCE_PROFILE_7_SLICE, 0, 7, 1, "[{0 8}]"},
			}
			for _, test := range tests {
				p := profile(t, d, test.number)
				places := value(d.GetGpuInstancePossiblePlacements(p))(t)
				if p.Id != test.id || p.SliceCount != test.slices || p.InstanceCount != test.max || fmt.Sprint(places) != test.starts {
					t.Errorf("profile %d: %+v %v", test.number, p, places)
				}
				n := value(d.GetGpuInstanceRemainingCapacity(p))(t)
				if n != int(test.max) {
					t.Errorf("profile %d: %d fit in an empty GPU, want %d", test.number, n, test.max)
				}
			}
			_, ret := d.GetGpuInstanceProfileInfo(nvml.GPU_INSTANCE_PROFILE_8_SLICE)
			want(t, ret, nvml.ERROR_NOT_SUPPORTED)
			wrapped := must.Get(nvlib.New(lib).NewDevice(d))(t)
			profiles := must.Get(wrapped.GetMigProfiles())(t)
			all := fmt.Sprintln(profiles)
			for i, slices := range []int{1, 3, 7} {
				if name := fmt.Sprintf("%dg.%dgb", slices, gb[i]); !strings.Contains(all, name) {
					t.Errorf("go-nvlib names no %s: %s", name, all)
				}
			}
		})
	}
}

func TestMIGPlacement(t *testing.T) {
	_, _, d := migGPU(t, H100)
	three, seven := profile(t, d, nvml.GPU_INSTANCE_PROFILE_3_SLICE), profile(t, d, nvml.GPU_INSTANCE_PROFILE_7_SLICE)
	two := profile(t, d, nvml.GPU_INSTANCE_PROFILE_2_SLICE)
	_, ret := d.CreateGpuInstanceWithPlacement(three, &nvml.GpuInstancePlacement{Start: 2, Size: 4})
	want(t, ret, nvml.ERROR_INVALID_ARGUMENT) // no such place
	upper, ret := d.CreateGpuInstanceWithPlacement(three, &nvml.GpuInstancePlacement{Start: 4, Size: 4})
	ok(t, ret)
	_, ret = d.CreateGpuInstanceWithPlacement(three, &nvml.GpuInstancePlacement{Start: 4, Size: 4})
	want(t, ret, nvml.ERROR_INSUFFICIENT_RESOURCES) // occupied
	_, ret = d.CreateGpuInstanceWithPlacement(two, &nvml.GpuInstancePlacement{Start: 4, Size: 2})
	want(t, ret, nvml.ERROR_INSUFFICIENT_RESOURCES) // overlaps
	_, ret = d.CreateGpuInstance(seven)
	want(t, ret, nvml.ERROR_INSUFFICIENT_RESOURCES)
	left := value(d.GetGpuInstanceRemainingCapacity(two))(t)
	if left != 2 {
		t.Errorf("%d 2g instances fit beside a 3g, want 2", left)
	}
	ok(t, upper.Destroy())
	whole, ret := d.CreateGpuInstance(seven)
	ok(t, ret)
	_, ret = d.CreateGpuInstance(seven)
	want(t, ret, nvml.ERROR_INSUFFICIENT_RESOURCES)
	ok(t, whole.Destroy())
	want(t, whole.Destroy(), nvml.ERROR_INVALID_ARGUMENT)
}

func TestMIGDevices(t *testing.T) {
	_, lib, d := migGPU(t, A100)
	gi, ci := instance(t, d, nvml.GPU_INSTANCE_PROFILE_3_SLICE)
	instance(t, d, nvml.GPU_INSTANCE_PROFILE_2_SLICE)
	want(t, gi.Destroy(), nvml.ERROR_IN_USE) // its compute instance first
	wrapped := must.Get(nvlib.New(lib).NewDevice(d))(t)
	devices := must.Get(wrapped.GetMigDevices())(t)
	var names []string
	for i, m := range devices {
		p := must.Get(m.GetProfile())(t)
		names = append(names, p.String())
		uuid := value(m.GetUUID())(t)
		same := value(lib.DeviceGetHandleByUUID(uuid))(t)
		if index, _ := same.GetIndex(); index != i || !strings.HasPrefix(uuid, "MIG-") {
			t.Errorf("%s is MIG device %d, not %d", uuid, index, i)
		}
		parent := value(same.GetDeviceHandleFromMigDeviceHandle())(t)
		if minor, _ := parent.GetMinorNumber(); minor != 0 {
			t.Errorf("parent %d", minor)
		}
	}
	if fmt.Sprint(names) != "[3g.40gb 2g.20gb]" {
		t.Errorf("devices %v", names)
	}
	memory := value(devices[0].GetMemoryInfo_v2())(t)
	if memory.Total != 40192<<20 {
		t.Errorf("3g.40gb has %d MiB", memory.Total>>20)
	}
	want(t, devices[0].SetMemoryLimits_v1("/", 0, 1), nvml.ERROR_NOT_SUPPORTED)
	before := value(devices[0].GetUUID())(t)
	ok(t, ci.Destroy())
	ok(t, gi.Destroy())
	instance(t, d, nvml.GPU_INSTANCE_PROFILE_3_SLICE)
	again := value(d.GetMigDeviceHandleByIndex(0))(t)
	if after, _ := again.GetUUID(); after == before {
		t.Errorf("%s kept its UUID when it was made again", after)
	}
}

func TestMIGMode(t *testing.T) {
	needRoot(t, "MIG needs")
	s := New(t, Config{GPUs: []GPU{{Model: H100}, {Model: T4}}})
	lib := open(t, s)
	d := device(t, lib, 0)
	_, ret := d.CreateGpuInstance(profile(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE))
	want(t, ret, nvml.ERROR_NOT_SUPPORTED) // mode off
	p := holding(t, s, "", "--alloc", "1")
	activation := value(d.SetMigMode(nvml.DEVICE_MIG_ENABLE))(t)
	want(t, activation, nvml.ERROR_IN_USE)
	current, pending, ret := d.GetMigMode()
	ok(t, ret)
	if current != nvml.DEVICE_MIG_DISABLE || pending != nvml.DEVICE_MIG_ENABLE {
		t.Errorf("mode %d, pending %d", current, pending)
	}
	p.kill(t)
	activation = value(d.SetMigMode(nvml.DEVICE_MIG_ENABLE))(t)
	ok(t, activation)
	_, ret = device(t, lib, 1).SetMigMode(nvml.DEVICE_MIG_ENABLE)
	want(t, ret, nvml.ERROR_NOT_SUPPORTED)
}

func TestCUDASeesItsInstance(t *testing.T) {
	s, _, d := migGPU(t, A100)
	gi, ci := instance(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE)
	p := holding(t, s, "", "--alloc-until-fail")
	p.has(t, "allocated mib=9728 free_mib=0")
	p.has(t, `name="NVIDIA A100-SXM4-80GB MIG 1g.10gb"`)
	want(t, ci.Destroy(), nvml.ERROR_IN_USE)
	instance(t, d, nvml.GPU_INSTANCE_PROFILE_1_SLICE)
	second := value(d.GetMigDeviceHandleByIndex(1))(t)
	uuid := value(second.GetUUID())(t)
	t.Setenv("CUDA_VISIBLE_DEVICES", uuid)
	holding(t, s, "", "--alloc", "9728").has(t, "ok=1") // the neighbour has its own memory
	p.kill(t)
	ok(t, ci.Destroy())
	ok(t, gi.Destroy())
}
