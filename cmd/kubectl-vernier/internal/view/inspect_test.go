// SPDX-License-Identifier: Apache-2.0

package view

import (
	"strings"
	"testing"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// The form that users of gpushare know.
func TestInspect(t *testing.T) {
	at := func(i int32) *int32 { return &i }
	gib := func(granted, total float64) model.Memory {
		return model.Memory{Granted: v1alpha1.MiB(granted * 1024), Total: v1alpha1.MiB(total * 1024)}
	}
	devices := []model.Device{
		{Node: "node1", Index: at(0), Mem: gib(6, 15)}, {Node: "node1", Index: at(1), Mem: gib(3, 15)},
		{Node: "node2", Index: at(0), Mem: gib(0.5, 15)}, {Node: "node2", Mem: gib(1, 0)},
	}
	const want = `NAME   IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)
node1  10.0.0.1   6/15                   3/15                   9/30
node2  unknown    0.5/15                 0/0                    1.5/15
Allocated/Total GPU Memory In Cluster:
10.5/45 (23%)
`
	table, sum := Inspect(devices, map[string]string{"node1": "10.0.0.1"}, UnitGiB)
	head, rows := table.Lines(0, true)
	if got := strings.Join(append(head, rows...), "\n") + "\n" + sum; got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}
