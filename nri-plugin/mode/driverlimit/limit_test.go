// SPDX-License-Identifier: Apache-2.0

package driverlimit

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/test/must"
)

// lib is the rest of NVML, which is not called.
type lib = interface{ device.Library }

// gpus keep limits by device and cgroup; those in lacking have none, and halves
// keeps half of what it is told.
type gpus struct {
	lib
	driver  v1alpha1.DriverStatus
	limits  map[string]v1alpha1.MiB
	lacking string
	halves  string
	set     int
	away    error
}

func (g *gpus) Snapshot() (device.Snapshot, bool) { return device.Snapshot{Driver: g.driver}, true }
func (g *gpus) Library() (device.Library, error)  { return g, g.away }
func (g *gpus) SetMemoryLimit(uuid, cgroup string, m v1alpha1.MiB) error {
	g.set++
	switch uuid {
	case g.lacking:
		return device.ErrUnsupported
	case g.halves:
		m /= 2
	}
	g.limits[uuid+cgroup] = m
	return nil
}
func (g *gpus) MemoryLimit(uuid, cgroup string) (v1alpha1.MiB, error) {
	return g.limits[uuid+cgroup], nil
}

func newGPUs() *gpus {
	return &gpus{driver: v1alpha1.DriverStatus{MemoryLimits: true}, limits: map[string]v1alpha1.MiB{}}
}

func container() (mode.Container, []v1alpha1.SliceStatus) {
	c := mode.Container{ID: "c", Grants: []ledger.Grant{{UUID: "GPU-0", Mem: 1024}, {UUID: "GPU-1", Mem: 2048}}}
	return c, []v1alpha1.SliceStatus{{Memory: v1alpha1.GuaranteeCooperative}, {Memory: v1alpha1.GuaranteeCooperative}}
}

func leaf(_ uint32, container string) (string, error) { return "/" + container, nil }

// Each device has its own limit, on the same cgroup, and is read back.
func TestSeveralDevices(t *testing.T) {
	g := newGPUs()
	l := &Limit{Devices: g, Leaf: leaf}
	c, all := container()
	must.Do(t, l.Apply(c, 1, all))
	if g.limits["GPU-0/c"] != 1024 || g.limits["GPU-1/c"] != 2048 {
		t.Errorf("limits %v", g.limits)
	}
	for _, s := range all {
		if s.Memory != v1alpha1.GuaranteeDriver || s.Note != "" {
			t.Errorf("%+v", s)
		}
	}
	// After a restart it is read and not set again; what somebody has changed since
	// is no guarantee any more.
	g.limits["GPU-1/c"], g.set = 4096, 0
	_, all = container()
	if err := l.Observe(c, 1, all); err != nil || g.set != 0 {
		t.Errorf("%v, set %d times", err, g.set)
	}
	if all[0].Memory != v1alpha1.GuaranteeDriver || all[1].Memory != v1alpha1.GuaranteeCooperative || !strings.Contains(all[1].Note, "4096 MiB") {
		t.Errorf("%+v", all)
	}
}

// Invariant 2: a container that was created with us and started without, between two
// agents, gets its limit as soon as it is seen.
func TestStartedWithoutUs(t *testing.T) {
	g := newGPUs()
	g.limits["GPU-1/c"] = 2048
	c, all := container()
	if err := (&Limit{Devices: g, Leaf: leaf}).Observe(c, 1, all); err != nil || g.set != 1 || g.limits["GPU-0/c"] != 1024 {
		t.Errorf("%v, set %d times, %v", err, g.set, g.limits)
	}
	for _, s := range all {
		if s.Memory != v1alpha1.GuaranteeDriver || s.Note != "" {
			t.Errorf("%+v", s)
		}
	}
	// What the device cannot hold is said, as for one that is read only.
	g.lacking, g.limits = "GPU-0", map[string]v1alpha1.MiB{"GPU-1/c": 2048}
	_, all = container()
	must.Report(t, (&Limit{Devices: g, Leaf: leaf}).Observe(c, 1, all))
	if all[0].Memory != v1alpha1.GuaranteeCooperative || !strings.Contains(all[0].Note, "not supported") || all[1].Memory != v1alpha1.GuaranteeDriver {
		t.Errorf("%+v", all)
	}
}

// While NVML does not answer nothing is known of what is in force: it is looked at again.
func TestNoAnswer(t *testing.T) {
	g := newGPUs()
	g.away = errors.New("NVML has not answered")
	c, all := container()
	l := &Limit{Devices: g, Leaf: leaf}
	if err := l.Observe(c, 1, all); !errors.Is(err, g.away) || all[0].Note != "" {
		t.Errorf("%v, %+v", err, all)
	}
	if err := l.Apply(c, 1, all); !errors.Is(err, g.away) {
		t.Errorf("Invariant 2: %v", err)
	}
}

// Where driver, device or cgroups lack it, the slice says so and the container
// starts; where it is not known, or another limit than the slice's is in force, it
// does not.
func TestFallsBack(t *testing.T) {
	none := func(uint32, string) (string, error) { return "", fmt.Errorf("%w: in /", cgroup.ErrNone) }
	gone := func(uint32, string) (string, error) { return "", errors.New("no such process") }
	for name, c := range map[string]struct {
		change func(*gpus)
		leaf   func(uint32, string) (string, error)
		notes  [2]string
		says   string
	}{
		"older driver": {leaf: leaf, notes: [2]string{"R615", "R615"}, change: func(g *gpus) {
			g.driver = v1alpha1.DriverStatus{MemoryLimitsReason: "they come with R615"}
		}},
		"one device without": {leaf: leaf, notes: [2]string{"", "not supported"}, change: func(g *gpus) { g.lacking = "GPU-1" }},
		"shared cgroup":      {leaf: none, notes: [2]string{"directory of its own", "directory of its own"}},
		"cgroup v1":          {notes: [2]string{"no cgroup v2", "no cgroup v2"}},
		"process gone":       {leaf: gone, says: "no such process"},
		"another limit":      {leaf: leaf, says: "512 MiB of device GPU-0 instead of 1024", change: func(g *gpus) { g.halves = "GPU-0" }},
	} {
		g := newGPUs()
		if c.change != nil {
			c.change(g)
		}
		held, all := container()
		err := (&Limit{Devices: g, Leaf: c.leaf}).Apply(held, 1, all)
		if c.says != "" {
			if err == nil || !strings.Contains(err.Error(), c.says) {
				t.Errorf("Invariant 2: %s: %v, want %q", name, err, c.says)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for i, note := range c.notes {
			want := v1alpha1.GuaranteeDriver
			if note != "" {
				want = v1alpha1.GuaranteeCooperative
			}
			if all[i].Memory != want || !strings.Contains(all[i].Note, note) || (note == "") != (all[i].Note == "") {
				t.Errorf("%s: %+v", name, all[i])
			}
		}
	}
}
