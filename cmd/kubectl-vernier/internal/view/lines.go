// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"math"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// squeeze is one way of making a table narrower.
type squeeze struct {
	// gap is the space between two columns, word the length of words that aren't broken,
	// and whole that numbers and the words of the header aren't, of any length.
	gap, word int
	whole     bool
}

// squeezes are tried in this order.
var squeezes = []squeeze{{2, math.MaxInt, true}, {1, math.MaxInt, true}, {2, 12, true}, {1, 12, true}, {2, 8, true}, {1, 8, true}, {1, 8, false}, {1, 7, false}, {1, 5, false}}

// Lines is the table as wide as it is, or in width columns of characters. Cells that are
// too long go on below themselves, and nothing is left out. A width of 0 is none, and one
// that is too narrow for the table counts as none.
func (t Table) Lines(width int, header bool) (head, rows []string) {
	widths, gap := t.widths(header), cmp.Or(t.gap, 3)
	if width > 0 && total(widths, gap) > width {
		for _, by := range squeezes {
			if narrow := t.shrink(width, by, header); total(narrow, by.gap) <= width {
				widths, gap = narrow, by.gap
				break
			}
		}
	}
	if header {
		head = layOut(t.header, widths, gap)
	}
	for _, row := range t.rows {
		rows = append(rows, layOut(row, widths, gap)...)
	}
	return head, rows
}

// widths are those of the longest cells.
func (t Table) widths(header bool) []int {
	widths := make([]int, len(t.header))
	for _, row := range t.all(header) {
		for i, cell := range row {
			widths[i] = max(widths[i], length(shown(cell)))
		}
	}
	return widths
}

func (t Table) all(header bool) [][]string {
	if header {
		return append([][]string{t.header}, t.rows...)
	}
	return t.rows
}

func total(widths []int, gap int) int {
	sum := gap * (len(widths) - 1)
	for _, w := range widths {
		sum += w
	}
	return sum
}

// shrink takes from the columns that go on over the fewest lines, until the table fits or
// each is as narrow as it may be: the rows are as low as they can be then.
func (t Table) shrink(width int, by squeeze, header bool) []int {
	natural := t.widths(header)
	least := t.least(by, header)
	widths := slices.Clone(natural)
	for over := total(widths, by.gap) - width; over > 0; over-- {
		best := -1
		for i, w := range widths {
			if w > least[i] && (best < 0 || natural[i]*widths[best] < natural[best]*w) {
				best = i
			}
		}
		if best < 0 {
			break
		}
		widths[best]--
	}
	return widths
}

// least are the widths below which the squeeze makes no column. Digits of one number stay
// together in any case.
func (t Table) least(by squeeze, header bool) []int {
	least := make([]int, len(t.header))
	for _, row := range t.rows {
		for i, cell := range row {
			cell = shown(cell)
			switch {
			case strings.ContainsFunc(cell, unicode.IsLetter):
				least[i] = max(least[i], min(longest(pieces(cell)), by.word))
			case by.whole:
				least[i] = max(least[i], length(cell))
			default:
				least[i] = max(least[i], longest(pieces(cell)))
			}
		}
	}
	for i, cell := range t.header {
		switch word := longest(pieces(cell)); {
		case !header:
		case by.whole:
			least[i] = max(least[i], word)
		default:
			least[i] = max(least[i], min(word, by.word))
		}
	}
	return least
}

func longest(pieces []string) (most int) {
	for _, p := range pieces {
		most = max(most, length(strings.TrimRight(p, " ")))
	}
	return most
}

// layOut is a row as lines, each cell below itself. The last cell has no space behind it.
func layOut(row []string, widths []int, gap int) []string {
	parts, height := make([][]string, len(row)), 0
	for i, cell := range row {
		parts[i] = wrap(shown(cell), max(widths[i], 1))
		height = max(height, len(parts[i]))
	}
	lines := make([]string, height)
	for n := range lines {
		var b strings.Builder
		for i, part := range parts {
			text := ""
			if n < len(part) {
				text = part[n]
			}
			b.WriteString(text)
			if i < len(row)-1 {
				b.WriteString(strings.Repeat(" ", widths[i]-length(text)+gap))
			}
		}
		lines[n] = strings.TrimRight(b.String(), " ")
	}
	return lines
}

// wrap breaks a text between its pieces, and within one that is longer than a line.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, p := range pieces(text) {
		if line != "" && length(strings.TrimRight(line+p, " ")) > width {
			lines, line = append(lines, strings.TrimRight(line, " ")), ""
		}
		for line += p; length(strings.TrimRight(line, " ")) > width; {
			cut := []rune(line)
			lines, line = append(lines, string(cut[:width])), string(cut[width:])
		}
	}
	return append(lines, strings.TrimRight(line, " "))
}

// pieces are what a text may be broken between: behind a space or punctuation, and before
// a bracket.
func pieces(text string) (all []string) {
	begin := 0
	for i, r := range text {
		switch {
		case r == ' ' && i == begin && i > 0:
			all[len(all)-1] += " "
			begin++
		case r == '(' && i > begin && !strings.HasPrefix(text[i:], "(s)"):
			all, begin = append(all, text[begin:i]), i
		case strings.ContainsRune(" ,;:/-.=_", r) && i > begin:
			end := i + utf8.RuneLen(r)
			all, begin = append(all, text[begin:end]), end
		}
	}
	if begin < len(text) {
		all = append(all, text[begin:])
	}
	return all
}

func length(text string) int { return utf8.RuneCountInString(text) }
