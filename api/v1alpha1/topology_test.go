// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"reflect"
	"testing"
)

func TestParseTopology(t *testing.T) {
	for text, want := range map[string]struct {
		level    TopologyLevel
		required bool
		levels   []TopologyLevel
	}{
		"":                {"", false, nil},
		"nvlink":          {"nvlink", false, []TopologyLevel{"nvlink", "pcie", "numa", "node"}},
		"pcie":            {"pcie", false, []TopologyLevel{"pcie", "numa", "node"}},
		"numa":            {"numa", false, []TopologyLevel{"numa", "node"}},
		"numa:required":   {"numa", true, []TopologyLevel{"numa"}},
		"rdma":            {"rdma", false, []TopologyLevel{"rdma", "node"}},
		"nvlink:required": {"nvlink", true, []TopologyLevel{"nvlink"}},
	} {
		got, err := ParseTopology(text)
		if err != nil || got.Level != want.level || got.Required != want.required || !reflect.DeepEqual(got.Levels(), want.levels) {
			t.Errorf("%q: %+v with levels %v, %v", text, got, got.Levels(), err)
		}
		if got.String() != text {
			t.Errorf("%q is written as %q", text, got)
		}
	}
	for _, text := range []string{":required", "node", "NUMA", "numa:", "numa:preferred", "numa:required:required"} {
		if got, err := ParseTopology(text); err == nil {
			t.Errorf("%q is read as %+v", text, got)
		}
	}
}

func TestDeviceSet(t *testing.T) {
	for text, positions := range map[DeviceSet][]int{"0-3": {0, 1, 2, 3}, "0-1,4": {0, 1, 4}, "7": {7}, "0-3,6,30-31": {0, 1, 2, 3, 6, 30, 31}} {
		want := uint32(0)
		for _, at := range positions {
			want |= 1 << at
		}
		if got, err := text.mask(); err != nil || got != want {
			t.Errorf("%q: %b, %v", text, got, err)
		}
		if set := DeviceSetOf(positions); set != text {
			t.Errorf("%v is written as %q", positions, set)
		}
	}
	for _, text := range []DeviceSet{"", "a", "3-1", "1,1", "2,1", "0-32", "-1", "1-", "0-999999999999", "1,,2"} {
		if got, err := text.mask(); err == nil {
			t.Errorf("%q is read as %b", text, got)
		}
	}
}

func TestNear(t *testing.T) {
	s := &SliceLedgerStatus{Devices: make([]DeviceStatus, 4)}
	if got := s.Near(); got[0] != (Near{}) {
		t.Errorf("without topology: %+v", got[0])
	}
	s.Devices[1].NICs = []string{"mlx5_0"}
	s.Devices[3].MIG = MIGEnabled
	s.Topology = &TopologyStatus{NUMA: []DeviceSet{"0-1", "2-3"}, PCIe: []DeviceSet{"0-1", "3-4", "bad", "2-3"}, NVLink: []DeviceSet{"0-3"}}
	near := s.Near()
	want := []Near{{NUMA: 1, PCIe: 1, NVLink: 1}, {NUMA: 1, PCIe: 1, NVLink: 1, RDMA: 1}, {NUMA: 2, PCIe: 8, NVLink: 1}, {NUMA: 2, PCIe: 8}}
	if !reflect.DeepEqual(near[:4], want) {
		t.Errorf("%+v, want %+v", near[:4], want)
	}
	for name, c := range map[string]struct {
		level TopologyLevel
		of    []Near
		want  bool
	}{
		"two on one switch":      {TopologyPCIe, near[:2], true},
		"two on two NUMA nodes":  {TopologyNUMA, near[1:3], false},
		"three linked":           {TopologyNVLink, near[:3], true},
		"one in MIG mode":        {TopologyNVLink, near[2:4], false},
		"it alone":               {TopologyNVLink, near[3:4], true},
		"one without a NIC":      {TopologyRDMA, near[:2], false},
		"it alone without a NIC": {TopologyRDMA, near[:1], false},
		"one with a NIC":         {TopologyRDMA, near[1:2], true},
		"all on one node":        {TopologyNode, near[:4], true},
	} {
		if got := c.level.Within(c.of...); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	s.Topology.PCIe[2] = "2" // an error is an allocation
	if n := testing.AllocsPerRun(10, func() { near = s.Near() }); n > 0 {
		t.Errorf("%v allocations", n)
	}
}
