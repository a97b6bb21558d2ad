// SPDX-License-Identifier: Apache-2.0

package lp

import (
	"math"
	"math/rand"
	"testing"
)

// oracle offers the column of a list that improves most.
func oracle(columns []Column) func([]float64) (Column, bool) {
	return func(prices []float64) (Column, bool) {
		best, least := -1, -1e-7
		for i := range columns {
			if r := columns[i].reduced(prices); r < least {
				best, least = i, r
			}
		}
		if best < 0 {
			return Column{}, false
		}
		return columns[best], true
	}
}

func slacks(rows int) (out []Column) {
	for i := range rows {
		out = append(out, Column{Entries: []Entry{{i, 1}}})
	}
	return out
}

// max 3x + 5y, x ≤ 4, 2y ≤ 12, 3x + 2y ≤ 18: 36 at (2, 6).
func TestTextbook(t *testing.T) {
	columns := append(slacks(3),
		Column{-3, []Entry{{0, 1}, {2, 3}}},
		Column{-5, []Entry{{1, 2}, {2, 2}}})
	prices, cost, optimal := Minimize([]float64{4, 12, 18}, slacks(3), 100, oracle(columns))
	if !optimal || math.Abs(cost+36) > 1e-9 {
		t.Fatalf("cost %v, optimal %v, want -36", cost, optimal)
	}
	for i, want := range []float64{0, -1.5, -1} {
		if math.Abs(prices[i]-want) > 1e-9 {
			t.Errorf("price of row %d is %v, want %v", i, prices[i], want)
		}
	}
}

func TestUnbounded(t *testing.T) {
	columns := append(slacks(1), Column{-1, []Entry{{0, -1}}})
	if _, _, optimal := Minimize([]float64{1}, slacks(1), 100, oracle(columns)); optimal {
		t.Error("a plan without a bottom is called optimal")
	}
}

// The rows' prices prove the optimum: no column improves, and the limits at these
// prices cost what the plan costs.
func TestPricesProveTheOptimum(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for range 300 {
		rows := 1 + r.Intn(12)
		b := make([]float64, rows)
		for i := range b {
			b[i] = float64(r.Intn(50))
		}
		columns := slacks(rows)
		for range r.Intn(40) {
			c := Column{Cost: -float64(1 + r.Intn(20))}
			for row := range rows {
				if row == 0 || r.Intn(3) == 0 {
					c.Entries = append(c.Entries, Entry{row, float64(1 + r.Intn(9))})
				}
			}
			columns = append(columns, c)
		}
		prices, cost, optimal := Minimize(b, slacks(rows), 10_000, oracle(columns))
		dual := 0.0
		for i, p := range prices {
			dual += p * b[i]
		}
		if !optimal || math.Abs(dual-cost) > 1e-6*(1+math.Abs(cost)) {
			t.Fatalf("optimal %v, cost %v, limits at the prices %v", optimal, cost, dual)
		}
		for i := range columns {
			if red := columns[i].reduced(prices); red < -1e-6 {
				t.Fatalf("column %d would still improve by %v", i, red)
			}
		}
	}
}

// It takes so many steps at most.
func TestStepsAreBounded(t *testing.T) {
	const limit = 10
	asked := 0
	_, _, optimal := Minimize([]float64{1}, slacks(1), limit, func(prices []float64) (Column, bool) {
		asked++
		if asked > 2*limit {
			return Column{}, false
		}
		return Column{prices[0] - 1, []Entry{{0, 1}}}, true // always a better one
	})
	if optimal || asked != limit {
		t.Errorf("asked for %d columns, want %d; optimal %v", asked, limit, optimal)
	}
}
