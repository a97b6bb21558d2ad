// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"os/exec"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Where things are in a limits file: vgpu_layout.h.
const (
	checksumAt  = 16
	countAt     = 24
	containerAt = 32
	devicesAt   = 160
	deviceBytes = 32
)

// someLimits is a file as good as most, or wrong in one to three places that a rule
// is about, under a right checksum.
func someLimits(t *testing.T, dice *rand.Rand) []byte {
	t.Helper()
	l := layout.Limits{Container: "a/b", Devices: make([]layout.DeviceLimit, 1+dice.IntN(layout.MaxDevices))}
	for i := range l.Devices {
		var uuid [16]byte
		binary.LittleEndian.PutUint64(uuid[:], dice.Uint64())
		l.Devices[i] = layout.DeviceLimit{UUID: layout.FormatUUID(uuid), Core: dice.Uint32N(101), MemoryBytes: 1 + dice.Uint64N(1<<48-1), MayBurst: dice.IntN(2) == 0}
	}
	b := must.Get(l.Encode())(t)
	le := binary.LittleEndian
	for range dice.IntN(4) {
		device := b[devicesAt+deviceBytes*dice.IntN(layout.MaxDevices):][:deviceBytes]
		switch dice.IntN(9) {
		case 0:
			le.PutUint32(b[countAt:], dice.Uint32N(layout.MaxDevices+3))
		case 1:
			le.PutUint32(b[countAt:], dice.Uint32())
		case 2: // listed twice
			copy(device[:16], b[devicesAt+deviceBytes*dice.IntN(layout.MaxDevices):])
		case 3:
			le.PutUint64(device[16:], []uint64{0, 1, 1<<48 - 1, 1 << 48, dice.Uint64()}[dice.IntN(5)])
		case 4:
			le.PutUint32(device[24:], 99+dice.Uint32N(4))
		case 5:
			le.PutUint32(device[28:], 1<<dice.IntN(32))
		case 6: // not terminated
			copy(b[containerAt:devicesAt], bytes.Repeat([]byte{'x'}, devicesAt-containerAt-dice.IntN(2)))
		default:
			b[dice.IntN(len(b))] = byte(dice.Uint32())
		}
	}
	le.PutUint64(b[checksumAt:], 0)
	sum := fnv.New64a()
	_, _ = sum.Write(b)
	le.PutUint64(b[checksumAt:], sum.Sum64())
	return b
}

// TestLimitsAreJudgedAlike: the library takes a file if, and only if, the Go package
// does, and reads nothing beyond it.
func TestLimitsAreJudgedAlike(t *testing.T) {
	t.Parallel()
	judge := buildUnit(t, "address,undefined", "limits_test")
	dice := rand.New(rand.NewPCG(3, 4))
	var files []byte
	var want []byte
	for range 20000 {
		b := someLimits(t, dice)
		files = append(files, b...)
		if _, err := layout.DecodeLimits(b); err == nil {
			want = append(want, '+')
		} else {
			want = append(want, '-')
		}
	}
	if good := bytes.Count(want, []byte{'+'}); good < 4000 || good > 16000 {
		t.Errorf("%d of 20000 files are good", good)
	}
	cmd := exec.Command(judge, "judge")
	fixAddresses(cmd)
	cmd.Stdin = bytes.NewReader(files)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	got, err := cmd.Output()
	if err != nil || len(got) != len(want) {
		t.Fatalf("%d answers, %v: %s", len(got), err, &stderr)
	}
	size := len(files) / len(want)
	for i := range want {
		if got[i] != want[i] {
			_, err := layout.DecodeLimits(files[i*size : (i+1)*size])
			t.Fatalf("the library says %c of file %d, the Go package %c: %v", got[i], i, want[i], err)
		}
	}
}
