// SPDX-License-Identifier: Apache-2.0

package view

import "strings"

// Table is rows of cells under a header.
type Table struct {
	header []string
	rows   [][]string
	// gap is the space between two columns; 0 is the usual one.
	gap int
}

// Empty tells that there are no rows.
func (t Table) Empty() bool { return len(t.rows) == 0 }

// shown makes a cell one line: a message must not break the table. An empty one is "-", so
// that a column keeps its place for awk.
func shown(cell string) string {
	if cell = strings.Join(strings.Fields(cell), " "); cell == "" {
		return "-"
	}
	return cell
}
