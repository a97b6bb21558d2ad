// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestFill(t *testing.T) {
	sources["given"] = func(args []string) (table, error) {
		t := table{head: []string{"a", "b"}}
		t.add(code(args...), "one | two\nthree")
		return t, nil
	}
	defer delete(sources, "given")
	const want = "before\n<!-- generated: given x y -->\n| a | b |\n|---|---|\n| `x`, `y` | one \\| two three |\n" + end + "\nafter\n"
	for _, old := range []string{"", "| something |\n| old |\n"} {
		got, err := fill("before\n<!-- generated: given x y -->\n" + old + end + "\nafter\n")
		if err != nil || got != want {
			t.Errorf("%v:\n%s\nwant\n%s", err, got, want)
		}
	}
	for page, says := range map[string]string{
		"<!-- generated: given -->\n":                                "1 of its 1 tables",
		"<!-- generated: unknown -->\n" + end + "\n":                 `nothing is known of "unknown"`,
		"<!-- generated: fields neither -->\n" + end + "\n":          "fields neither: ",
		"<!-- generated: given -->\n" + end + "\n" + end + " more\n": "1 of its 2 tables",
	} {
		if _, err := fill(page); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%q: %v, want %q", page, err, says)
		}
	}
}

// What the tables say of a comment is a sentence by itself.
func TestSentence(t *testing.T) {
	for comment, want := range map[string]string{
		"Core is percent of it.": "Percent of it.",
		"Core of the device.":    "Core of the device.",
		"":                       "",
	} {
		if got := sentence("Core", comment); got != want {
			t.Errorf("%q: %q, want %q", comment, got, want)
		}
	}
}
