// SPDX-License-Identifier: Apache-2.0

package view

import (
	"io"
	"strings"
	"unicode/utf8"
)

// Table is rows of cells under a header.
type Table struct {
	header []string
	rows   [][]string
}

// Empty tells that there are no rows.
func (t Table) Empty() bool { return len(t.rows) == 0 }

// Print writes the table with columns as wide as their widest cell. An empty
// cell is printed as "-", so that a column keeps its place for awk.
func (t Table) Print(w io.Writer, header bool) error {
	rows := t.rows
	if header {
		rows = append([][]string{t.header}, rows...)
	}
	widths := make([]int, len(t.header))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(shown(cell)))
		}
	}
	var b strings.Builder
	for _, row := range rows {
		for i, cell := range row {
			cell = shown(cell)
			b.WriteString(cell)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-utf8.RuneCountInString(cell)+3))
			}
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// shown makes a cell one line: a message must not break the table.
func shown(cell string) string {
	if cell = strings.Join(strings.Fields(cell), " "); cell == "" {
		return "-"
	}
	return cell
}
