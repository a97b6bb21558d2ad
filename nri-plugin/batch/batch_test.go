// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"testing"

	"github.com/containerd/nri/pkg/api"
)

// What a container is created with, by both versions of cgroups: little weight, first
// in line when memory is short, and no more processors than the cap, the others'
// parts and its own limit leave.
func TestAdjust(t *testing.T) {
	const gib = 1 << 30
	for name, c := range map[string]struct {
		v2        bool
		limit     int64 // memory
		high      string
		quota     int64
		running   int
		wantQuota int64
		wantHigh  string
	}{
		"v1":                        {limit: gib, wantQuota: 800_000},
		"v2":                        {v2: true, limit: gib, wantQuota: 800_000, wantHigh: "966365184"},
		"v2, no limit":              {v2: true, wantQuota: 800_000},
		"v2, the kubelet's is less": {v2: true, limit: gib, high: "1048576", wantQuota: 800_000},
		"v2, the kubelet's is more": {v2: true, limit: gib, high: "1073741824", wantQuota: 800_000, wantHigh: "966365184"},
		"v2, the kubelet's is none": {v2: true, limit: gib, high: "max", wantQuota: 800_000, wantHigh: "966365184"},
		"its own limit":             {quota: 150_000, wantQuota: 150_000},
		"one of four":               {running: 3, wantQuota: 200_000},
	} {
		h := newHost(t)
		h.v2 = c.v2
		for i := range c.running {
			h.start(string(rune('a'+i)), 0)
		}
		h.pass(5*s, 0, nil)
		r := &api.LinuxResources{Memory: &api.LinuxMemory{}, Cpu: &api.LinuxCPU{Shares: api.UInt64(1024)}, Unified: map[string]string{}}
		if c.limit > 0 {
			r.Memory.Limit = api.Int64(c.limit)
		}
		if c.quota > 0 {
			r.Cpu.Quota, r.Cpu.Period = api.Int64(c.quota), api.UInt64(100_000)
		}
		if c.high != "" {
			r.Unified[memoryHigh] = c.high
		}
		adjust := &api.ContainerAdjustment{}
		h.Adjust(&api.Container{Linux: &api.LinuxContainer{Resources: r}}, adjust)
		got := adjust.GetLinux().GetResources()
		if q := got.GetCpu(); q.GetShares().GetValue() != weight || q.GetQuota().GetValue() != c.wantQuota || q.GetPeriod().GetValue() != 100_000 || q.GetCpus() != "" {
			t.Errorf("%s: processors %+v, want a quota of %d", name, q, c.wantQuota)
		}
		if high := got.GetUnified()[memoryHigh]; high != c.wantHigh || got.GetMemory() != nil {
			t.Errorf("%s: memory.high %q, memory %+v; want %q and no more", name, high, got.GetMemory(), c.wantHigh)
		}
		if score := adjust.GetLinux().GetOomScoreAdj().GetValue(); score != firstToGo {
			t.Errorf("%s: score %d", name, score)
		}
	}
}

// Before there is a cap a container has its own limit; the first cap takes it in.
func TestAdjustBeforeCap(t *testing.T) {
	h := newHost(t)
	adjust := &api.ContainerAdjustment{}
	h.Adjust(&api.Container{}, adjust)
	if q := adjust.GetLinux().GetResources().GetCpu(); q.GetQuota() != nil {
		t.Errorf("quota %+v", q)
	}
}
