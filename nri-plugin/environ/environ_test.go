// SPDX-License-Identifier: Apache-2.0

package environ_test

import (
	"slices"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/environ"
	"vernier.dev/vernier/nri-plugin/ledger"
)

func TestOf(t *testing.T) {
	pod := map[string]v1alpha1.Share{"a": {GPUs: 1, MemMiB: 3072}, "b": {GPUs: 2, MemMiB: 1024}}
	now := &device.Snapshot{Devices: []v1alpha1.DeviceStatus{{UUID: "a", Index: 0}, {UUID: "b", Index: 3}, {UUID: "c", Index: 5}}}
	one := []ledger.Grant{{UUID: "b", DeviceMem: 15360, Mem: 3072}}
	two := []ledger.Grant{{UUID: "a", DeviceMem: 81559, Mem: 1024, Core: 30}, {UUID: "c", DeviceMem: 81559, Mem: 1024, Core: 30}}
	for name, c := range map[string]struct {
		dialect string
		pod     map[string]v1alpha1.Share
		slices  []ledger.Grant
		want    []environ.Variable
	}{
		"gpushare": {"gpushare/GiB", pod, one, []environ.Variable{{"ALIYUN_COM_GPU_MEM_IDX", "3"}, {"ALIYUN_COM_GPU_MEM_POD", "5"},
			{"ALIYUN_COM_GPU_MEM_CONTAINER", "3"}, {"ALIYUN_COM_GPU_MEM_DEV", "15"}}},
		"gpushare in MiB, on two": {"gpushare/MiB", pod, two, []environ.Variable{{"ALIYUN_COM_GPU_MEM_IDX", "0,5"}, {"ALIYUN_COM_GPU_MEM_POD", "5120"},
			{"ALIYUN_COM_GPU_MEM_CONTAINER", "2048"}, {"ALIYUN_COM_GPU_MEM_DEV", "81559"}}},
		"hami": {"hami", pod, two, []environ.Variable{{"CUDA_DEVICE_MEMORY_LIMIT_0", "1024m"}, {"CUDA_DEVICE_MEMORY_LIMIT_1", "1024m"},
			{"CUDA_DEVICE_SM_LIMIT", "30"}}},
		"volcano, no quota":                   {"volcano", pod, one, []environ.Variable{{"CUDA_DEVICE_MEMORY_LIMIT_0", "3072m"}}},
		"kai":                                 {"kai", pod, one, []environ.Variable{{"GPU_PORTION", "0.20"}}},
		"a system that sets none":             {"koordinator", pod, one, nil},
		"ours":                                {"", pod, one, nil},
		"a pod whose shares cannot be read":   {"gpushare/GiB", nil, one, nil},
		"a container that has nothing at all": {"hami", pod, nil, nil},
	} {
		if got := environ.Of(c.dialect, c.pod, c.slices, now); !slices.Equal(got, c.want) {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
}
