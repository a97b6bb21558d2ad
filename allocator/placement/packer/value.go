// SPDX-License-Identifier: Apache-2.0

package packer

import "vernier.dev/vernier/allocator/placement/lp"

// share is a size of requests that fit on one device, 1 to steps.
type share struct {
	// demand is how many devices' shares of this size arrive, relative to others.
	demand float64
	// cpu is the mean of what comes with one, in thousandths of a core.
	cpu float64
}

// sharePrices solves the cutting-stock problem "serve this demand from as few
// devices as possible" and returns the price of each size in devices: what one
// more share of that size costs. A size whose pods fill what others strand anyway
// is worth nothing, one that takes a device for itself is worth a whole one.
func sharePrices(shares *[steps + 1]share) (prices [steps + 1]float64) {
	var sizes []int
	var demand []float64
	var start []lp.Column
	for size := 1; size <= steps; size++ {
		if shares[size].demand > 0 {
			row := len(sizes)
			sizes = append(sizes, size)
			demand = append(demand, shares[size].demand)
			start = append(start, lp.Column{Cost: 1, Entries: []lp.Entry{{Row: row, Value: float64(steps / size)}}})
		}
	}
	var values [steps + 1]float64
	byRow, _, _ := lp.Minimize(demand, start, 50*len(sizes), func(prices []float64) (lp.Column, bool) {
		for row, p := range prices {
			// More than was asked for of this size costs nothing.
			if p < -lp.Epsilon {
				return lp.Column{Entries: []lp.Entry{{Row: row, Value: -1}}}, true
			}
			values[sizes[row]] = p
		}
		return pattern(&values, sizes)
	})
	for row, p := range byRow {
		prices[sizes[row]] = max(0, p)
	}
	return prices
}

// pattern cuts the most valuable set of shares from a device; false when it is
// worth no more than the device.
func pattern(values *[steps + 1]float64, sizes []int) (lp.Column, bool) {
	var best [steps + 1]float64
	fill(values, sizes, &best)
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

// fill computes the greatest value that can be cut from each gap.
func fill(values *[steps + 1]float64, sizes []int, best *[steps + 1]float64) {
	for g := 1; g <= steps; g++ {
		best[g] = best[g-1]
		for _, size := range sizes {
			if size <= g {
				best[g] = max(best[g], best[g-size]+values[size])
			}
		}
	}
}
