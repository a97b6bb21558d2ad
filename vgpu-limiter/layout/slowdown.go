// SPDX-License-Identifier: Apache-2.0

package layout

import "time"

// Slowdown is how much longer than at their best the launches of a process take on a
// device. It is the median of its launch class's time lately over the 5th percentile of all.
type Slowdown struct {
	Ratio float64       // 1.5 where they take half as long again; 0 where that is not known
	Part  float64       // the part of the time in which the device works for the process
	At    time.Duration // CLOCK_MONOTONIC when it was written, in whole seconds
}

// slowdownOf reads a word of a slot. One that cannot be counts as none.
func slowdownOf(word uint64) Slowdown {
	percent, part := word&0xffff, word>>16&0xffff
	if percent < 100 || percent > slowdownMost || part < 1 || part > 1000 {
		return Slowdown{}
	}
	return Slowdown{Ratio: float64(percent) / 100, Part: float64(part) / 1000, At: time.Duration(word>>32) * time.Second}
}

// slowdownHolds is how long a slowdown is news: a process that launches writes it again
// and again.
const slowdownHolds = time.Minute

// Slowdown is that of the container on a device: its processes' slowdowns, each by the
// device time that the process has. It is not known where none of them has launched
// enough lately.
func (u *Usage) Slowdown(device int, now time.Duration) (ratio float64, known bool) {
	var parts float64
	for _, p := range u.Processes {
		if device >= len(p.Slowdowns) {
			continue
		}
		s := p.Slowdowns[device]
		if age := now - s.At; s.Ratio == 0 || age < 0 || age > slowdownHolds {
			continue
		}
		ratio += s.Ratio * s.Part
		parts += s.Part
	}
	if parts == 0 {
		return 0, false
	}
	return ratio / parts, true
}
