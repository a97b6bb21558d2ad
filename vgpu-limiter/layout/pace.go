// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// MaxPeriod is the longest refill period.
const MaxPeriod = time.Second

// WholePeriod is the Part of a container that has no turns.
const WholePeriod = 255

// Turn is what the node side tells a container about one device.
type Turn struct {
	// Core is the percent of the device at which launches are paid for now, 0 to
	// 100. The library takes no less than the quota, and more only with MayBurst.
	Core uint32
	// Neighbours: other containers work on the device too, so what events
	// measure is not the container's own time alone.
	Neighbours bool
	// A refill period begins at every moment of CLOCK_MONOTONIC that is Phase
	// after a multiple of Period. Microseconds; Phase is less than Period.
	Phase, Period time.Duration
	// Part is for how much of each period, from its beginning, the device is the
	// container's: 1 to WholePeriod. That is launches at any time.
	Part uint32
	// OthersUntil is when the turn begins and what other containers have launched is to
	// be through (CLOCK_MONOTONIC): nothing is launched before.
	OthersUntil time.Duration
}

func (t Turn) word() uint64 {
	w := uint64(t.Core)&0x7f | uint64(t.Phase.Microseconds())&0xfffff<<8 | uint64(t.Period.Microseconds())&0xfffff<<28 |
		uint64(t.Part)&0xff<<48
	if t.Neighbours {
		w |= 1 << 7
	}
	return w
}

// CreatePace puts a pace file for n devices, readable by everybody and saying
// nothing yet, in place of whatever is at path. Processes of an earlier container
// go on with the file that they have.
func CreatePace(path string, n int) error {
	if n < 1 || n > MaxDevices {
		return fmt.Errorf("%d devices: a container has 1 to %d", n, MaxDevices)
	}
	le := binary.LittleEndian
	header := make([]byte, paceDevicesOff)
	le.PutUint64(header, paceMagic)
	le.PutUint32(header[paceVersionOff:], paceVersion)
	le.PutUint32(header[paceSizeOff:], paceSize)
	le.PutUint32(header[paceCountOff:], uint32(n))
	le.PutUint32(header[paceResizesOff:], readsReady)
	return replaceFile(path, header, paceSize, 0o644, allocate)
}

// strideOf is how far apart the devices of a pace file are, in bytes.
func strideOf(file []byte) int {
	if len(file) == pace3Size {
		return pace3DeviceSize
	}
	return paceDeviceSize
}

// Pace is an open pace file. It is mapped, which is safe because tenants can't
// write it: words change in place and are never seen half written.
type Pace struct {
	b []byte
	n int
}

// OpenPace opens a pace file for n devices to write it, of this release or of the one
// before. The latter has turns and no plain quotas. One writer at a time.
func OpenPace(path string, n int) (*Pace, error) {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	size, version := paceSize, uint32(paceVersion)
	info, err := f.Stat()
	if err == nil && info.Size() == pace3Size {
		size, version = pace3Size, 3
	}
	if err != nil || info.Size() != int64(size) {
		return nil, errors.Join(err, fmt.Errorf("pace: %s is not a pace file of this release; create it again", path))
	}
	b, err := unix.Mmap(int(f.Fd()), 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	if le.Uint64(b) != paceMagic || le.Uint32(b[paceVersionOff:]) != version || int(le.Uint32(b[paceCountOff:])) != n {
		_ = unix.Munmap(b)
		return nil, fmt.Errorf("pace: %s is not a pace file of this release for %d devices; create it again", path, n)
	}
	return &Pace{b: b, n: n}, nil
}

// Set says what holds for device i until the moment `until` of CLOCK_MONOTONIC.
func (p *Pace) Set(i int, t Turn, until time.Duration) {
	p.word(i, paceOthersOff).Store(uint64(t.OthersUntil))
	p.word(i, 0).Store(t.word())
	p.word(i, paceValidOff).Store(uint64(until))
}

// SetPlain says which quota holds on device i while nothing else is said, in percent: 1 to 100, or 0
// where it has no neighbours. It is for a container whose limits have no quota or all of the device.
// It is never out of date. It reports false where the container is of a release
// that knows no such word: it has no quota then.
func (p *Pace) SetPlain(i int, core uint32) bool {
	if strideOf(p.b) != paceDeviceSize {
		return false
	}
	p.word(i, pacePlainOff).Store(uint64(core))
	p.setQuotaBit(i, core != 0)
	return true
}

// setQuotaBit sets a bit of plain_devices, by which the library knows that it must ask.
func (p *Pace) setQuotaBit(bit int, set bool) {
	devices := (*atomic.Uint64)(unsafe.Pointer(&p.b[pacePlainsOff]))
	if set {
		devices.Or(1 << bit)
	} else {
		devices.And(^(uint64(1) << bit))
	}
}

// Damage tells the container's processes that their counters were overwritten: they refuse
// charges and limited launches from then on. Those of the release before don't know the word.
func (p *Pace) Damage() {
	if strideOf(p.b) == paceDeviceSize {
		(*atomic.Uint64)(unsafe.Pointer(&p.b[paceDamagedOff])).Store(1)
	}
}

// Return adds to how much of what device i was ever charged was others' work.
func (p *Pace) Return(i int, more time.Duration) {
	p.word(i, paceReturnOff).Add(uint64(more))
}

func (p *Pace) word(i, offset int) *atomic.Uint64 {
	stride := strideOf(p.b)
	_ = p.b[paceDevicesOff:][:p.n*stride][i*stride] // bounds
	return (*atomic.Uint64)(unsafe.Pointer(&p.b[paceDevicesOff+i*stride+offset]))
}

// Close unmaps the file. Its contents hold for as long as they say.
func (p *Pace) Close() error { return unix.Munmap(p.b) }

// Activity is what a container has on its way on one device.
type Activity struct {
	LastLaunch time.Duration // CLOCK_MONOTONIC; 0 for never
	PaidUntil  time.Duration // CLOCK_MONOTONIC
	Busy       time.Duration // device time charged so far
	Throttled  time.Duration // time that launches have waited so far
	Longest    time.Duration // what the longest launch of late may take
	Usual      time.Duration // what launches take on average, each by the time that it takes
	// WorkingUntil is when what was launched is through, as far as is known.
	WorkingUntil time.Duration // CLOCK_MONOTONIC
	// WaitingSince is since when the launch that has waited longest waits for its quota or turn; 0
	// where none does. A process that was killed may have left it.
	WaitingSince time.Duration // CLOCK_MONOTONIC
	Grown        Grown
}

// Grown are a device's figures that only grow, as long as nobody but the library writes them.
type Grown [4]uint64

// ReadActivity reads the devices of a counters file that stays open. It costs
// one system call, and like ReadUsage takes the tenants' word for it.
func ReadActivity(f *os.File, devices []Activity) error {
	b := make([]byte, MaxDevices*countersDeviceSize)
	if len(devices) > MaxDevices {
		return fmt.Errorf("%d devices: a container has 1 to %d", len(devices), MaxDevices)
	}
	if _, err := f.ReadAt(b[:len(devices)*countersDeviceSize], countersDevicesOff); err != nil {
		return err
	}
	le := binary.LittleEndian
	for i := range devices {
		d := b[i*countersDeviceSize:]
		word := func(offset int) time.Duration { return time.Duration(le.Uint64(d[offset:])) }
		devices[i] = Activity{
			LastLaunch:   word(devLastLaunchOff),
			PaidUntil:    word(devPaidOff),
			Busy:         word(devBusyOff),
			Throttled:    word(devThrottledOff),
			Usual:        word(devUsualOff),
			Longest:      word(devLongestOff),
			WorkingUntil: word(devWorkingOff),
			WaitingSince: word(devWaitingOff),
			Grown: Grown{le.Uint64(d[devRefusalsOff:]), le.Uint64(d[devPeakOff:]), le.Uint64(d[devThrottledOff:]),
				le.Uint64(d[devLaunchesOff:])},
		}
	}
	return nil
}

// Calendar is how much device time a container was charged for in each interval of
// CalendarCell of late, by the interval's number modulo CalendarCells.
type Calendar [CalendarCells]uint32

// ReadCalendar reads that of device i of a counters file that stays open.
func ReadCalendar(f *os.File, i int, c *Calendar) error {
	b := unsafe.Slice((*byte)(unsafe.Pointer(c)), calendarSize)
	_, err := f.ReadAt(b, calendarOff+int64(i)*calendarSize)
	return err
}

// Charged is how much that was in the interval with this number. It is no more than
// the interval's length, whatever the tenant says, or his neighbours would be
// returned what they have used.
func (c *Calendar) Charged(number uint64) time.Duration {
	cell := c[number%CalendarCells]
	if uint64(cell>>16) != number/CalendarCells&0xffff {
		return 0
	}
	return min(2*time.Duration(cell&0xffff), CalendarCell)
}

// Charge notes that so much was, of an even number of nanoseconds.
func (c *Calendar) Charge(number uint64, ns time.Duration) {
	c[number%CalendarCells] = uint32(number/CalendarCells&0xffff)<<16 | uint32(ns/2)
}
