// SPDX-License-Identifier: Apache-2.0

// Package utilization reads from NVML how busy each process keeps a GPU, for package pace.
// It keeps no state.
package utilization

import (
	"errors"
	"runtime"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// Symbol is what it needs of NVML.
const Symbol = "nvmlDeviceGetProcessUtilization"

// OfProcesses is the percent of NVML's last sample period, about a second, in which each
// process worked. It is by PID in our PID namespace, and has those that worked at
// all. It returns the time stamp to ask with the next time, so that no sample counts twice.
func OfProcesses(device nvml.Device, seen uint64) (map[int]int, uint64, error) {
	all, r := samples(device, seen)
	// Nobody has worked; or one more began between the two calls that samples is.
	if errors.Is(r, nvml.ERROR_NOT_FOUND) || errors.Is(r, nvml.ERROR_INSUFFICIENT_SIZE) {
		return nil, seen, nil
	}
	if r != nvml.SUCCESS {
		return nil, seen, r
	}
	busy, last := map[int]int{}, seen
	for _, sample := range all {
		// Some drivers fill entries that they have no process for with anything.
		if sample.Pid != 0 && sample.SmUtil <= 100 && sample.TimeStamp > seen {
			busy[int(sample.Pid)] = max(busy[int(sample.Pid)], int(sample.SmUtil))
			last = max(last, sample.TimeStamp)
		}
	}
	return busy, last, nil
}

// samples asks NVML for the count and then for that many samples. Where one more process
// has begun between the two, go-nvml (0.13.4-0) slices beyond its array and panics: that
// is NVML's own answer, ERROR_INSUFFICIENT_SIZE.
func samples(device nvml.Device, seen uint64) (all []nvml.ProcessUtilizationSample, r nvml.Return) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case runtime.Error:
			all, r = nil, nvml.ERROR_INSUFFICIENT_SIZE
		default:
			panic(p)
		}
	}()
	return device.GetProcessUtilization(seen)
}
