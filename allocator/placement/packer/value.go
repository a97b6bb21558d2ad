// SPDX-License-Identifier: Apache-2.0

package packer

import "vernier.dev/vernier/allocator/placement/lp"

// bySize is a number for every size of share or gap, in steps.
type bySize [steps + 1]float64

func (b *bySize) sum() (sum float64) {
	for _, v := range b {
		sum += v
	}
	return sum
}

// sharePrices solves the cutting-stock problem "serve this demand from as few
// devices as possible" and returns the price of each size in devices: what one
// more share of that size costs. A size that fits into what others strand anyway
// is worth nothing, one that takes a device for itself is worth a whole one.
func sharePrices(demand *bySize) (prices bySize) {
	var sizes []int
	var asked []float64
	var start []lp.Column
	for size := 1; size <= steps; size++ {
		if demand[size] > 0 {
			row := len(sizes)
			sizes = append(sizes, size)
			asked = append(asked, demand[size])
			start = append(start, lp.Column{Cost: 1, Entries: []lp.Entry{{Row: row, Value: float64(steps / size)}}})
		}
	}
	var values bySize
	rows, _, _ := lp.Minimize(asked, start, 50*len(sizes), func(prices []float64) (lp.Column, bool) {
		for row, p := range prices {
			// More than was asked for of this size costs nothing.
			if p < -lp.Epsilon {
				return lp.Column{Entries: []lp.Entry{{Row: row, Value: -1}}}, true
			}
			values[sizes[row]] = p
		}
		return pattern(&values, sizes)
	})
	for row, p := range rows {
		prices[sizes[row]] = max(0, p)
	}
	return prices
}

// pattern cuts the most valuable set of shares from a device; false when it is
// worth no more than the device.
func pattern(values *bySize, sizes []int) (lp.Column, bool) {
	best := values.cut()
	if best[steps] <= 1+1e-7 {
		return lp.Column{}, false
	}
	counts := make([]float64, len(sizes))
	for left := steps; best[left] > 0; {
		if best[left] == best[left-1] {
			left--
			continue
		}
		for row, size := range sizes {
			if size <= left && best[left] == best[left-size]+values[size] {
				counts[row]++
				left -= size
				break
			}
		}
	}
	c := lp.Column{Cost: 1}
	for row, n := range counts {
		if n > 0 {
			c.Entries = append(c.Entries, lp.Entry{Row: row, Value: n})
		}
	}
	return c, true
}

// cut is the greatest value that can be cut from each gap when shares have these.
func (values *bySize) cut() (best bySize) {
	var sizes [steps]int
	n := 0
	for size := 1; size <= steps; size++ {
		if values[size] > 0 {
			sizes[n] = size
			n++
		}
	}
	for g := 1; g <= steps; g++ {
		best[g] = best[g-1]
		for _, size := range sizes[:n] {
			if size > g {
				break
			}
			best[g] = max(best[g], best[g-size]+values[size])
		}
	}
	return best
}
