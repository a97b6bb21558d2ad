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
		got, err := text.Positions()
		if err != nil || !reflect.DeepEqual(got, positions) {
			t.Errorf("%q: %v, %v", text, got, err)
		}
		if set := DeviceSetOf(positions); set != text {
			t.Errorf("%v is written as %q", positions, set)
		}
	}
	for _, text := range []DeviceSet{"", "a", "3-1", "1,1", "2,1", "0-32", "-1", "1-", "0-999999999999", "1,,2"} {
		if got, err := text.Positions(); err == nil {
			t.Errorf("%q is read as %v", text, got)
		}
	}
}
