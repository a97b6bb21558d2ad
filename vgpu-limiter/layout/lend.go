// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sync/atomic"
)

// Lendable is what decides how much of a running container's memory limit of a device others may use.
type Lendable struct {
	// UUID of the device.
	UUID string
	// LimitBytes is the limit in force, ReadyBytes what of it is charged without a wait.
	LimitBytes, ReadyBytes uint64
	// ChargedBytes are charged to the container, those of dead processes among them. WantedBytes is
	// what they are to become by a charge that waits; 0 for none. Neither is more than LimitBytes,
	// whatever the container writes.
	ChargedBytes, WantedBytes uint64
}

// ReadLendable reads that of each device of a container, in the order of its limits, by the paths of
// its limits, counters and pace files. It returns ErrOlderLibrary where nothing can be lent.
func ReadLendable(limits, counters, pace string) ([]Lendable, error) {
	l, err := ReadFile(limits)
	if err != nil {
		return nil, err
	}
	p, err := openReady(pace, len(l.Devices))
	if err != nil {
		return nil, err
	}
	defer func() { _ = p.Close() }()
	f, err := OpenCounters(counters)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	b := make([]byte, len(l.Devices)*countersDeviceSize)
	if _, err := f.ReadAt(b, countersDevicesOff); err != nil {
		return nil, err
	}
	all := make([]Lendable, len(l.Devices))
	for i, d := range l.Devices {
		limit := p.InForce(i, d).MemoryBytes
		word := func(offset int) uint64 { return binary.LittleEndian.Uint64(b[i*countersDeviceSize+offset:]) }
		all[i] = Lendable{d.UUID, limit, limit, min(word(0)&bytesMask, limit), min(word(devWantedOff), limit)}
		if ready := p.word(i, paceReadyOff).Load(); ready != 0 {
			all[i].ReadyBytes = min(ready, limit)
		}
	}
	return all, nil
}

// openReady is OpenPace of a container whose library knows that memory may be lent.
func openReady(path string, devices int) (*Pace, error) {
	p, err := OpenPace(path, devices)
	if err == nil && (strideOf(p.b) != paceDeviceSize || binary.LittleEndian.Uint32(p.b[paceResizesOff:]) < readsReady) {
		_ = p.Close()
		return nil, ErrOlderLibrary
	}
	return p, err
}

// SetReady says how many bytes of a running container's limit of a device are charged without a wait; 0
// for all. The paths are those of its limits, counters and pace files.
//
// When it returns nil, no charge that has not waited brings the total above that any more. It returns
// an *InfeasibleError, with what was ready before in force, where more is charged already.
//
// A process that is killed within SetReady may leave a lesser amount that is not in force yet. So
// a caller that relies on one after a restart calls SetReady with it again. One call at a time is made for
// a container; a Resize may run beside it.
func SetReady(limits, counters, pace, uuid string, ready uint64) error {
	l, err := ReadFile(limits)
	if err != nil {
		return err
	}
	i := slices.IndexFunc(l.Devices, func(d DeviceLimit) bool { return d.UUID == uuid })
	if i < 0 || ready > MaxMemoryBytes {
		return fmt.Errorf("device %s: %d bytes: the container has no share of it, or the amount is more than %d", uuid, ready, uint64(MaxMemoryBytes))
	}
	p, err := openReady(pace, len(l.Devices))
	if err != nil {
		return err
	}
	defer func() { _ = p.Close() }()
	word := p.word(i, paceReadyOff)
	before := word.Swap(ready)
	step()
	err = withTotal(counters, i, func(total *atomic.Uint64) error {
		for range commitTries {
			seen := total.Load()
			if used := seen & bytesMask; ready != 0 && used > ready {
				return &InfeasibleError{UUID: uuid, UsedBytes: used, LimitBytes: ready}
			}
			step()
			if total.CompareAndSwap(seen, (seen+oneChange)&^secondLimit|seen&secondLimit) {
				return nil
			}
		}
		return errBusy
	})
	if err != nil {
		word.Store(before)
	}
	return err
}
