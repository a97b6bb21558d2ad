// SPDX-License-Identifier: Apache-2.0

package view

import (
	"encoding/csv"
	"io"
	"slices"
	"strings"
)

// Table is rows of cells under a header.
type Table struct {
	header []string
	rows   [][]string
	// gap is the space between two columns; 0 is the usual one.
	gap int
}

// Empty tells that there are no rows.
func (t Table) Empty() bool { return len(t.rows) == 0 }

// narrow leaves out the column and those behind it, unless the table is to be wide.
func (t Table) narrow(wide bool, column string) Table {
	if n := slices.Index(t.header, column); !wide {
		t.header = t.header[:n]
		for i := range t.rows {
			t.rows[i] = t.rows[i][:n]
		}
	}
	return t
}

// shown makes a cell one line: a message must not break the table. An empty one is "-", so
// that a column keeps its place for awk.
func shown(cell string) string {
	if cell = strings.Join(strings.Fields(cell), " "); cell == "" {
		return "-"
	}
	return cell
}

// CSV writes the table for spreadsheets. None of its cells is taken for a formula.
func (t Table) CSV(to io.Writer, header bool) error {
	w := csv.NewWriter(to)
	rows := t.rows
	if header {
		rows = append([][]string{t.header}, rows...)
	}
	for _, row := range rows {
		row = slices.Clone(row)
		for i, cell := range row {
			if cell != "" && strings.ContainsAny(cell[:1], "=+-@") {
				row[i] = "'" + cell
			}
		}
		if err := w.Write(row); err != nil {
			return err
		}
	}
	w.Flush()
	return w.Error()
}
