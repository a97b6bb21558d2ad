// SPDX-License-Identifier: Apache-2.0

package packer

import (
	"math/rand"
	"testing"
)

// A level of CPU never promises what is not there, and tells the amounts that
// requests ask for apart exactly, as long as there are not too many.
func TestLevels(t *testing.T) {
	r := rand.New(rand.NewSource(1))
	for _, tt := range []struct {
		name    string
		unit    Milli
		amounts int
		exact   bool
	}{{"cores", 1000, 12, true}, {"quarters", 250, 40, true}, {"odd amounts", 1, 300, false}, {"none", 0, 1, true}} {
		t.Run(tt.name, func(t *testing.T) {
			l := newLoad(1, []Machine{{Model: "A", Devices: 8, DeviceMem: 80 << 10, CPU: 96_000}}, nil, nil)
			var amounts []Milli
			for range tt.amounts {
				q := share(100)
				q.CPU = tt.unit * Milli(r.Int63n(64_000/int64(max(tt.unit, 1))))
				amounts = append(amounts, q.CPU)
				l.Learn(q)
			}
			p := l.learn()
			for range 10_000 {
				free := Milli(r.Int63n(96_001))
				if tt.exact && tt.unit > 0 {
					free -= free % tt.unit
				}
				asked := amounts[r.Intn(len(amounts))]
				fits := p.levelOf(free) >= p.levelFor(asked)
				if fits && free < asked || tt.exact && !fits && free >= asked {
					t.Fatalf("%d fits into %d: %v", asked, free, fits)
				}
			}
			if p.levelFor(200_000) <= p.levelOf(96_000) {
				t.Error("more than any host has fits somewhere")
			}
		})
	}
}
