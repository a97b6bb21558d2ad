// SPDX-License-Identifier: Apache-2.0

package layout

import (
	"math"
	"testing"
	"time"
)

// Slowdowns are averaged by device time. What is old, of the future or cannot be counts
// as not known, whatever a tenant has written.
func TestSlowdown(t *testing.T) {
	now := 1000 * time.Second
	word := func(percent, part, at uint64) uint64 { return at<<32 | part<<16 | percent }
	for name, c := range map[string]struct {
		words []uint64
		want  float64
	}{
		"none":                 {nil, 0},
		"nothing written":      {[]uint64{0}, 0},
		"one":                  {[]uint64{word(150, 300, 990)}, 1.5},
		"by device time":       {[]uint64{word(100, 300, 990), word(200, 100, 1000)}, 1.25},
		"one is not known":     {[]uint64{0, word(120, 1, 990)}, 1.2},
		"a minute old":         {[]uint64{word(150, 300, 940)}, 1.5},
		"older":                {[]uint64{word(150, 300, 939)}, 0},
		"of the future":        {[]uint64{word(150, 300, 1001)}, 0},
		"less than at best":    {[]uint64{word(99, 300, 990)}, 0},
		"more than can be":     {[]uint64{word(10001, 300, 990)}, 0},
		"as much as can be":    {[]uint64{word(10000, 1000, 990)}, 100},
		"no device time":       {[]uint64{word(150, 0, 990)}, 0},
		"more than all of it":  {[]uint64{word(150, 1001, 990)}, 0},
		"every bit":            {[]uint64{math.MaxUint64}, 0},
		"one that makes it up": {[]uint64{math.MaxUint64, word(120, 1, 990)}, 1.2},
	} {
		var u Usage
		for _, w := range c.words {
			u.Processes = append(u.Processes, ProcessUsage{Slowdowns: []Slowdown{slowdownOf(w)}})
		}
		if got, known := u.Slowdown(0, now); math.Abs(got-c.want) > 1e-9 || known != (c.want != 0) {
			t.Errorf("%s: %v, %t, want %v", name, got, known, c.want)
		}
		if _, known := u.Slowdown(slowdownDevices, now); known {
			t.Errorf("%s: known of a device of which nothing is written", name)
		}
	}
}
