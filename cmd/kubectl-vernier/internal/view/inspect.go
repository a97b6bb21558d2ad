// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	model "vernier.dev/vernier/allocator/state/view"
	"vernier.dev/vernier/api/v1alpha1"
)

// MemoryUnit is what Inspect counts memory in.
type MemoryUnit string

// Units of memory.
const (
	UnitGiB MemoryUnit = "GiB"
	UnitMiB MemoryUnit = "MiB"
)

// amount in the unit, with one decimal where it is not whole.
func (u MemoryUnit) amount(m v1alpha1.MiB) string {
	if u == UnitMiB {
		return strconv.FormatInt(int64(m), 10)
	}
	text := strconv.FormatFloat(float64(m)/1024, 'f', 1, 64)
	return strings.TrimSuffix(text, ".0")
}

func (u MemoryUnit) of(m model.Memory) string { return u.amount(m.Granted) + "/" + u.amount(m.Total) }

// Inspect is memory as gpushare's own inspection shows it: a row for each node, a
// column for each GPU, and below the table the sum. Addresses are the nodes', by name; one
// that is not known is shown as "unknown".
func Inspect(devices []model.Device, addresses map[string]string, unit MemoryUnit) (t Table, sum string) {
	var names []string
	byNode, gpus := map[string][]model.Device{}, int32(0)
	for _, d := range devices {
		if byNode[d.Node] == nil {
			names = append(names, d.Node)
		}
		byNode[d.Node] = append(byNode[d.Node], d)
		if d.Index != nil {
			gpus = max(gpus, *d.Index+1)
		}
	}
	t = Table{header: []string{"NAME", "IPADDRESS"}, gap: 2}
	for i := range gpus {
		t.header = append(t.header, fmt.Sprintf("GPU%d(Allocated/Total)", i))
	}
	t.header = append(t.header, fmt.Sprintf("GPU Memory(%s)", unit))
	var all model.Memory
	for _, name := range names {
		cells, sum := make([]model.Memory, gpus), model.Memory{}
		for _, d := range byNode[name] {
			if d.Index != nil {
				cells[*d.Index] = d.Mem
			}
			sum.Granted += d.Mem.Granted
			sum.Total += d.Mem.Total
		}
		row := []string{name, cmp.Or(addresses[name], "unknown")}
		for _, cell := range append(cells, sum) {
			row = append(row, unit.of(cell))
		}
		t.rows = append(t.rows, row)
		all.Granted += sum.Granted
		all.Total += sum.Total
	}
	percent := int64(0)
	if all.Total > 0 {
		percent = int64(all.Granted) * 100 / int64(all.Total)
	}
	return t, fmt.Sprintf("Allocated/Total GPU Memory In Cluster:\n%s (%d%%)\n", unit.of(all), percent)
}
