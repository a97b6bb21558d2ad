// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

const (
	uuidA = "GPU-00112233-4455-6677-8899-aabbccddeeff"
	uuidB = "GPU-ffeeddcc-bbaa-9988-7766-554433221100"
)

func twoDevices() Limits {
	return Limits{
		Container: "5f0c1f5e-0000-4000-8000-000000000001/train",
		Devices: []DeviceLimit{
			{UUID: uuidA, Core: 30, MemoryBytes: 20480 << 20, MayBurst: true, BurstCore: 50},
			{UUID: uuidB, Core: 0, MemoryBytes: 1 << 20},
		},
	}
}

func TestLimitsFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "limits")
	for _, want := range []Limits{twoDevices(), {Devices: []DeviceLimit{{UUID: uuidA, Core: 100, MemoryBytes: 1}}}} {
		if err := WriteFile(path, want); err != nil { // the second replaces a read-only file
			t.Fatal(err)
		}
		got, err := ReadFile(path)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("read %+v, %v; wrote %+v", got, err, want)
		}
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode() != 0o444 {
		t.Errorf("mode %v, %v; want read-only for all", info.Mode(), err)
	}
	if entries, _ := os.ReadDir(filepath.Dir(path)); len(entries) != 1 {
		t.Errorf("%d files beside the limits, want none", len(entries)-1)
	}
}

func TestEncodeRefuses(t *testing.T) {
	for name, change := range map[string]func(*Limits){
		"no device":        func(l *Limits) { l.Devices = nil },
		"17 devices":       func(l *Limits) { l.Devices = make([]DeviceLimit, MaxDevices+1) },
		"same device":      func(l *Limits) { l.Devices[1].UUID = strings.ToUpper(uuidA) },
		"bursts to 101":    func(l *Limits) { l.Devices[0].BurstCore = 101 },
		"may not burst":    func(l *Limits) { l.Devices[1].BurstCore = 50 },
		"core 101":         func(l *Limits) { l.Devices[0].Core = 101 },
		"no memory":        func(l *Limits) { l.Devices[1].MemoryBytes = 0 },
		"2^48 bytes":       func(l *Limits) { l.Devices[1].MemoryBytes = 1 << 48 },
		"MIG UUID":         func(l *Limits) { l.Devices[0].UUID = "MIG" + uuidA[3:] },
		"short UUID":       func(l *Limits) { l.Devices[0].UUID = uuidA[:39] },
		"UUID's groups":    func(l *Limits) { l.Devices[0].UUID = "GPU-001122334-455-6677-8899-aabbccddeeff" },
		"UUID's digits":    func(l *Limits) { l.Devices[0].UUID = "GPU-0011223g-4455-6677-8899-aabbccddeeff" },
		"long identity":    func(l *Limits) { l.Container = strings.Repeat("x", 128) },
		"NUL in identity":  func(l *Limits) { l.Container = "a\x00b" },
		"identity's limit": nil,
	} {
		l := twoDevices()
		if change == nil {
			l.Container = strings.Repeat("x", MaxContainerBytes)
			if _, err := l.Encode(); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		change(&l)
		if _, err := l.Encode(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

// TestDecodeRefusesDamage flips every bit of a file, and cuts it everywhere.
func TestDecodeRefusesDamage(t *testing.T) {
	good := must.Get(twoDevices().Encode())(t)
	for i := range good {
		for bit := range 8 {
			b := append([]byte(nil), good...)
			b[i] ^= 1 << bit
			if _, err := DecodeLimits(b); err == nil {
				t.Fatalf("accepted with bit %d of byte %d flipped", bit, i)
			}
		}
		if _, err := DecodeLimits(good[:i]); err == nil {
			t.Fatalf("accepted when cut to %d bytes", i)
		}
	}
	if _, err := DecodeLimits(append(good, 0)); err == nil {
		t.Error("accepted with a byte too many")
	}
}

// FuzzDecodeLimits seals arbitrary content with a right checksum, so that the
// rules behind it are reached: whatever is accepted must encode to itself.
func FuzzDecodeLimits(f *testing.F) {
	good := must.Get(twoDevices().Encode())(f)
	f.Add(good)
	f.Add([]byte{})
	f.Add(good[:limitsSize-1])
	for _, at := range []int{0, limitsVersionOff, limitsSizeOff, limitsCountOff, limitsReservedOff, limitsContainerOff, limitsDevicesOff, limitsDevicesOff + limitsMemoryOff, limitsDevicesOff + limitsCoreOff, limitsSize - 1} {
		changed := append([]byte(nil), good...)
		changed[at] = 0xff
		f.Add(changed)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == limitsSize {
			binary.LittleEndian.PutUint64(b[limitsChecksumOff:], checksum(b))
		}
		l, err := DecodeLimits(b)
		if err != nil {
			return
		}
		again, err := l.Encode()
		if err != nil {
			t.Fatalf("%+v decodes and doesn't encode: %v", l, err)
		}
		back, err := DecodeLimits(again)
		if err != nil || !reflect.DeepEqual(l, back) {
			t.Fatalf("%+v came back as %+v, %v", l, back, err)
		}
	})
}
