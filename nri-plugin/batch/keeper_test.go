// SPDX-License-Identifier: Apache-2.0

package batch

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
	"github.com/go-logr/logr"

	"vernier.dev/vernier/nri-plugin/cgroup"
)

// host is a node of ten processors with a clock that the test turns, and the
// runtime on it.
type host struct {
	*Keeper
	t          *testing.T
	at         time.Time
	load       cgroup.Load
	times      map[string]time.Duration
	containers []Container
	limits     map[string]MilliCPU
	v2         bool
	// quotas as the runtime has them, in µs of 100,000; refuses are those that it
	// does not set.
	quotas  map[string]int64
	refuses map[string]bool
	// order of the latest updates; during runs while the runtime sets them.
	order  []string
	during func()
}

func newHost(t *testing.T) *host {
	h := &host{
		t: t, at: time.Unix(0, 0), load: cgroup.Load{CPUs: 10, Busy: 1, All: 1}, times: map[string]time.Duration{},
		limits: map[string]MilliCPU{}, quotas: map[string]int64{}, refuses: map[string]bool{},
	}
	h.Keeper = h.keeper()
	h.Look(h.at)
	return h
}

// keeper is that of an agent that has just started.
func (h *host) keeper() *Keeper {
	return &Keeper{
		Times: h, Cap: Cap{Share: 80}, Log: logr.Discard(), Update: h.update,
		Containers: func() []Container { return h.containers },
		Limit: func(c Container) (MilliCPU, bool) {
			limit, known := h.limits[c.ID]
			return limit, known
		},
	}
}

func (h *host) Node() (cgroup.Load, error) { return h.load, nil }
func (h *host) V2() bool                   { return h.v2 }
func (h *host) Container(_ uint32, id string) (time.Duration, error) {
	t, found := h.times[id]
	if !found {
		return 0, errors.New("gone")
	}
	return t, nil
}

func (h *host) update(all []*api.ContainerUpdate) (failed []*api.ContainerUpdate, err error) {
	h.order = nil
	for _, u := range all {
		h.order = append(h.order, u.GetContainerId())
		if h.refuses[u.GetContainerId()] {
			failed, err = append(failed, u), errors.New("refused")
			continue
		}
		h.quotas[u.GetContainerId()] = u.GetLinux().GetResources().GetCpu().GetQuota().GetValue()
	}
	if h.during != nil {
		h.during()
	}
	return failed, err
}

// start runs a container with a limit, 0 for none.
func (h *host) start(id string, limit MilliCPU) {
	h.limits[id], h.times[id] = limit, 0
	h.containers = append(h.containers, Container{ID: id, Seen: true, Quota: Quota{US: int64(limit) * 100, Period: 100000}})
}

func (h *host) end(i int) {
	delete(h.times, h.containers[i].ID)
	h.containers = append(h.containers[:i:i], h.containers[i+1:]...)
}

// pass lets time pass in which others and the containers use so many milli-CPU, and
// looks.
func (h *host) pass(d time.Duration, others MilliCPU, used map[string]MilliCPU) {
	busy := others
	for id, m := range used {
		busy += m
		if _, runs := h.times[id]; runs {
			h.times[id] += d * time.Duration(m) / 1000
		}
	}
	h.at = h.at.Add(d)
	h.load.Busy += uint64(busy) * uint64(d/time.Millisecond)
	h.load.All += uint64(h.load.CPUs) * 1000 * uint64(d/time.Millisecond)
	h.Look(h.at)
}

func (h *host) want(what string, quotas map[string]int64) {
	h.t.Helper()
	if !maps.Equal(h.quotas, quotas) {
		h.t.Errorf("%s: quotas %v, want %v", what, h.quotas, quotas)
	}
}

const s = time.Second

// The quotas of all containers follow what others use and what the containers
// themselves use does not count, nor what one has used that is gone.
func TestKeeper(t *testing.T) {
	h := newHost(t)
	h.start("a", 0)
	h.pass(5*s, 2000, map[string]MilliCPU{"a": 8000})
	h.want("alone", map[string]int64{"a": 600_000})
	h.start("b", 1000)
	h.pass(5*s, 2000, map[string]MilliCPU{"a": 6000, "b": 1000})
	h.want("beside one with a limit of 1", map[string]int64{"a": 500_000})
	h.pass(5*s, 5000, map[string]MilliCPU{"a": 4000, "b": 1000})
	h.want("others are busy", map[string]int64{"a": 200_000})
	h.pass(5*s, 9000, map[string]MilliCPU{"a": 1000})
	h.want("the floor", map[string]int64{"a": 25_000, "b": 25_000})
	if u := h.Use(); u != (Use{Containers: 2, Cap: 500, Used: 1000}) {
		t.Errorf("%+v", u)
	}
	h.end(0)
	delete(h.quotas, "a")
	h.pass(5*s, 2000, map[string]MilliCPU{"a": 1000, "b": 250})
	h.want("one has ended", map[string]int64{"b": 50_000})
	h.pass(30*s, 2000, map[string]MilliCPU{"b": 500})
	h.want("others have been quiet for a while", map[string]int64{"b": 100_000})
}

// The cap minds neither that one ends that has worked until then, nor that one is
// found that has worked for long.
func TestKeeperComings(t *testing.T) {
	h := newHost(t)
	h.start("a", 0)
	h.start("b", 0)
	h.pass(5*s, 2000, map[string]MilliCPU{"a": 3000, "b": 3000})
	h.end(0)
	h.pass(5*s, 2000, map[string]MilliCPU{"a": 3000, "b": 3000})
	if c := h.Use().Cap; c != 6000 {
		t.Errorf("one has ended: %d, want 6000", c)
	}
	h.start("c", 0)
	h.containers[1].Seen, h.times["c"] = false, time.Hour
	h.pass(5*s, 4000, map[string]MilliCPU{"b": 3000})
	if c := h.Use().Cap; c != 4000 {
		t.Errorf("one is found: %d, want 4000", c)
	}
}

// What shrinks is set first, and nothing is set again that is as it should be.
func TestKeeperOrder(t *testing.T) {
	h := newHost(t)
	h.start("a", 0)
	h.pass(5*s, 0, nil)
	h.start("b", 0)
	h.containers[1].Quota.US = 100_000
	h.containers[0], h.containers[1] = h.containers[1], h.containers[0]
	h.pass(5*s, 0, nil)
	if got := strings.Join(h.order, " "); got != "a b" {
		t.Errorf("set in the order %q, want a b", got)
	}
	h.order = nil
	h.pass(5*s, 0, nil)
	if len(h.order) > 0 {
		t.Errorf("set again: %v", h.order)
	}
}

// Invariant 4: an agent that is started again takes up the quotas that the runtime
// has, whatever the containers have used before, and raises none past the pod's own
// limit; past what there is where nobody knows the limit.
func TestKeeperRestart(t *testing.T) {
	h := newHost(t)
	h.start("a", 0)
	h.start("b", 3000)
	h.start("c", 0)
	h.pass(5*s, 5000, nil)
	before := maps.Clone(h.quotas)
	h.want("before", map[string]int64{"a": 100_000, "b": 100_000, "c": 100_000})
	for i := range h.containers {
		c := &h.containers[i]
		c.Seen, c.Quota.US = false, h.quotas[c.ID]
		h.times[c.ID] += time.Hour
	}
	delete(h.limits, "c")
	h.Keeper = h.keeper()
	h.Look(h.at)
	h.pass(5*s, 5000, map[string]MilliCPU{"a": 900, "b": 900, "c": 900})
	h.want("as it was", before)
	h.pass(5*s, 0, nil)
	h.pass(30*s, 0, nil)
	h.want("room for all", map[string]int64{"a": 400_000, "b": 300_000, "c": 100_000})
}

// A quota that the runtime does not set is tried again.
func TestKeeperRefused(t *testing.T) {
	h := newHost(t)
	h.start("a", 0)
	h.start("b", 0)
	h.refuses["b"] = true
	h.pass(5*s, 0, nil)
	h.want("one refused", map[string]int64{"a": 400_000})
	h.refuses["b"] = false
	h.pass(5*s, 0, nil)
	h.want("tried again", map[string]int64{"a": 400_000, "b": 400_000})
	if got := fmt.Sprint(h.order); got != "[b]" {
		t.Errorf("tried again: %s, want b alone", got)
	}
}

// What the kubelet sets on a running container is kept below the cap, and its limit
// is the container's from then on.
func TestResized(t *testing.T) {
	h := newHost(t)
	h.start("a", 0)
	h.pass(5*s, 4000, nil)
	h.want("before", map[string]int64{"a": 400_000})
	resize := func(quota int64, shares uint64) *api.ContainerUpdate {
		u := &api.ContainerUpdate{}
		u.SetLinuxCPUQuota(quota)
		u.SetLinuxCPUPeriod(100_000)
		u.SetLinuxCPUShares(shares)
		return h.Resized(h.containers[0], u.GetLinux().GetResources())
	}
	cpu := func(u *api.ContainerUpdate) string {
		c := u.GetLinux().GetResources().GetCpu()
		return fmt.Sprint(c.GetQuota().GetValue(), c.GetShares().GetValue())
	}
	if got := cpu(resize(900_000, 4096)); got != "400000 2" {
		t.Errorf("a larger limit: %s", got)
	}
	if got := cpu(resize(-1, 0)); got != "400000 0" {
		t.Errorf("no limit: %s", got)
	}
	if got := cpu(resize(200_000, 0)); got != "200000 0" {
		t.Errorf("a smaller limit: %s", got)
	}
	h.limits["a"] = 2000
	h.pass(5*s, 4000, nil)
	h.want("nothing is to be set", map[string]int64{"a": 400_000})
	if u := h.Resized(h.containers[0], &api.LinuxResources{Cpu: &api.LinuxCPU{Cpus: "0-3"}}); u != nil {
		t.Errorf("the kubelet's CPU set is none of ours: %+v", u)
	}

	// One that comes while we set ours: it is not known which was the last.
	h.limits["a"] = 3000
	h.during = func() { resize(100_000, 0) }
	h.pass(5*s, 4000, nil)
	h.during, h.order = nil, nil
	h.pass(5*s, 4000, nil)
	h.want("set once more", map[string]int64{"a": 300_000})
	if len(h.order) != 1 {
		t.Error("it was not set once more")
	}
}

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

// The cap falls with the others' use at once, rises when there has been more room
// for a while and then only to the least of it, and has a floor.
func TestCap(t *testing.T) {
	type look struct {
		after  time.Duration
		others MilliCPU
		n      int
		want   MilliCPU
	}
	for name, looks := range map[string][]look{
		"first":                   {{0, 2000, 1, 6000}},
		"falls at once":           {{0, 2000, 1, 6000}, {5, 4000, 1, 4000}, {5, 7000, 1, 1000}},
		"less than a step":        {{0, 2000, 1, 6000}, {5, 2400, 1, 6000}, {5, 1700, 1, 6000}, {60, 1700, 1, 6000}},
		"rises when it has held":  {{0, 4000, 1, 4000}, {5, 1000, 1, 4000}, {25, 1000, 1, 4000}, {5, 1000, 1, 7000}},
		"rises to the least":      {{0, 4000, 1, 4000}, {5, 1000, 1, 4000}, {10, 3000, 1, 4000}, {20, 0, 1, 5000}},
		"a relapse starts again":  {{0, 4000, 1, 4000}, {5, 1000, 1, 4000}, {10, 4000, 1, 4000}, {5, 1000, 1, 4000}, {25, 1000, 1, 4000}, {5, 1000, 1, 7000}},
		"floor of the node":       {{0, 10000, 1, 500}, {5, 9000, 1, 500}},
		"floor of the containers": {{0, 10000, 1, 500}, {5, 10000, 20, 1000}},
		"none":                    {{0, 2000, 0, 6000}},
	} {
		c, at := Cap{Share: 80}, time.Unix(0, 0)
		for i, l := range looks {
			at = at.Add(l.after * time.Second)
			if got := c.Follow(at, 10000, l.others, l.n); got != l.want {
				t.Errorf("%s, look %d: %d, want %d", name, i, got, l.want)
			}
		}
	}
}

func TestDivide(t *testing.T) {
	for _, c := range []struct {
		whole  MilliCPU
		limits []MilliCPU
		want   []MilliCPU
	}{
		{1000, nil, []MilliCPU{}},
		{1000, []MilliCPU{0}, []MilliCPU{1000}},
		{1000, []MilliCPU{0, 0, 0}, []MilliCPU{330, 330, 340}},
		{1000, []MilliCPU{0, 100, 0}, []MilliCPU{450, 100, 450}},
		{1000, []MilliCPU{4000, 2000}, []MilliCPU{500, 500}},
		{1000, []MilliCPU{100, 200}, []MilliCPU{100, 200}},
	} {
		got := divide(c.whole, c.limits)
		if !slices.Equal(got, c.want) {
			t.Errorf("%d over %d: %d, want %d", c.whole, c.limits, got, c.want)
		}
	}
}
