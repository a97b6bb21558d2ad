// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"os"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/vgpu-limiter/atomicfile"
)

// Limits is what one container may use.
type Limits struct {
	// Container names the container in logs and tools, by convention
	// "<pod UID>/<container name>". It is no key.
	Container string
	// Devices are the container's devices; the counters keep the same order.
	Devices []DeviceLimit
}

// DeviceLimit is what one container may use of one device.
type DeviceLimit struct {
	// UUID as NVML prints it: "GPU-" and 32 hexadecimal digits in groups.
	UUID string
	// Core is the compute quota in percent of the device, 1 to 100; 0 sets none.
	Core uint32
	// MemoryBytes is the device memory in bytes, at least 1, below 2^48.
	MemoryBytes uint64
	// MayBurst lets the container use device time beyond its quota while nobody
	// else wants it, as long as the node side (package pace) says so.
	MayBurst bool
	// BurstCore is how much it may use with MayBurst, in percent of the device, 1 to 100; 0 is all that is idle.
	BurstCore uint32
	// Idle is an idle slice's: no quota, and launches only while the node side gives it a turn.
	Idle bool
}

// Encode returns the content of a limits file.
func (l Limits) Encode() ([]byte, error) {
	if len(l.Container) > MaxContainerBytes || bytes.IndexByte([]byte(l.Container), 0) >= 0 {
		return nil, fmt.Errorf("container identity %q: want at most %d bytes without NUL", l.Container, MaxContainerBytes)
	}
	if len(l.Devices) == 0 || len(l.Devices) > MaxDevices {
		return nil, fmt.Errorf("%d devices: a container has 1 to %d", len(l.Devices), MaxDevices)
	}
	b := make([]byte, limitsSize)
	le := binary.LittleEndian
	le.PutUint64(b, limitsMagic)
	le.PutUint32(b[limitsVersionOff:], limitsVersion)
	le.PutUint32(b[limitsSizeOff:], limitsSize)
	le.PutUint32(b[limitsCountOff:], uint32(len(l.Devices)))
	copy(b[limitsContainerOff:], l.Container)
	for i, d := range l.Devices {
		uuid, err := parseUUID(d.UUID)
		if err != nil {
			return nil, fmt.Errorf("device %d: %w", i, err)
		}
		e := b[limitsDevicesOff+i*limitsDeviceSize:]
		copy(e, uuid[:])
		le.PutUint64(e[limitsMemoryOff:], d.MemoryBytes)
		le.PutUint32(e[limitsCoreOff:], d.Core)
		switch {
		case d.MayBurst:
			le.PutUint16(e[limitsFlagsOff:], flagMayBurst)
		case d.Idle:
			le.PutUint16(e[limitsFlagsOff:], flagIdle)
		}
		le.PutUint16(e[limitsBurstOff:], uint16(d.BurstCore))
	}
	le.PutUint64(b[limitsChecksumOff:], checksum(b))
	if _, err := DecodeLimits(b); err != nil { // one set of rules, the reader's
		return nil, err
	}
	return b, nil
}

// DecodeLimits reads the content of a limits file by the rules of the library:
// whatever it refuses, the library refuses too.
func DecodeLimits(b []byte) (Limits, error) {
	le := binary.LittleEndian
	if len(b) != limitsSize {
		return Limits{}, fmt.Errorf("limits: %d bytes, want %d", len(b), limitsSize)
	}
	if le.Uint64(b) != limitsMagic {
		return Limits{}, errors.New("limits: not a limits file (magic)")
	}
	if v := le.Uint32(b[limitsVersionOff:]); v != limitsVersion {
		return Limits{}, fmt.Errorf("limits: version %d, this release reads %d", v, limitsVersion)
	}
	if le.Uint32(b[limitsSizeOff:]) != limitsSize || le.Uint64(b[limitsChecksumOff:]) != checksum(b) {
		return Limits{}, errors.New("limits: damaged (checksum)")
	}
	count := le.Uint32(b[limitsCountOff:])
	if count == 0 || count > MaxDevices || le.Uint32(b[limitsReservedOff:]) != 0 {
		return Limits{}, fmt.Errorf("limits: %d devices, want 1 to %d", count, MaxDevices)
	}
	name, _, terminated := bytes.Cut(b[limitsContainerOff:limitsDevicesOff], []byte{0})
	if !terminated {
		return Limits{}, errors.New("limits: container identity is not terminated")
	}
	l := Limits{Container: string(name)}
	for i := range int(count) {
		e := b[limitsDevicesOff+i*limitsDeviceSize:][:limitsDeviceSize]
		d := DeviceLimit{
			UUID:        formatUUID(e[:uuidBytes]),
			Core:        le.Uint32(e[limitsCoreOff:]),
			MemoryBytes: le.Uint64(e[limitsMemoryOff:]),
			MayBurst:    le.Uint16(e[limitsFlagsOff:]) == flagMayBurst,
			BurstCore:   uint32(le.Uint16(e[limitsBurstOff:])),
			Idle:        le.Uint16(e[limitsFlagsOff:]) == flagIdle,
		}
		if d.MemoryBytes == 0 || d.MemoryBytes > bytesMask {
			return Limits{}, fmt.Errorf("limits: device %d: memory of %d bytes, want 1 to %d", i, d.MemoryBytes, uint64(bytesMask))
		}
		if flags := le.Uint16(e[limitsFlagsOff:]); d.Core > 100 || flags > flagIdle || d.Idle && d.Core != 0 {
			return Limits{}, fmt.Errorf("limits: device %d: core of %d percent, flags %#x, want 0 to 100, 0 to 2; no core with 2", i, d.Core, flags)
		}
		if d.BurstCore > 100 || d.BurstCore > 0 && !d.MayBurst {
			return Limits{}, fmt.Errorf("limits: device %d: bursts up to %d percent, want 0 to 100, and 0 without bursting", i, d.BurstCore)
		}
		for _, other := range l.Devices {
			if other.UUID == d.UUID {
				return Limits{}, fmt.Errorf("limits: device %s is listed twice", d.UUID)
			}
		}
		l.Devices = append(l.Devices, d)
	}
	return l, nil
}

// ReadFile reads a limits file.
func ReadFile(path string) (Limits, error) {
	b, err := readAtMost(path, limitsSize+1)
	if err != nil {
		return Limits{}, err
	}
	return DecodeLimits(b)
}

// WriteFile puts a limits file, readable by everybody and writable by nobody,
// in place of whatever is at path. Readers see the old file or the new one. It
// isn't synced to disk: a file that a power cut damages is refused by its
// checksum, and its container is gone with the power.
func WriteFile(path string, l Limits) error {
	b, err := l.Encode()
	if err != nil {
		return err
	}
	return replaceFile(path, b, limitsSize, 0o444, allocate)
}

// replaceFile puts a file of size bytes in place of path, which begins with content and
// is zero from there on. extend makes it that long.
func replaceFile(path string, content []byte, size int64, mode os.FileMode, extend func(*os.File, int64) error) error {
	return atomicfile.Replace(path, mode, func(f *os.File) error {
		if _, err := f.Write(content); err != nil {
			return err
		}
		return extend(f, size)
	})
}

// allocate makes the file size bytes long, with room on the disk for all of them:
// a process that maps a file dies where the disk turns out to be full.
func allocate(f *os.File, size int64) error {
	err := unix.Fallocate(int(f.Fd()), 0, 0, size)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return f.Truncate(size) // this file system can't promise it
	}
	return err
}

// checksum is FNV-1a over the file with its checksum field taken as zero.
func checksum(b []byte) uint64 {
	h := fnv.New64a()
	h.Write(b[:limitsChecksumOff])
	h.Write(make([]byte, 8))
	h.Write(b[limitsChecksumOff+8:])
	return h.Sum64()
}
