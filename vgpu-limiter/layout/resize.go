// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"
)

// InfeasibleError is returned where a container uses more memory of a device than it would
// have. Nothing has changed.
type InfeasibleError struct {
	UUID string
	// UsedBytes are charged to the container. While any process of it lives, they include
	// those of processes that have ended since the library last looked for such.
	UsedBytes uint64
	// LimitBytes is the limit that was asked for.
	LimitBytes uint64
}

func (e *InfeasibleError) Error() string {
	return fmt.Sprintf("device %s: %d MiB are in use, more than the new limit of %d MiB; free memory first, or ask for at least as much",
		e.UUID, (e.UsedBytes+1<<20-1)>>20, e.LimitBytes>>20)
}

// ErrOlderLibrary is returned for containers whose library copies the limits when it starts.
var ErrOlderLibrary = errors.New("the container's limiter is of a release that can't change limits; start the container again")

var errBusy = errors.New("counters: the total never rested; the container writes into it")

// InForce reads the limits of a container that are in force: those of its limits file, or
// what Resize has put in their place. While a Resize is under way, or was interrupted, it
// returns the larger amounts of before and after.
func InForce(limits, pace string) (Limits, error) {
	l, err := ReadFile(limits)
	if err != nil {
		return Limits{}, err
	}
	p, err := OpenPace(pace, len(l.Devices))
	if err != nil {
		return Limits{}, err
	}
	defer func() { _ = p.Close() }()
	for i, d := range l.Devices {
		l.Devices[i] = p.InForce(i, d)
	}
	return l, nil
}

// InForce is what is in force of device i, of which the limits file says file.
func (p *Pace) InForce(i int, file DeviceLimit) DeviceLimit {
	if strideOf(p.b) != paceDeviceSize {
		return file
	}
	first, second := limitOf(p.limit(i, 0).Load(), file), limitOf(p.limit(i, 1).Load(), file)
	file.Core, file.MemoryBytes = max(first.Core, second.Core), max(first.MemoryBytes, second.MemoryBytes)
	if first.Core == 0 || second.Core == 0 {
		file.Core = 0 // no quota
	}
	return file
}

// Resized reports whether device i has a limit of memory in place of its limits file's, and
// how many bytes. It is the larger one while a Resize is under way.
func (p *Pace) Resized(i int) (uint64, bool) {
	inForce := p.InForce(i, DeviceLimit{})
	return inForce.MemoryBytes, inForce.MemoryBytes != 0
}

// limitOf is what one of the two words says, in place of the limits file.
func limitOf(word uint64, file DeviceLimit) DeviceLimit {
	if bytes := word & bytesMask; bytes != 0 {
		file.MemoryBytes = bytes
	}
	if core := uint32(word>>limitCoreShift) & limitCoreMask; core != 0 {
		file.Core = core
	}
	return file
}

func (p *Pace) limit(i int, which uint64) *atomic.Uint64 {
	return p.word(i, paceLimitOff+8*int(which))
}

// Resize puts new limits of one device in force in a running container. The paths are those
// of its limits, counters and pace files.
//
// The device is that of to.UUID. Its Core is 1 to 100 percent, its MemoryBytes at most
// MaxMemoryBytes. For both, 0 stands for the amount of the limits file. MayBurst can't change.
//
// When Resize returns nil, no memory is charged beyond the new limit any more. From the next
// refill period on, launches are paid for at the new percentage.
//
// It returns an *InfeasibleError where more memory is in use than a lower limit allows, and
// ErrOlderLibrary. With any error the limits in force are those of before.
//
// A process that is killed within Resize leaves either the old limits in force or the new
// ones, core and memory together. InForce returns the larger until another call returns nil.
// So a caller repeats the call, and keeps nothing for that.
//
// The caller makes one call at a time for a container. Tenants could hold a lock on these files.
func Resize(limits, counters, pace string, to DeviceLimit) error {
	l, err := ReadFile(limits)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(l.Devices, func(d DeviceLimit) bool { return d.UUID == to.UUID })
	if i < 0 {
		return fmt.Errorf("device %s: the container has no share of it", to.UUID)
	}
	if to.Core > 100 || to.MemoryBytes > MaxMemoryBytes {
		return fmt.Errorf("device %s: core of %d percent, memory of %d bytes, want 0 to 100, 0 to %d", to.UUID, to.Core, to.MemoryBytes, uint64(MaxMemoryBytes))
	}
	p, err := OpenPace(pace, len(l.Devices))
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	if strideOf(p.b) != paceDeviceSize || binary.LittleEndian.Uint32(p.b[paceResizesOff:]) == 0 {
		return ErrOlderLibrary
	}
	file := l.Devices[i]
	word := to.MemoryBytes | uint64(to.Core)<<limitCoreShift
	isQuota := func(word uint64) bool { return limitOf(word, file).Core%100 != 0 }
	unlimited := !isQuota(0) // by its limits file: its library asks only where the bit is set
	if unlimited && isQuota(word) {
		p.setQuotaBit(plainResized+i, true)
	}
	if p.limit(i, 0).Load() != word || p.limit(i, 1).Load() != word {
		err = p.commit(counters, i, file, word, 0)
		if _, infeasible := errors.AsType[*InfeasibleError](err); infeasible {
			if left := leftTotal(counters, i); left != 0 {
				err = p.commit(counters, i, file, word, left)
			}
		}
	}
	p.setQuotaBit(plainResized+i, unlimited && (isQuota(p.limit(i, 0).Load()) || isQuota(p.limit(i, 1).Load())))
	return err
}

// commitTries bounds how often the total may change under the node side's hand.
const commitTries = 1 << 20

// commit puts a limit in force by the compare-and-swap of the total that finds it to be within
// the limit, or to be `left`. The total names which of two words is in force. That word
// does not change while it is in force, so a charge that has loaded both succeeds only then.
func (p *Pace) commit(counters string, i int, file DeviceLimit, word, left uint64) error {
	return withTotal(counters, i, func(total *atomic.Uint64) error { return p.swap(total, i, file, word, left) })
}

func (p *Pace) swap(total *atomic.Uint64, i int, file DeviceLimit, word, left uint64) error {
	before, after := p.InForce(i, file), limitOf(word, file)
	for range commitTries {
		seen := total.Load()
		which := seen >> 63
		if used := seen & bytesMask; seen != left && after.MemoryBytes < before.MemoryBytes && used > after.MemoryBytes {
			p.limit(i, 1-which).Store(p.limit(i, which).Load())
			return &InfeasibleError{UUID: file.UUID, UsedBytes: used, LimitBytes: after.MemoryBytes}
		}
		p.limit(i, 1-which).Store(word)
		step()
		if total.CompareAndSwap(seen, (seen+oneChange)&^secondLimit|^seen&secondLimit) {
			step()
			p.limit(i, which).Store(word)
			return nil
		}
	}
	which := total.Load() >> 63
	p.limit(i, 1-which).Store(p.limit(i, which).Load())
	return errBusy
}

// leftTotal is the total's word where no process lives that can have charged any of it: the
// first one to come takes it off before it charges. 0: one may live, or memory is shared by
// descriptors, which outlive processes.
func leftTotal(counters string, i int) uint64 {
	f, err := OpenCounters(counters)
	if err != nil {
		return 0
	}
	defer func() { _ = f.Close() }() // and ends the lease
	// The kernel grants it where nobody has the file open to write, or mapped so.
	if _, err := unix.FcntlInt(f.Fd(), unix.F_SETLEASE, unix.F_RDLCK); err != nil {
		return 0
	}
	b := make([]byte, calendarOff)
	if _, err := f.ReadAt(b, 0); err != nil {
		return 0
	}
	le := binary.LittleEndian
	for record := range maxExports {
		if le.Uint64(b[exportsOff+record*exportSize:]) != 0 {
			return 0
		}
	}
	return le.Uint64(b[countersDevicesOff+i*countersDeviceSize:])
}

// step is between two steps that others can see half done: tests stop there.
var step = func() {}

// withTotal maps the word that counts what a container is charged of device i.
func withTotal(counters string, i int, do func(*atomic.Uint64) error) (err error) {
	f, err := os.OpenFile(counters, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	header := make([]byte, countersDevicesOff)
	if _, err := f.ReadAt(header, 0); err != nil {
		return errDamaged
	}
	if err := checkHeader(header, info.Size()); err != nil {
		return err
	}
	b, err := unix.Mmap(int(f.Fd()), 0, countersDevicesOff+MaxDevices*countersDeviceSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return err
	}
	defer func() { _ = unix.Munmap(b) }()
	defer faults(&err)()
	return do((*atomic.Uint64)(unsafe.Pointer(&b[countersDevicesOff+i*countersDeviceSize])))
}

// faults makes a fault of the goroutine's memory an error, until what it returns is called: a
// tenant may truncate the file at any time.
func faults(err *error) func() {
	before := debug.SetPanicOnFault(true)
	return func() {
		debug.SetPanicOnFault(before)
		switch cause := recover().(type) {
		case nil:
		case interface{ Addr() uintptr }:
			*err = errDamaged
		default:
			panic(cause)
		}
	}
}
