// SPDX-License-Identifier: Apache-2.0

package report

import (
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

func example() Report {
	const a, b = "GPU-00112233-4455-6677-8899-aabbccddeeff", "GPU-ffeeddcc-bbaa-9988-7766-554433221100"
	limits := layout.Limits{Devices: []layout.DeviceLimit{{UUID: a, Core: 30, MemoryBytes: 1 << 30}, {UUID: b, MemoryBytes: 5 << 20}}}
	usage := layout.Usage{MostProcesses: 2, Devices: []layout.DeviceUsage{
		{UsedBytes: 7, PeakBytes: 12 << 20, MemoryRefusals: 3, Busy: 600 * time.Millisecond, Throttled: 1400 * time.Millisecond, Launches: 42},
		{MemoryRefusals: 1},
	}}
	return New([]string{"train", ">x"}, 137, 2*time.Second, limits, usage, map[string]time.Duration{a: 500 * time.Millisecond})
}

// TestJSON: names and units that programs rely on.
func TestJSON(t *testing.T) {
	const want = `{"command":["train",">x"],"exit_code":137,"wall_ns":2000000000,"processes":2,"devices":[` +
		`{"uuid":"GPU-00112233-4455-6677-8899-aabbccddeeff","core_percent":30,"memory_limit_bytes":1073741824,"memory_used_bytes":7,"memory_peak_bytes":12582912,"memory_refusals":3,"busy_ns":600000000,"throttled_ns":1400000000,"launches":42,"others_ns":500000000},` +
		`{"uuid":"GPU-ffeeddcc-bbaa-9988-7766-554433221100","core_percent":0,"memory_limit_bytes":5242880,"memory_used_bytes":0,"memory_peak_bytes":0,"memory_refusals":1,"busy_ns":0,"throttled_ns":0,"launches":0,"others_ns":0}]}` + "\n"
	var out strings.Builder
	if err := example().JSON(&out); err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
}

func TestTable(t *testing.T) {
	const want = `vgpu-run: train >x: exit code 137 after 2s
DEVICE                                    CORE  DEVICE TIME  SHARE  WAITED  LAUNCHES  MEMORY  LIMIT     REFUSED
GPU-00112233-4455-6677-8899-aabbccddeeff  30%   600ms        30.0%  1.4s    42        12 MiB  1024 MiB  3
GPU-ffeeddcc-bbaa-9988-7766-554433221100  -     -            -      -       -         0 MiB   5 MiB     1
Processes that vgpu-run doesn't limit used 500ms of GPU-00112233-4455-6677-8899-aabbccddeeff (25%).
`
	var out strings.Builder
	if err := example().Table(&out); err != nil || out.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, out.String(), want)
	}
	out.Reset()
	r := example()
	r.Processes = 0
	if err := r.Table(&out); err != nil || !strings.Contains(out.String(), "No process used CUDA") {
		t.Errorf("%v\n%s", err, out.String())
	}
}
