// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

var (
	turnExample = Turn{Core: 100, Neighbours: true, Phase: 123 * time.Millisecond, Period: time.Second, Part: 77}
	turnWord    = fmt.Sprintf("UINT64_C(%d)", turnExample.word())
)

// TestMatchesC compiles a C program that prints what the compiler makes of
// vgpu_layout.h, and compares it with this package's constants.
func TestMatchesC(t *testing.T) {
	table := []struct {
		c    string
		want int64
	}{
		{"VGPU_MAX_DEVICES", MaxDevices},
		{"VGPU_SLOTS", MaxProcesses},
		{"VGPU_LIMITS_MAGIC", limitsMagic},
		{"VGPU_LIMITS_VERSION", limitsVersion},
		{"VGPU_COUNTERS_MAGIC", countersMagic},
		{"VGPU_COUNTERS_VERSION", countersVersion},
		{"VGPU_CONTAINER_BYTES", containerBytes},
		{"VGPU_UUID_BYTES", uuidBytes},
		{"VGPU_BYTES_MASK", bytesMask},
		{"sizeof(struct vgpu_limits)", limitsSize},
		{"offsetof(struct vgpu_limits, magic)", 0},
		{"offsetof(struct vgpu_limits, version)", limitsVersionOff},
		{"offsetof(struct vgpu_limits, size)", limitsSizeOff},
		{"offsetof(struct vgpu_limits, checksum)", limitsChecksumOff},
		{"offsetof(struct vgpu_limits, device_count)", limitsCountOff},
		{"offsetof(struct vgpu_limits, reserved)", limitsReservedOff},
		{"offsetof(struct vgpu_limits, container)", limitsContainerOff},
		{"offsetof(struct vgpu_limits, device)", limitsDevicesOff},
		{"sizeof(struct vgpu_limits_device)", limitsDeviceSize},
		{"offsetof(struct vgpu_limits_device, uuid)", 0},
		{"offsetof(struct vgpu_limits_device, memory_bytes)", limitsMemoryOff},
		{"offsetof(struct vgpu_limits_device, core_percent)", limitsCoreOff},
		{"offsetof(struct vgpu_limits_device, flags)", limitsFlagsOff},
		{"offsetof(struct vgpu_limits_device, burst_percent)", limitsBurstOff},
		{"VGPU_MAY_BURST", flagMayBurst},
		{"VGPU_PACE_MAGIC", paceMagic},
		{"VGPU_PACE_VERSION", paceVersion},
		{"VGPU_PERIOD_MAX_NS", int64(MaxPeriod)},
		{"sizeof(struct vgpu_pace)", paceSize},
		{"offsetof(struct vgpu_pace, version)", paceVersionOff},
		{"offsetof(struct vgpu_pace, size)", paceSizeOff},
		{"offsetof(struct vgpu_pace, device_count)", paceCountOff},
		{"offsetof(struct vgpu_pace, device)", paceDevicesOff},
		{"sizeof(struct vgpu_pace_device)", paceDeviceSize},
		{"offsetof(struct vgpu_pace_device, turn)", 0},
		{"offsetof(struct vgpu_pace_device, valid_until)", paceValidOff},
		{"offsetof(struct vgpu_pace_device, returned_ns)", paceReturnOff},
		{"offsetof(struct vgpu_pace_device, others_until)", paceOthersOff},
		{"offsetof(struct vgpu_pace_device, plain_core)", pacePlainOff},
		{"offsetof(struct vgpu_pace_device, limit)", paceLimitOff},
		{"sizeof(((struct vgpu_pace_device *)0)->limit)", 16},
		{"offsetof(struct vgpu_pace_device, ready_bytes)", paceReadyOff},
		{"offsetof(struct vgpu_pace, resizes)", paceResizesOff},
		{"VGPU_LIMIT_CORE(UINT64_C(77) << 48)", 77 << limitCoreShift >> 48},
		{"VGPU_LIMIT_CORE(~UINT64_C(0))", limitCoreMask},
		{"VGPU_HIGH_ONE", oneChange},
		{"VGPU_SECOND_LIMIT == UINT64_C(1) << 63", secondLimit >> 63},
		{"offsetof(struct vgpu_pace, plain_devices)", pacePlainsOff},
		{"offsetof(struct vgpu_pace, damaged)", paceDamagedOff},
		{"VGPU_TURN_CORE(" + turnWord + ")", int64(turnExample.Core)},
		{"VGPU_TURN_NEIGHBOURS(" + turnWord + ")", 1},
		{"VGPU_TURN_PHASE_NS(" + turnWord + ")", int64(turnExample.Phase)},
		{"VGPU_TURN_PERIOD_NS(" + turnWord + ")", int64(turnExample.Period)},
		{"VGPU_TURN_PART(" + turnWord + ")", int64(turnExample.Part)},
		{"VGPU_TURN_PART(~UINT64_C(0))", WholePeriod},
		{"sizeof(struct vgpu_counters)", countersSize},
		{"offsetof(struct vgpu_counters_header, version)", countersVersionOff},
		{"offsetof(struct vgpu_counters_header, size)", countersSizeOff},
		{"offsetof(struct vgpu_counters_header, device_count)", countersDevsOff},
		{"offsetof(struct vgpu_counters_header, slot_count)", countersSlotsOff},
		{"offsetof(struct vgpu_counters_header, slots_used)", countersUsedOff},
		{"offsetof(struct vgpu_counters_header, device)", countersDevicesOff},
		{"sizeof(struct vgpu_counters_device)", countersDeviceSize},
		{"offsetof(struct vgpu_counters_device, memory)", 0},
		{"offsetof(struct vgpu_counters_device, memory_refusals)", devRefusalsOff},
		{"offsetof(struct vgpu_counters_device, memory_peak)", devPeakOff},
		{"offsetof(struct vgpu_counters_device, needed)", devNeededOff},
		{"offsetof(struct vgpu_counters_device, wanted)", devWantedOff},
		{"offsetof(struct vgpu_counters_device, busy_ns)", devBusyOff},
		{"offsetof(struct vgpu_counters_device, throttled_ns)", devThrottledOff},
		{"offsetof(struct vgpu_counters_device, launches)", devLaunchesOff},
		{"offsetof(struct vgpu_counters_device, paid_until)", devPaidOff},
		{"offsetof(struct vgpu_counters_device, last_launch)", devLastLaunchOff},
		{"offsetof(struct vgpu_counters_device, longest_ns)", devLongestOff},
		{"offsetof(struct vgpu_counters_device, usual_ns)", devUsualOff},
		{"offsetof(struct vgpu_counters_device, working_until)", devWorkingOff},
		{"offsetof(struct vgpu_counters_device, waiting_since)", devWaitingOff},
		{"offsetof(struct vgpu_counters, slot)", slotsOff},
		{"offsetof(struct vgpu_counters, calendar)", calendarOff},
		{"sizeof(struct vgpu_calendar)", calendarSize},
		{"VGPU_CELLS", CalendarCells},
		{"VGPU_CELL_NS", int64(CalendarCell)},
		{"sizeof(struct vgpu_slot)", slotSize},
		{"offsetof(struct vgpu_slot, state)", slotStateOff},
		{"offsetof(struct vgpu_slot, pid)", slotPIDOff},
		{"offsetof(struct vgpu_slot, slowdown)", slotSlowOff},
		{"VGPU_SLOWDOWN_DEVICES", slowdownDevices},
		{"VGPU_SLOWDOWN_MOST", slowdownMost},
		{"offsetof(struct vgpu_slot, device)", slotDevicesOff},
		{"offsetof(struct vgpu_slot, lone)", slotLoneOff},
		{"sizeof(struct vgpu_slot_device)", slotDeviceSize},
		{"offsetof(struct vgpu_slot_device, held)", slotHeldOff},
		{"offsetof(struct vgpu_counters, exported)", exportsOff},
		{"sizeof(struct vgpu_export)", exportSize},
		{"offsetof(struct vgpu_export, what)", exportWhatOff},
		{"offsetof(struct vgpu_export, owner)", exportOwnOff},
		{"offsetof(struct vgpu_export, importer)", exportImpOff},
		{"VGPU_EXPORTS", maxExports},
		{"VGPU_IMPORTERS", maxImporters},
		{"VGPU_KEPT", exportKept},
	}
	var source strings.Builder
	source.WriteString("#include \"vgpu_layout.h\"\n#include <stddef.h>\n#include <stdio.h>\nint main(void) {\n")
	for _, row := range table {
		fmt.Fprintf(&source, "printf(\"%%lld\\n\", (long long)(%s));\n", row.c)
	}
	source.WriteString("return 0; }\n")
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "abi.c"), []byte(source.String()), 0o600))
	build := exec.Command("gcc", "-std=c11", "-I../include", "-o", filepath.Join(dir, "abi"), filepath.Join(dir, "abi.c"))
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	out := must.Get(exec.Command(filepath.Join(dir, "abi")).Output())(t)
	lines := strings.Fields(string(out))
	if len(lines) != len(table) {
		t.Fatalf("%d values, want %d", len(lines), len(table))
	}
	for i, row := range table {
		if lines[i] != fmt.Sprint(row.want) {
			t.Errorf("%s is %s in C and %d in Go", row.c, lines[i], row.want)
		}
	}
}
