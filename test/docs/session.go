// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"regexp"
	"strings"
)

// Step is a command of a session, and what the page shows of its answer.
type Step struct{ Command, Shown string }

// Steps are those of a session, in their order.
func (b Block) Steps() (all []Step) {
	for _, step := range regexp.MustCompile(`(?m)^\$ `).Split(b.Text, -1)[1:] {
		command, shown, _ := strings.Cut(step, "\n")
		all = append(all, Step{command, shown})
	}
	return all
}

// Prints reports whether each line that is shown is among the printed ones: its words in
// their order, where … is any part of a word and more words may come between. A line of …
// alone stands for any lines, and for none.
func Prints(printed, shown string) bool {
	lines := strings.Split(printed, "\n")
	for want := range strings.Lines(shown) {
		if strings.TrimSpace(want) == "…" {
			continue
		}
		words := strings.Fields(regexp.QuoteMeta(want))
		for i := range words {
			words[i] = strings.ReplaceAll(words[i], "…", `\S*`)
		}
		pattern := regexp.MustCompile(`^(.*\s)?` + strings.Join(words, `\s(.*\s)?`) + `(\s.*)?$`)
		found := -1
		for i, line := range lines {
			// Columns are set apart by several spaces.
			if pattern.MatchString(strings.Join(strings.Fields(line), " ")) {
				found = i
				break
			}
		}
		if found < 0 {
			return false
		}
		lines = append(lines[:found], lines[found+1:]...)
	}
	return true
}
