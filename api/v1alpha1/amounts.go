// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Amounts of a share. Each is a type of its own so that percent, MiB and counts
// cannot be mixed.

// Percent is a whole percent of one GPU: 100 is one whole GPU, a container's
// total over several GPUs may be more.
// +kubebuilder:validation:Minimum=0
type Percent int32

// MiB is memory in units of 1,048,576 bytes.
// +kubebuilder:validation:Minimum=0
type MiB int64

// DeviceCount is a number of GPUs.
// +kubebuilder:validation:Minimum=0
type DeviceCount int32

// WholeGPU is all of one GPU's compute or memory.
const WholeGPU Percent = 100

const (
	maxPercent = WholeGPU * MaxContainerDevices
	// maxMiB keeps bytes within an int64: 8 EiB.
	maxMiB = MiB(math.MaxInt64 >> 20)
)

// ErrRange is wrapped by every error about an amount out of its range.
var ErrRange = errors.New("out of range")

// ParsePercent reads a decimal integer of 1 to 100 × MaxContainerDevices.
func ParsePercent(s string) (Percent, error) {
	n, err := parse(s, int64(maxPercent), "percent")
	return Percent(n), err
}

// ParseMiB reads a decimal integer of 1 or more.
func ParseMiB(s string) (MiB, error) {
	n, err := parse(s, int64(maxMiB), "MiB")
	return MiB(n), err
}

// ParseDeviceCount reads a decimal integer of 1 to MaxContainerDevices.
func ParseDeviceCount(s string) (DeviceCount, error) {
	n, err := parse(s, MaxContainerDevices, "GPUs")
	return DeviceCount(n), err
}

// parse accepts only the canonical form: digits, no sign, no leading zero. Two
// spellings of one amount would make two documents that differ and mean the same.
func parse(s string, highest int64, unit string) (int64, error) {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil || strconv.FormatInt(n, 10) != s {
		return 0, fmt.Errorf("%q is not a whole number of %s", s, unit)
	}
	if n < 1 || n > highest {
		return 0, fmt.Errorf("%s %s: %w: from 1 to %d", s, unit, ErrRange, highest)
	}
	return n, nil
}

// Split is the share of each of n GPUs; p must divide evenly.
func (p Percent) Split(n DeviceCount) (Percent, error) {
	if n < 1 || int64(p)%int64(n) != 0 {
		return 0, fmt.Errorf("%d percent over %d GPUs is not a whole number: %w", p, n, ErrRange)
	}
	return p / Percent(n), nil
}

// GPUs is the least number of GPUs that can hold p: p / 100, rounded up, at
// least 1.
func (p Percent) GPUs() DeviceCount {
	return DeviceCount(max(1, (int64(p)+99)/100))
}

// GPUsText is p in GPUs for people: 2.5.
func (p Percent) GPUsText() string {
	return strconv.FormatFloat(float64(p)/float64(WholeGPU), 'f', -1, 64)
}

// Of is p percent of total, rounded down to a whole MiB. p is 0 to 100.
func (p Percent) Of(total MiB) (MiB, error) {
	if p < 0 || p > WholeGPU || total < 0 || total > maxMiB {
		return 0, fmt.Errorf("%d percent of %d MiB: %w", p, total, ErrRange)
	}
	// maxMiB × 100 is far below an int64's end.
	return total * MiB(p) / 100, nil
}

// Split is the share of each of n GPUs; m must divide evenly.
func (m MiB) Split(n DeviceCount) (MiB, error) {
	if n < 1 || int64(m)%int64(n) != 0 {
		return 0, fmt.Errorf("%d MiB over %d GPUs is not a whole number: %w", m, n, ErrRange)
	}
	return m / MiB(n), nil
}

// Bytes is m in bytes. m must be in range, as every parsed or decoded MiB is.
func (m MiB) Bytes() uint64 { return uint64(m) << 20 }

// Text is for people: 48,787 MiB.
func (m MiB) Text() string {
	digits := strconv.FormatInt(int64(m), 10)
	for i := len(digits) - 3; i > 0 && digits[i-1] != '-'; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return digits + " MiB"
}

// AmountsText is an amount of a GPU for people: 60 % compute and 48,787 MiB.
func AmountsText(core Percent, mem MiB) string {
	if core == 0 {
		return mem.Text()
	}
	return fmt.Sprintf("%d %% compute and %s", core, mem.Text())
}

// NamesText lists the names for people, most of them at most: a, b and 3 more.
func NamesText(names []string, most int) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}

// MiBFromBytes is n bytes in whole MiB, rounded down: never promise what the
// device does not have.
func MiBFromBytes(n uint64) MiB { return MiB(n >> 20) }
