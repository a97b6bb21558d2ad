// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// Usage is what a container's processes have written into their counters. It is
// read word by word while they run on. Each figure is true, their sums may be
// apart by the calls that ran during the read. It is the tenants' word: good for
// views, never for a decision about anybody else.
type Usage struct {
	Devices   []DeviceUsage  // in the order of the limits
	Processes []ProcessUsage // by slot
	// MostProcesses is the most processes that have used CUDA at a time.
	MostProcesses int
}

// DeviceUsage is a container's use of one device.
type DeviceUsage struct {
	UsedBytes      uint64        // held by live processes, shared memory once
	PeakBytes      uint64        // most charged at a time, at most the limit
	MemoryRefusals uint64        // allocations refused for want of memory
	NeedBytes      uint64        // most charged at a refusal plus what was refused; 0 without one
	Busy           time.Duration // device time charged (none without a quota)
	Throttled      time.Duration // time that launches waited for the quota
	Launches       uint64        // launches measured (none without a quota)
}

// ProcessUsage is one process that uses CUDA.
type ProcessUsage struct {
	Slot int
	// PID is the process's number in its own PID namespace, as it says.
	PID int
	// HostPID is its number in the reader's PID namespace, as the kernel says;
	// 0 where the reader's namespace doesn't see it.
	HostPID int
	// UsedBytes per device.
	UsedBytes []uint64
	// Slowdowns of the first devices.
	Slowdowns []Slowdown
}

// CreateCounters puts counters for n devices, all zero and writable by every
// user, in place of whatever is at path. Processes of an earlier container go
// on with the file that they have.
func CreateCounters(path string, n int) error { return createCounters(path, n, allocate) }

// CreateSparseCounters is CreateCounters for a tmpfs that has room for them. The file has
// no pages yet but the first, and the others are charged to the processes that touch
// them first.
func CreateSparseCounters(path string, n int) error {
	return createCounters(path, n, (*os.File).Truncate)
}

func createCounters(path string, n int, extend func(*os.File, int64) error) error {
	if n < 1 || n > MaxDevices {
		return fmt.Errorf("%d devices: a container has 1 to %d", n, MaxDevices)
	}
	le := binary.LittleEndian
	header := make([]byte, countersDevicesOff)
	le.PutUint64(header, countersMagic)
	le.PutUint32(header[countersVersionOff:], countersVersion)
	le.PutUint32(header[countersSizeOff:], countersSize)
	le.PutUint32(header[countersDevsOff:], uint32(n))
	le.PutUint32(header[countersSlotsOff:], MaxProcesses)
	return replaceFile(path, header, countersSize, 0o666, extend)
}

// ReadUsage reads the counters at path. A process that has died no longer
// counts, whether or not another one has cleared its slot. Nor does one that
// has closed a file descriptor that isn't its own, the library's: its limit
// holds on, only this view loses it.
func ReadUsage(path string) (Usage, error) {
	f, err := OpenCounters(path)
	if err != nil {
		return Usage{}, err
	}
	defer func() { _ = f.Close() }()
	runtime.LockOSThread() // whose time is counted
	defer runtime.UnlockOSThread()
	began := threadTime()
	b := make([]byte, calendarOff) // the calendars, two thirds of it, say nothing of this
	if _, err := f.ReadAt(b, 0); err != nil && !errors.Is(err, io.EOF) {
		return Usage{}, err
	}
	u, err := decodeUsage(b)
	if err != nil {
		return Usage{}, err
	}
	live := u.Processes[:0]
	for _, p := range u.Processes {
		if threadTime()-began > longestRead {
			return Usage{}, errLocks
		}
		// The owner of a slot holds the lock on the byte at the slot's index;
		// its death drops the lock, and the kernel names it in our own PIDs.
		lock := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: int64(p.Slot), Len: 1}
		if err := unix.FcntlFlock(f.Fd(), unix.F_GETLK, &lock); err != nil {
			return Usage{}, fmt.Errorf("slot %d of %s: %w", p.Slot, path, err)
		}
		if lock.Type == unix.F_UNLCK {
			continue
		}
		p.HostPID = max(int(lock.Pid), 0)
		for i, used := range p.UsedBytes {
			u.Devices[i].UsedBytes += used
		}
		live = append(live, p)
	}
	u.Processes = live
	addUnowned(b, &u)
	return u, nil
}

// longestRead is how much processor time a look at the counters may take: each question
// about a lock walks the kernel's list of all that the tenant has on the file. Not the time
// on the clock, which a machine that is busy makes longer.
const longestRead = 100 * time.Millisecond

// threadTime is the processor time that the calling thread has used.
func threadTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t) // can't fail for this clock
	return time.Duration(t.Nano())
}

var errLocks = errors.New("counters: too many locks on the file; the container's processes have locked more of it than the library does")

// errImpossible is of figures that nothing but the tenant's own hand has written.
var errImpossible = errors.New("counters: figures that cannot be; the container has written into them")

// Check returns an error if there are figures that cannot be. By device, limits are those of
// memory in bytes, and peaks what was ever charged at most. The up is the time since the machine started. Such is memory
// far beyond the limit, or more time and events than there was time for. A little beyond is possible:
// figures are read one after the other, and a context that does not fit is charged for a moment.
func (u *Usage) Check(limits, peaks []uint64, up time.Duration) error {
	if len(limits) != len(u.Devices) || len(peaks) != len(u.Devices) {
		return fmt.Errorf("counters: %d devices, the container has %d", len(u.Devices), len(limits))
	}
	for i, d := range u.Devices {
		beyond := func(bytes, limit uint64) bool { return bytes > 2*limit+4<<30 }
		for _, p := range u.Processes {
			if beyond(p.UsedBytes[i], limits[i]) {
				return errImpossible
			}
		}
		if beyond(d.UsedBytes, limits[i]) || beyond(d.PeakBytes, peaks[i]) ||
			d.Busy > up || d.Busy < -up || d.Throttled < 0 || d.Throttled/MaxProcesses > up ||
			d.Launches > uint64(up) || d.MemoryRefusals > uint64(up) || d.NeedBytes > MaxMemoryBytes {
			return errImpossible
		}
	}
	return nil
}

var errDamaged = errors.New("counters: not a counters file, or damaged by the container; its CUDA calls are refused until it is created again")

// MarkDamaged marks the counters at path as damaged, as the library does when it finds that
// they have gone back. New processes refuse CUDA, and OpenCounters returns an error.
func MarkDamaged(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteAt(make([]byte, 8), 0)
	return errors.Join(err, f.Close())
}

// OpenCounters opens the counters at path, if they are as this package reads them. Another
// release's have other things at the same places.
func OpenCounters(path string) (*os.File, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		header := make([]byte, countersDevicesOff)
		if _, readErr := f.ReadAt(header, 0); readErr != nil && !errors.Is(readErr, io.EOF) {
			err = readErr
		} else {
			err = checkHeader(header, info.Size())
		}
	}
	if err != nil {
		_ = f.Close()
		return nil, err
	}
	return f, nil
}

// checkHeader says what is wrong with counters that begin so, in a file of this size.
func checkHeader(b []byte, size int64) error {
	le := binary.LittleEndian
	if le.Uint64(b) != countersMagic {
		return errDamaged
	}
	// First: another version may be of another size.
	if v := le.Uint32(b[countersVersionOff:]); v != countersVersion {
		return fmt.Errorf("counters: version %d, this release reads %d", v, countersVersion)
	}
	if size != countersSize || le.Uint32(b[countersSizeOff:]) != countersSize {
		return errDamaged
	}
	return nil
}

// decodeUsage reads the counters without their processes' liveness: every
// claimed slot is listed, and no device's UsedBytes is summed yet.
func decodeUsage(b []byte) (Usage, error) {
	le := binary.LittleEndian
	n := le.Uint32(b[countersDevsOff:])
	if n == 0 || n > MaxDevices || le.Uint32(b[countersSlotsOff:]) != MaxProcesses {
		return Usage{}, fmt.Errorf("counters: %d devices, want 1 to %d", n, MaxDevices)
	}
	u := Usage{Devices: make([]DeviceUsage, n)}
	for i := range u.Devices {
		d := b[countersDevicesOff+i*countersDeviceSize:]
		u.Devices[i] = DeviceUsage{
			PeakBytes:      le.Uint64(d[devPeakOff:]),
			MemoryRefusals: le.Uint64(d[devRefusalsOff:]),
			NeedBytes:      le.Uint64(d[devNeededOff:]),
			Busy:           time.Duration(le.Uint64(d[devBusyOff:])),
			Throttled:      time.Duration(le.Uint64(d[devThrottledOff:])),
			Launches:       le.Uint64(d[devLaunchesOff:]),
		}
	}
	u.MostProcesses = int(min(le.Uint32(b[countersUsedOff:]), MaxProcesses))
	for slot := range u.MostProcesses {
		s := b[slotsOff+slot*slotSize:]
		if le.Uint64(s[slotStateOff:])&1 == 0 {
			continue
		}
		p := ProcessUsage{Slot: slot, PID: int(int32(le.Uint32(s[slotPIDOff:]))), UsedBytes: make([]uint64, n)}
		for i := range p.UsedBytes {
			p.UsedBytes[i] = heldBytes(s[slotDevicesOff+i*slotDeviceSize:], s[slotLoneOff+i*slotDeviceSize:])
		}
		for i := range min(int(n), slowdownDevices) {
			p.Slowdowns = append(p.Slowdowns, slowdownOf(le.Uint64(s[slotSlowOff+8*i:])))
		}
		u.Processes = append(u.Processes, p)
	}
	return u, nil
}

// heldBytes is what a process holds by its two pairs of charges begun and held, of which
// one is of the release before, whose containers still run after an upgrade. A pair counts
// its charges in the low bits: what differs there is under way. The pairs are read one
// after the other, so with calls in between their sum may be less than nothing.
func heldBytes(pairs ...[]byte) uint64 {
	sum := uint64(0)
	for _, pair := range pairs {
		begun, held := binary.LittleEndian.Uint64(pair), binary.LittleEndian.Uint64(pair[slotHeldOff:])
		sum += (held - begun + 1<<15) >> 16
	}
	if sum &= bytesMask; sum > bytesMask/2 {
		return 0
	}
	return sum
}

// readAtMost reads a file of at most n bytes, and n of a longer one.
func readAtMost(path string, n int64) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	return io.ReadAll(io.LimitReader(f, n))
}
