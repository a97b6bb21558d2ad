// SPDX-License-Identifier: Apache-2.0

package view

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"

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

func (u MemoryUnit) of(m Memory) string { return u.amount(m.Granted) + "/" + u.amount(m.Total) }

// Inspect prints memory as gpushare's own inspection does: a row for each node, a
// column for each GPU, and the sum. Addresses are the nodes', by name; one that is
// not known is printed as "unknown".
func Inspect(w io.Writer, devices []Device, addresses map[string]string, unit MemoryUnit) error {
	var names []string
	byNode, gpus := map[string][]Device{}, int32(0)
	for _, d := range devices {
		if byNode[d.Node] == nil {
			names = append(names, d.Node)
		}
		byNode[d.Node] = append(byNode[d.Node], d)
		if d.Index != nil {
			gpus = max(gpus, *d.Index+1)
		}
	}
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 2, ' ', 0)
	fmt.Fprint(t, "NAME\tIPADDRESS\t")
	for i := range gpus {
		fmt.Fprintf(t, "GPU%d(Allocated/Total)\t", i)
	}
	fmt.Fprintf(t, "GPU Memory(%s)\n", unit)
	var all Memory
	for _, name := range names {
		address := addresses[name]
		if address == "" {
			address = "unknown"
		}
		fmt.Fprintf(t, "%s\t%s\t", name, address)
		cells, sum := make([]Memory, gpus), Memory{}
		for _, d := range byNode[name] {
			if d.Index != nil {
				cells[*d.Index] = d.Mem
			}
			sum.Granted += d.Mem.Granted
			sum.Total += d.Mem.Total
		}
		for _, cell := range cells {
			fmt.Fprintf(t, "%s\t", unit.of(cell))
		}
		fmt.Fprintf(t, "%s\n", unit.of(sum))
		all.Granted += sum.Granted
		all.Total += sum.Total
	}
	if err := t.Flush(); err != nil {
		return err
	}
	header, _, _ := strings.Cut(text.String(), "\n")
	percent := int64(0)
	if all.Total > 0 {
		percent = int64(all.Granted) * 100 / int64(all.Total)
	}
	_, err := fmt.Fprintf(w, "%s%s\nAllocated/Total GPU Memory In Cluster:\n%s (%d%%)\n",
		text.String(), strings.Repeat("-", len(header)), unit.of(all), percent)
	return err
}
