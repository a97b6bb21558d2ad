// SPDX-License-Identifier: Apache-2.0

package pace

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

// busy writes into the counters what device 0 was charged in all. The offset is one that the
// ABI test of package layout holds.
func (f files) busy(sum time.Duration) {
	f.t.Helper()
	file, err := os.OpenFile(f.path("counters"), os.O_WRONLY, 0)
	if err == nil {
		_, err = file.WriteAt(binary.LittleEndian.AppendUint64(nil, uint64(sum)), 64+72)
		_ = file.Close()
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// TestSampled: a container is returned what it was charged beyond what NVML says, no more
// than others have worked, and nothing where NVML says nothing of its processes. What one
// says of itself makes no difference to its neighbour.
func TestSampled(t *testing.T) {
	const second, percent = time.Second, time.Second / 100
	for name, c := range map[string]struct {
		charged          time.Duration
		used, others     int
		neighbourCharged time.Duration
		want             time.Duration
	}{
		"nobody else":                {charged: 50 * percent, used: 25, want: 0},
		"half of it":                 {charged: 50 * percent, used: 25, others: 75, want: 24 * percent},
		"as much as others had":      {charged: 50 * percent, used: 10, others: 5, want: 5 * percent},
		"no word of its own":         {charged: 50 * percent, used: 0, others: 75, want: 0},
		"more than there is":         {charged: 1 << 62, used: 25, others: 100, want: 74 * percent},
		"less than nothing":          {charged: -second, used: 25, others: 100, want: 0},
		"a figure that cannot be":    {charged: 50 * percent, used: 10, others: 1 << 40, want: 39 * percent},
		"a negative one":             {charged: 50 * percent, used: 10, others: -5, want: 0},
		"beside a lying neighbour":   {charged: 50 * percent, used: 25, others: 75, neighbourCharged: 1 << 62, want: 24 * percent},
		"beside an honest neighbour": {charged: 50 * percent, used: 25, others: 75, neighbourCharged: 50 * percent, want: 24 * percent},
	} {
		t.Run(name, func(t *testing.T) {
			at := time.Hour
			l := NewAt(func() time.Duration { return at })
			a := attach(t, l, layout.DeviceLimit{UUID: gpuA, Core: 40})
			b := attach(t, l, layout.DeviceLimit{UUID: gpuA, Core: 40})
			sample := Sample{Used: map[*Container]int{a.Container: c.used, b.Container: 25}, Others: c.others}
			work := func(had, neighbour time.Duration) {
				a.busy(had)
				b.busy(neighbour)
				a.launch(0, at)
				b.launch(0, at)
				l.Step()
				l.Sampled(gpuA, sample)
			}
			work(7*second, 3*second) // what was before the first sample is nobody's
			if working := l.Working(); len(working) != 1 || working[0] != gpuA {
				t.Errorf("working on %q", working)
			}
			at += second
			work(7*second+c.charged, 3*second+c.neighbourCharged)
			for end := at + 2*second; at < end; at += tick {
				l.Step()
			}
			if got := a.returned(); got < c.want-percent/100 || got > c.want+percent/100 {
				t.Errorf("%v returned, want %v", got, c.want)
			}
			if working := l.Working(); at-time.Hour > worksOn && len(working) != 0 {
				t.Errorf("still working on %q", working)
			}
		})
	}
}

// TestNewSample: a container's processes count together, and nobody else's as its own.
func TestNewSample(t *testing.T) {
	a, b := new(Container), new(Container)
	got := NewSample(map[int]int{1: 20, 2: 10, 3: 5, 4: 30, 5: 1}, map[int]*Container{1: a, 2: a, 3: b, 6: b})
	if got.Used[a] != 30 || got.Used[b] != 5 || got.Others != 31 {
		t.Errorf("%v, want 30, 5 and 31 of others", got)
	}
}
