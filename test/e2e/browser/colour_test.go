// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package browser

import (
	"fmt"
	"math"
	"testing"
)

// colour is a computed colour's linear red, green and blue, 0 to 1.
func colour(t *testing.T, computed any) []float64 {
	t.Helper()
	var r, g, b float64
	if _, err := fmt.Sscanf(fmt.Sprint(computed), "rgb(%g, %g, %g)", &r, &g, &b); err != nil {
		t.Fatalf("the colour %v: %v", computed, err)
	}
	linear := []float64{r / 255, g / 255, b / 255}
	for i, c := range linear {
		if linear[i] = c / 12.92; c > 0.04045 {
			linear[i] = math.Pow((c+0.055)/1.055, 2.4)
		}
	}
	return linear
}

func luminance(c []float64) float64 { return 0.2126*c[0] + 0.7152*c[1] + 0.0722*c[2] }

// contrast is the ratio of WCAG 2.
func contrast(a, b []float64) float64 {
	la, lb := luminance(a), luminance(b)
	return (max(la, lb) + 0.05) / (min(la, lb) + 0.05)
}

// distance is CIE 1976's: 2 is just noticeable.
func distance(a, b []float64) float64 {
	sum := 0.0
	la, lb := lab(a), lab(b)
	for i := range la {
		sum += (la[i] - lb[i]) * (la[i] - lb[i])
	}
	return math.Sqrt(sum)
}

func lab(c []float64) [3]float64 {
	f := func(t float64) float64 {
		if t > 0.008856 {
			return math.Cbrt(t)
		}
		return 7.787*t + 16.0/116
	}
	x := f((0.4124*c[0] + 0.3576*c[1] + 0.1805*c[2]) / 0.9505)
	y := f(luminance(c))
	z := f((0.0193*c[0] + 0.1192*c[1] + 0.9505*c[2]) / 1.089)
	return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
}
