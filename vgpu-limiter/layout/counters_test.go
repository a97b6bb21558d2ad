// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"encoding/binary"
	"errors"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

func TestNewCounters(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters")
	for _, n := range []int{0, -1, MaxDevices + 1} {
		if err := CreateCounters(path, n); err == nil {
			t.Errorf("created counters for %d devices", n)
		}
	}
	for _, n := range []int{MaxDevices, 2} {
		must.Do(t, CreateCounters(path, n))
		u, err := ReadUsage(path)
		if err != nil || !reflect.DeepEqual(u, Usage{Devices: make([]DeviceUsage, n)}) {
			t.Errorf("new counters read as %+v, %v", u, err)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o666 || info.Size() != countersSize {
		t.Errorf("mode %v, %d bytes, %v; want writable for all, %d bytes", info.Mode(), info.Size(), err, countersSize)
	}
}

// TestUsageOfAnotherRelease: an earlier release's counters, which may be shorter, are
// called that, and not damaged.
func TestUsageOfAnotherRelease(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters")
	must.Do(t, CreateCounters(path, 1))
	b := must.Get(os.ReadFile(path))(t)
	binary.LittleEndian.PutUint32(b[countersVersionOff:], countersVersion-1)
	binary.LittleEndian.PutUint32(b[countersSizeOff:], countersSize/2)
	for _, size := range []int{countersSize / 2, countersSize} {
		must.Do(t, os.WriteFile(path, b[:size], 0o600))
		if _, err := ReadUsage(path); err == nil || errors.Is(err, errDamaged) {
			t.Errorf("%d bytes: %v", size, err)
		}
		if f, err := OpenCounters(path); err == nil {
			_ = f.Close()
			t.Errorf("opened %d bytes", size)
		}
	}
}

// TestUsage reads a slot whose owner holds no lock (dead): listed by the
// decoder, not counted by ReadUsage. Live owners are tested with the library.
func TestUsage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters")
	must.Do(t, CreateCounters(path, 2))
	b := must.Get(os.ReadFile(path))(t)
	le := binary.LittleEndian
	le.PutUint32(b[countersUsedOff:], 4)
	slot := b[slotsOff+3*slotSize:]
	le.PutUint64(slot[slotStateOff:], 5)
	le.PutUint32(slot[slotPIDOff:], 77)
	le.PutUint64(slot[slotSlowOff+8:], 9<<32|300<<16|150)
	// One thread has charged 8192, another has uncharged half of that and is at work.
	lone, device := slot[slotLoneOff+slotDeviceSize:], slot[slotDevicesOff+slotDeviceSize:]
	le.PutUint64(lone, 3)
	le.PutUint64(lone[slotHeldOff:], 8192<<16+3)
	le.PutUint64(device, 70001)
	le.PutUint64(device[slotHeldOff:], 1<<64-4096<<16+70000)
	// More uncharged than charged: read while both went on.
	le.PutUint64(slot[slotDevicesOff+slotHeldOff:], 1<<64-1<<16)
	device = b[countersDevicesOff+countersDeviceSize:]
	le.PutUint64(device[devRefusalsOff:], 1)
	le.PutUint64(device[devPeakOff:], 5)
	le.PutUint64(device[devNeededOff:], 6)
	le.PutUint64(device[devBusyOff:], 2)
	le.PutUint64(device[devThrottledOff:], 3)
	le.PutUint64(device[devLaunchesOff:], 4)

	want := Usage{
		MostProcesses: 4,
		Devices:       []DeviceUsage{{}, {PeakBytes: 5, MemoryRefusals: 1, NeedBytes: 6, Busy: 2 * time.Nanosecond, Throttled: 3, Launches: 4}},
		Processes:     []ProcessUsage{{Slot: 3, PID: 77, UsedBytes: []uint64{0, 4096}, Slowdowns: []Slowdown{{}, {Ratio: 1.5, Part: 0.3, At: 9 * time.Second}}}},
	}
	if got, err := decodeUsage(b); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("decoded %+v, %v; want %+v", got, err, want)
	}
	must.Do(t, os.WriteFile(path, b, 0o666))
	want.Processes = nil
	if got, err := ReadUsage(path); err != nil || len(got.Processes) != 0 || !reflect.DeepEqual(got.Devices, want.Devices) {
		t.Errorf("read %+v, %v; want %+v", got, err, want)
	}
}

func TestUsageRefusesDamage(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters")
	must.Do(t, CreateCounters(path, 1))
	good := must.Get(os.ReadFile(path))(t)
	read := func(b []byte) error {
		must.Do(t, os.WriteFile(path, b, 0o600))
		_, err := ReadUsage(path)
		return err
	}
	for _, size := range []int{0, 1, slotsOff, len(good) - 1} {
		if read(good[:size]) == nil {
			t.Errorf("accepted when cut to %d bytes", size)
		}
	}
	if read(append(append([]byte(nil), good...), 0)) == nil {
		t.Error("accepted with a byte more")
	}
	for _, off := range []int{0, countersVersionOff, countersSizeOff, countersDevsOff, countersSlotsOff} {
		b := append([]byte(nil), good...)
		b[off] ^= 0x40
		if read(b) == nil {
			t.Errorf("accepted with byte %d changed", off)
		}
	}
}

// FuzzDecodeUsage: whatever a tenant writes, the reader neither fails hard nor
// lists more than there can be.
func FuzzDecodeUsage(f *testing.F) {
	f.Add(uint32(1), uint32(2), uint64(3), uint64(5<<48|7))
	for _, devices := range []uint32{0, MaxDevices, MaxDevices + 1, math.MaxUint32} {
		for _, used := range []uint32{0, MaxProcesses, MaxProcesses + 1, math.MaxUint32} {
			f.Add(devices, used, uint64(1), uint64(math.MaxUint64))
		}
	}
	f.Fuzz(func(t *testing.T, devices, used uint32, state, held uint64) {
		b := make([]byte, calendarOff)
		le := binary.LittleEndian
		le.PutUint32(b[countersDevsOff:], devices)
		le.PutUint32(b[countersSlotsOff:], MaxProcesses)
		le.PutUint32(b[countersUsedOff:], used)
		for slot := range MaxProcesses {
			s := b[slotsOff+slot*slotSize:]
			le.PutUint64(s[slotStateOff:], state)
			le.PutUint64(s[slotDevicesOff+slotHeldOff:], held)
		}
		u, err := decodeUsage(b)
		if err == nil && (len(u.Processes) > MaxProcesses || len(u.Devices) > MaxDevices) {
			t.Fatalf("%d processes, %d devices", len(u.Processes), len(u.Devices))
		}
	})
}

// A need is a figure of the tenant's: no more than can be charged.
func TestCheckNeed(t *testing.T) {
	for need, good := range map[uint64]bool{0: true, MaxMemoryBytes: true, MaxMemoryBytes + 1: false, math.MaxUint64: false} {
		u := Usage{Devices: []DeviceUsage{{NeedBytes: need}}}
		if err := u.Check([]uint64{1}, []uint64{1}, time.Hour); (err == nil) != good {
			t.Errorf("%d: %v", need, err)
		}
	}
}
