// SPDX-License-Identifier: Apache-2.0

// Package lp solves linear programs with more columns than can be written down:
// the caller finds the next column by the prices of the rows.
//
// It owns the arithmetic only: a revised simplex with a dense inverse, good for
// some hundreds of rows. It knows nothing of devices.
package lp

import "math"

// Entry is a number of a column.
type Entry struct {
	Row   int
	Value float64
}

// Column is a variable: what one unit of it costs, and what it puts into the rows.
type Column struct {
	Cost    float64
	Entries []Entry
}

// reduced is what a unit of the column costs at the rows' prices; below zero it
// improves the plan.
func (c *Column) reduced(prices []float64) float64 {
	r := c.Cost
	for _, e := range c.Entries {
		r -= prices[e.Row] * e.Value
	}
	return r
}

// Epsilon is how much better than nothing a column must be to be worth a step.
const Epsilon = 1e-9

// Minimize finds the cheapest x ≥ 0 with A x = b, b ≥ 0, where A's columns are
// those that next makes. The start has one column per row, with a positive value in
// that row alone. The next returns a column whose reduced cost at the prices is below
// -Epsilon; false when there is none. It returns the rows' prices, the cost of b at
// these, and whether that is the optimum: false when limit steps did not suffice.
// As no column beats the prices then, no plan costs less, however the steps were
// rounded.
func Minimize(b []float64, start []Column, limit int, next func(prices []float64) (Column, bool)) (prices []float64, cost float64, optimal bool) {
	s := newSimplex(b, start)
	for range limit {
		s.price()
		c, more := next(s.prices)
		if !more {
			return s.prices, s.cost(b), true
		}
		if c.reduced(s.prices) > -Epsilon || !s.enter(&c) {
			break
		}
	}
	s.price()
	return s.prices, s.cost(b), false
}

// simplex is a basis: inverse of its columns, their costs, and how much of each.
type simplex struct {
	inverse       [][]float64
	costs, amount []float64
	prices, step  []float64
}

func newSimplex(b []float64, start []Column) *simplex {
	m := len(b)
	s := &simplex{
		inverse: make([][]float64, m), costs: make([]float64, m), amount: make([]float64, m),
		prices: make([]float64, m), step: make([]float64, m),
	}
	cells := make([]float64, m*m)
	for i := range s.inverse {
		s.inverse[i] = cells[i*m : (i+1)*m]
		diagonal := start[i].Entries[0].Value
		s.inverse[i][i] = 1 / diagonal
		s.costs[i] = start[i].Cost
		s.amount[i] = b[i] / diagonal
	}
	return s
}

func (s *simplex) price() {
	clear(s.prices)
	for i, c := range s.costs {
		if c == 0 {
			continue
		}
		for j, v := range s.inverse[i] {
			s.prices[j] += c * v
		}
	}
}

func (s *simplex) cost(b []float64) (sum float64) {
	for row, p := range s.prices {
		sum += p * b[row]
	}
	return sum
}

// enter brings the column into the basis; false when the plan has no bottom.
func (s *simplex) enter(c *Column) bool {
	leave, least := -1, math.Inf(1)
	for i := range s.step {
		s.step[i] = 0
		for _, e := range c.Entries {
			s.step[i] += s.inverse[i][e.Row] * e.Value
		}
		if s.step[i] <= Epsilon {
			continue
		}
		// Among equals the larger step keeps the numbers sound.
		if r := s.amount[i] / s.step[i]; r < least-Epsilon || r < least+Epsilon && leave >= 0 && s.step[i] > s.step[leave] {
			leave, least = i, min(r, least)
		}
	}
	if leave < 0 {
		return false
	}
	pivot := s.step[leave]
	row := s.inverse[leave]
	for j := range row {
		row[j] /= pivot
	}
	s.amount[leave] /= pivot
	for i := range s.inverse {
		f := s.step[i]
		if i == leave || f == 0 {
			continue
		}
		for j, v := range row {
			s.inverse[i][j] -= f * v
		}
		s.amount[i] = max(0, s.amount[i]-f*s.amount[leave])
	}
	s.costs[leave] = c.Cost
	return true
}
