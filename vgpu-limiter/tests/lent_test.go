// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"path/filepath"
	"testing"

	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

func (c *container) files() (limits, counters, pace string) {
	return filepath.Join(c.dir, "limits"), filepath.Join(c.dir, "counters"), filepath.Join(c.dir, "pace")
}

// TestLent_WhenNobodyTakesItBack: a program whose memory is lent sees all of its limit, and has all of
// it, by each way of allocation, from the driver. How long it waits is tests/unit/lent_test.c's.
func TestLent_WhenNobodyTakesItBack(t *testing.T) {
	t.Parallel()
	for name, steps := range map[string][2]string{
		"plain":   {"alloc 1 60", "alloc 2 41"},
		"virtual": {"create 1 60 0", "create 2 41 0"},
		"async":   {"async 1 60 0", "async 2 41 0"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, share{0, 100})
			c.resizable(1)
			limits, counters, pace := c.files()
			p := c.start()
			must.Do(t, layout.SetReady(limits, counters, pace, c.status(0, "uuid"), 30*mib))
			p.wantUsed(0, 100)
			if got := p.call("total 0"); got[1] != 100*mib {
				t.Errorf("cuDeviceTotalMem says %d MiB, want 100", got[1]/mib)
			}
			p.want("alloc 9 30", ok)
			p.want("free 9", ok)
			p.want(steps[0], ok)
			p.want(steps[1], outOfMemory)
			p.wantUsed(60, 100)
			is := must.Get(layout.ReadLendable(limits, counters, pace))(t)[0]
			if want := (layout.Lendable{UUID: c.status(0, "uuid"), LimitBytes: 100 * mib, ReadyBytes: 30 * mib, ChargedBytes: 60 * mib}); is != want {
				t.Errorf("%+v, want %+v", is, want)
			}
		})
	}
}
