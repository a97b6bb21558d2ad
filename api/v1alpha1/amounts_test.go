// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"errors"
	"math"
	"math/big"
	"math/rand/v2"
	"strconv"
	"testing"

	"vernier.dev/vernier/test/must"
)

func TestParseAmounts(t *testing.T) {
	percent := func(s string) (int64, error) { n, err := ParsePercent(s); return int64(n), err }
	mib := func(s string) (int64, error) { n, err := ParseMiB(s); return int64(n), err }
	count := func(s string) (int64, error) { n, err := ParseDeviceCount(s); return int64(n), err }
	for _, c := range []struct {
		name       string
		parse      func(string) (int64, error)
		text       string
		want       int64
		outOfRange bool
	}{
		{"percent", percent, "1", 1, false},
		{"percent", percent, "1600", 1600, false},
		{"percent", percent, "1601", 0, true},
		{"percent", percent, "0", 0, true},
		{"percent", percent, "-1", 0, true},
		{"percent", percent, "4294967297", 0, true}, // 1 when cut to 32 bits
		{"MiB", mib, "1", 1, false},
		{"MiB", mib, "8796093022207", 8796093022207, false},
		{"MiB", mib, "8796093022208", 0, true}, // its bytes leave an int64
		{"MiB", mib, "0", 0, true},
		{"count", count, "1", 1, false},
		{"count", count, "16", 16, false},
		{"count", count, "17", 0, true},
		{"count", count, "0", 0, true},
	} {
		got, err := c.parse(c.text)
		if got != c.want || (err == nil) != (c.want != 0) || errors.Is(err, ErrRange) != c.outOfRange {
			t.Errorf("%s %q: got %d, %v", c.name, c.text, got, err)
		}
	}
	for _, text := range []string{"", "+1", "01", "1.0", "1e2", "0x1", "1k", " 1", "1 ", "1_0", "-0", "9223372036854775808", "١"} {
		for name, parse := range map[string]func(string) (int64, error){"percent": percent, "MiB": mib, "count": count} {
			if got, err := parse(text); err == nil {
				t.Errorf("%s %q was read as %d: one amount must have one spelling", name, text, got)
			}
		}
	}
}

func TestPercentArithmetic(t *testing.T) {
	for _, c := range []struct {
		name string
		got  func() (Percent, error)
		want Percent
		fail bool
	}{
		{"split", func() (Percent, error) { return Percent(120).Split(2) }, 60, false},
		{"split over one", func() (Percent, error) { return Percent(7).Split(1) }, 7, false},
		{"split unevenly", func() (Percent, error) { return Percent(100).Split(3) }, 0, true},
		{"split over none", func() (Percent, error) { return Percent(100).Split(0) }, 0, true},
		{"split over less than none", func() (Percent, error) { return Percent(100).Split(-2) }, 0, true},
	} {
		check(t, c.name, c.want, c.fail, c.got)
	}
}

func TestMiBArithmetic(t *testing.T) {
	for _, c := range []struct {
		name string
		got  func() (MiB, error)
		want MiB
		fail bool
	}{
		{"split", func() (MiB, error) { return MiB(40960).Split(2) }, 20480, false},
		{"split unevenly", func() (MiB, error) { return MiB(40961).Split(2) }, 0, true},
		{"split over none", func() (MiB, error) { return MiB(40961).Split(0) }, 0, true},
		{"percent of", func() (MiB, error) { return Percent(25).Of(81559) }, 20389, false},
		{"all of the largest", func() (MiB, error) { return WholeGPU.Of(maxMiB) }, maxMiB, false},
		{"none of", func() (MiB, error) { return Percent(0).Of(81559) }, 0, false},
		{"more than all of", func() (MiB, error) { return Percent(101).Of(100) }, 0, true},
		{"negative percent of", func() (MiB, error) { return Percent(-1).Of(100) }, 0, true},
		{"percent of a negative", func() (MiB, error) { return Percent(1).Of(-100) }, 0, true},
		{"percent of too much", func() (MiB, error) { return Percent(1).Of(maxMiB + 1) }, 0, true},
	} {
		check(t, c.name, c.want, c.fail, c.got)
	}
}

func check[T Percent | MiB](t *testing.T, name string, want T, fail bool, call func() (T, error)) {
	t.Helper()
	got, err := call()
	if got != want || (err != nil) != fail || fail && !errors.Is(err, ErrRange) {
		t.Errorf("%s: got %d, %v; want %d, error %v", name, got, err, want, fail)
	}
}

func TestGPUs(t *testing.T) {
	for p, want := range map[Percent]DeviceCount{0: 1, 1: 1, 100: 1, 101: 2, 200: 2, 201: 3, 3200: 32, math.MaxInt32: 21474837} {
		if got := p.GPUs(); got != want {
			t.Errorf("%d percent on %d GPUs, want %d", p, got, want)
		}
	}
}

// Invariant 1: percent shares that add up to a whole GPU never add up to more
// MiB than the device has, however small or odd its memory.
func TestPercentNeverPromisesMore(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	devices := []MiB{0, 1, 99, 100, 101, 15360, 81559, 143771, maxMiB}
	for range 2000 {
		device := devices[random.IntN(len(devices))]
		if random.IntN(2) == 0 {
			device = MiB(random.Int64N(int64(maxMiB) + 1))
		}
		var sum MiB
		for left := WholeGPU; left > 0; {
			share := Percent(random.IntN(int(left))) + 1
			left -= share
			got := must.Get(share.Of(device))(t)
			if exact := floor(share, device); int64(got) != exact {
				t.Fatalf("%d percent of %d MiB is %d, want %d", share, device, got, exact)
			}
			sum += got
		}
		if sum > device {
			t.Fatalf("shares of a device of %d MiB add up to %d", device, sum)
		}
	}
}

// floor is p*m/100 in arithmetic that cannot overflow.
func floor(p Percent, m MiB) int64 {
	product := new(big.Int).Mul(big.NewInt(int64(p)), big.NewInt(int64(m)))
	return product.Div(product, big.NewInt(100)).Int64()
}

func TestBytes(t *testing.T) {
	if got := maxMiB.Bytes(); got != math.MaxInt64-(1<<20-1) {
		t.Errorf("%d MiB are %d bytes", maxMiB, got)
	}
	for bytes, want := range map[uint64]MiB{0: 0, 1<<20 - 1: 0, 1 << 20: 1, 85520809984: 81559, math.MaxUint64: 1<<44 - 1} {
		if got := MiBFromBytes(bytes); got != want {
			t.Errorf("%d bytes are %d MiB, want %d", bytes, got, want)
		}
	}
}

// What is accepted prints as the same text, and is in bounds.

func FuzzParsePercent(f *testing.F) {
	fuzzAmount(f, int64(maxPercent), func(s string) (int64, error) { n, err := ParsePercent(s); return int64(n), err })
}

func FuzzParseMiB(f *testing.F) {
	fuzzAmount(f, int64(maxMiB), func(s string) (int64, error) { n, err := ParseMiB(s); return int64(n), err })
}

func FuzzParseDeviceCount(f *testing.F) {
	fuzzAmount(f, MaxDevices, func(s string) (int64, error) { n, err := ParseDeviceCount(s); return int64(n), err })
}

func fuzzAmount(f *testing.F, highest int64, parse func(string) (int64, error)) {
	for _, seed := range []string{"", "0", "1", "16", "17", "100", "1600", "4294967297", "8796093022207",
		"8796093022208", "9223372036854775807", "9223372036854775808", "-1", "+1", "007", "1e2", "1.5", "0x10", " 1", "1_000"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parse(text)
		if err != nil {
			return
		}
		if strconv.FormatInt(n, 10) != text {
			t.Errorf("%q was read as %d", text, n)
		}
		if n < 1 || n > highest {
			t.Errorf("%q was accepted; from 1 to %d are in bounds", text, highest)
		}
	})
}

func TestText(t *testing.T) {
	for mem, want := range map[MiB]string{0: "0 MiB", 999: "999 MiB", 1000: "1,000 MiB", 48787: "48,787 MiB", 1234567: "1,234,567 MiB", -1234: "-1,234 MiB", -123: "-123 MiB"} {
		if got := mem.Text(); got != want {
			t.Errorf("%d is %q, want %q", mem, got, want)
		}
	}
	if got := AmountsText(60, 48787); got != "60 % compute and 48,787 MiB" {
		t.Errorf("%q", got)
	}
	if got := AmountsText(0, 5); got != "5 MiB" {
		t.Errorf("without compute: %q", got)
	}
}
