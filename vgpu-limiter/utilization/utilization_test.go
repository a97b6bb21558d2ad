// SPDX-License-Identifier: Apache-2.0

package utilization

import (
	"maps"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// answers is a device with one answer. As go-nvml does, it slices an array that the
// first of NVML's two calls sized by the count of the second.
type answers struct {
	nvml.Device
	samples []nvml.ProcessUtilizationSample
	count   int
	ret     nvml.Return
}

func (a answers) GetProcessUtilization(uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
	return a.samples[:a.count:len(a.samples)], a.ret
}

func TestUtilizationOfProcesses(t *testing.T) {
	two := []nvml.ProcessUtilizationSample{
		{Pid: 7, TimeStamp: 20, SmUtil: 40}, {Pid: 8, TimeStamp: 30, SmUtil: 60},
	}
	for name, test := range map[string]struct {
		device answers
		busy   map[int]int
		seen   uint64
		err    error
	}{
		"both":     {answers{samples: two, count: 2}, map[int]int{7: 40, 8: 60}, 30, nil},
		"idle":     {answers{ret: nvml.ERROR_NOT_FOUND}, nil, 10, nil},
		"one more": {answers{samples: two[:1:1], count: 2, ret: nvml.ERROR_INSUFFICIENT_SIZE}, nil, 10, nil},
		"lost":     {answers{ret: nvml.ERROR_GPU_IS_LOST}, nil, 10, nvml.ERROR_GPU_IS_LOST},
	} {
		t.Run(name, func(t *testing.T) {
			busy, seen, err := OfProcesses(test.device, 10)
			if !maps.Equal(busy, test.busy) || seen != test.seen || err != test.err {
				t.Errorf("busy %v until %d, %v; want %v until %d, %v", busy, seen, err, test.busy, test.seen, test.err)
			}
		})
	}
}
