// SPDX-License-Identifier: Apache-2.0

// Package layout owns the Go side of the files through which the node agent and a
// container's processes meet. The node agent writes the limits and pace files, which
// tenants only read. Tenants write the counters file, which the node agent reads, and of
// which it changes one word to put new limits in force (Resize). Only then it maps a
// tenant's file into memory, and a tenant that truncates it doesn't kill the agent.
// It never trusts a number in it as a bound. It decides nothing: the
// ledger says who may have how much.
//
// The C definition is include/vgpu_layout.h; a test compares every size and
// offset with it.
package layout

import "time"

const (
	// MaxDevices is the number of devices that one container can have.
	MaxDevices = 16
	// MaxProcesses is the number of processes of one container that can use
	// CUDA at a time; further ones are refused by the driver call.
	MaxProcesses = 1024
	// MaxContainerBytes is the longest container identity.
	MaxContainerBytes = containerBytes - 1
	// MaxMemoryBytes is the largest memory limit.
	MaxMemoryBytes = bytesMask

	// CalendarCells intervals of CalendarCell make up a container's calendar of one
	// device.
	CalendarCells = 16384
	CalendarCell  = 16384 * time.Nanosecond

	// CountersBytes is the size of a counters file.
	CountersBytes = countersSize

	// Folder is what a container sees of the limiter, mounted read-only; the
	// counters are mounted on it once more, writable.
	Folder       = "/usr/local/vernier"
	LibraryPath  = Folder + "/libvgpu.so"
	LimitsPath   = Folder + "/limits"
	CountersPath = Folder + "/counters"
	PacePath     = Folder + "/pace"
)

// Sizes and offsets of vgpu_layout.h, in bytes.
const (
	limitsMagic     = 0x314d494c55504756 // "VGPULIM1"
	limitsVersion   = 1
	countersMagic   = 0x314e544355504756 // "VGPUCTN1"
	countersVersion = 5

	containerBytes = 128
	uuidBytes      = 16

	limitsSize         = 672
	limitsVersionOff   = 8
	limitsSizeOff      = 12
	limitsChecksumOff  = 16
	limitsCountOff     = 24
	limitsReservedOff  = 28
	limitsContainerOff = 32
	limitsDevicesOff   = 160
	limitsDeviceSize   = 32
	limitsMemoryOff    = 16
	limitsCoreOff      = 24
	limitsFlagsOff     = 28
	limitsBurstOff     = 30
	flagMayBurst       = 1
	flagIdle           = 2

	countersSize       = 1675264
	countersVersionOff = 8
	countersSizeOff    = 12
	countersDevsOff    = 16
	countersSlotsOff   = 20
	countersUsedOff    = 24
	countersDevicesOff = 64
	countersDeviceSize = 128
	devRefusalsOff     = 8
	devPeakOff         = 24
	devUsualOff        = 40
	devNeededOff       = 48
	devWantedOff       = 56
	devBusyOff         = 72
	devThrottledOff    = 80
	devPaidOff         = 64
	devLaunchesOff     = 88
	devLastLaunchOff   = 96
	devLongestOff      = 104
	devWorkingOff      = 112
	devWaitingOff      = 120

	paceMagic      = 0x3145434150504756 // "VGPPACE1"
	paceVersion    = 4
	paceSize       = 1088
	paceVersionOff = 8
	paceSizeOff    = 12
	paceCountOff   = 16
	paceResizesOff = 20
	pacePlainsOff  = 24
	paceDamagedOff = 32
	paceDevicesOff = 64
	paceDeviceSize = 64
	paceValidOff   = 8
	paceReturnOff  = 16
	paceOthersOff  = 24
	pacePlainOff   = 32
	paceLimitOff   = 40
	paceReadyOff   = 56
	readsReady     = 2  // from which value of resizes on the library reads ready_bytes
	plainResized   = 16 // the first bit of plain_devices for limits in force
	limitCoreShift = 48
	limitCoreMask  = 0xff

	// Those of the release before, whose containers still run after an upgrade.
	pace3Size       = 576
	pace3DeviceSize = 32

	slotsOff       = 4096
	slotSize       = 576
	slotStateOff   = 0
	slotPIDOff     = 16
	slotSlowOff    = 24
	slotDevicesOff = 64
	slotLoneOff    = 320
	slotDeviceSize = 16
	slotHeldOff    = 8

	slowdownDevices = 5
	slowdownMost    = 10000

	exportsOff    = 593920
	exportSize    = 64
	exportWhatOff = 8
	exportOwnOff  = 16
	exportImpOff  = 24
	maxExports    = 512
	maxImporters  = 5
	exportKept    = 1 << 62

	calendarOff  = 626688
	calendarSize = 4 * CalendarCells

	bytesMask   = 1<<48 - 1
	oneChange   = 1 << 48
	secondLimit = 1 << 63
)
