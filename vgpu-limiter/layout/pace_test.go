// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"
	"time"

	"vernier.dev/vernier/test/must"
)

func TestPaceFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "pace")
	for _, n := range []int{0, MaxDevices + 1} {
		if err := CreatePace(path, n); err == nil {
			t.Errorf("created a pace file for %d devices", n)
		}
	}
	must.Do(t, CreatePace(path, 2))
	if _, err := OpenPace(path, 1); err == nil {
		t.Error("opened a file for 2 devices as one for 1")
	}
	p := must.Get(OpenPace(path, 2))(t)
	p.Set(1, turnExample, time.Hour)
	p.SetPlain(0, 7)
	if !p.SetPlain(1, 13) || !p.SetPlain(0, 0) {
		t.Error("a file of this release has no plain quotas")
	}
	p.Damage()
	must.Do(t, p.Close())
	b, err := os.ReadFile(path)
	le := binary.LittleEndian
	first, second := b[paceDevicesOff:], b[paceDevicesOff+paceDeviceSize:]
	if err != nil || le.Uint64(second) != turnExample.word() || le.Uint64(second[paceValidOff:]) != uint64(time.Hour) ||
		le.Uint64(second[pacePlainOff:]) != 13 || le.Uint64(first) != 0 || le.Uint64(first[pacePlainOff:]) != 0 ||
		le.Uint64(b[pacePlainsOff:]) != 1<<1 || le.Uint64(b[paceDamagedOff:]) != 1 {
		t.Errorf("%v: the file reads %x", err, b)
	}
	if info, err := os.Stat(path); err != nil || info.Mode() != 0o644 {
		t.Errorf("mode %v, %v; want writable by nobody else", info.Mode(), err)
	}
}

// TestPaceFile_OfTheReleaseBefore: its containers go on to have turns, and know no plain
// quotas.
func TestPaceFile_OfTheReleaseBefore(t *testing.T) {
	path, le := filepath.Join(t.TempDir(), "pace"), binary.LittleEndian
	b := make([]byte, pace3Size)
	le.PutUint64(b, paceMagic)
	le.PutUint32(b[paceVersionOff:], 3)
	le.PutUint32(b[paceSizeOff:], pace3Size)
	le.PutUint32(b[paceCountOff:], 2)
	must.Do(t, os.WriteFile(path, b, 0o600))
	p := must.Get(OpenPace(path, 2))(t)
	p.Set(1, turnExample, time.Hour)
	p.Return(1, time.Second)
	p.Damage()
	if p.SetPlain(1, 13) {
		t.Error("it is said to have plain quotas")
	}
	must.Do(t, p.Close())
	b, err := os.ReadFile(path)
	second := b[paceDevicesOff+pace3DeviceSize:]
	if err != nil || le.Uint64(second) != turnExample.word() || le.Uint64(second[paceValidOff:]) != uint64(time.Hour) || le.Uint64(b[pacePlainsOff:]) != 0 || le.Uint64(b[paceDamagedOff:]) != 0 ||
		le.Uint64(second[paceReturnOff:]) != uint64(time.Second) || le.Uint64(b[paceDevicesOff+2*pace3DeviceSize:]) != 0 {
		t.Errorf("%v: the file reads %x", err, b)
	}
	le.PutUint32(b[paceVersionOff:], paceVersion)
	must.Do(t, os.WriteFile(path, b, 0o600))
	if _, err := OpenPace(path, 2); err == nil {
		t.Error("opened a file whose size isn't its version's")
	}
}

func TestReadActivity(t *testing.T) {
	path := filepath.Join(t.TempDir(), "counters")
	must.Do(t, CreateCounters(path, 2))
	f := must.Get(os.OpenFile(path, os.O_RDWR, 0))(t)
	defer func() { _ = f.Close() }()
	for offset, value := range map[int64]uint64{devPaidOff: 1, devBusyOff: 2, devThrottledOff: 3, devLastLaunchOff: 4, devLongestOff: 5, devWorkingOff: 6, devUsualOff: 7, devRefusalsOff: 8, devPeakOff: 9, devLaunchesOff: 10} {
		must.Get(f.WriteAt(binary.LittleEndian.AppendUint64(nil, value), countersDevicesOff+countersDeviceSize+offset))(t)
	}
	var got [2]Activity
	if err := ReadActivity(f, got[:]); err != nil || got != [2]Activity{{}, {PaidUntil: 1, Busy: 2, Throttled: 3, LastLaunch: 4, Longest: 5, WorkingUntil: 6, Usual: 7, Grown: Grown{8, 9, 3, 10}}} {
		t.Errorf("read %+v, %v", got, err)
	}
	must.Do(t, f.Truncate(100))
	if err := ReadActivity(f, got[:]); err == nil {
		t.Error("read a file that was cut short")
	}
}

// TestCalendar: a cell is of one interval, of none a calendar's length before or after it,
// and says no more than that it was filled.
func TestCalendar(t *testing.T) {
	var c Calendar
	const number = 7*CalendarCells + 3
	c.Charge(number, CalendarCell/2)
	for at, want := range map[uint64]time.Duration{number: CalendarCell / 2, number - CalendarCells: 0, number + CalendarCells: 0, number + 1: 0} {
		if got := c.Charged(at); got != want {
			t.Errorf("interval %d: %v, want %v", at, got, want)
		}
	}
	c[number%CalendarCells] |= 0xffff
	if got := c.Charged(number); got != CalendarCell {
		t.Errorf("%v of an interval of %v", got, CalendarCell)
	}
}
