// SPDX-License-Identifier: Apache-2.0

// Command gen writes the parts of the reference that the code knows: names, metrics,
// the chart's values, the ledger's fields. It replaces what stands between
//
//	<!-- generated: SOURCE ARGUMENT... -->
//	<!-- end of what is generated -->
//
// in the pages that it is given, and never touches the prose around it. It runs in the
// repository's root.
package main

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// sources make a table each, from the words in the page.
var sources = map[string]func(args []string) (table, error){
	"names":   names,
	"metrics": told,
	"values":  values,
	"fields":  fields,
	"causes":  causes,
}

func main() {
	for _, page := range os.Args[1:] {
		if err := rewrite(page); err != nil {
			fmt.Fprintf(os.Stderr, "gen: %s: %v\n", page, err)
			os.Exit(1)
		}
	}
}

func rewrite(page string) error {
	text, err := os.ReadFile(page)
	if err != nil {
		return err
	}
	now, err := fill(string(text))
	if err != nil || now == string(text) {
		return err
	}
	return os.WriteFile(page, []byte(now), 0o644)
}

const (
	start = "<!-- generated: "
	end   = "<!-- end of what is generated -->"
)

var region = regexp.MustCompile(`(?ms)^` + start + `([^\n]*) -->\n(.*?)^` + end + `$`)

// fill is the page with all tables as they are now.
func fill(page string) (string, error) {
	found := region.FindAllStringSubmatch(page, -1)
	if n := max(strings.Count(page, start), strings.Count(page, end)); n != len(found) {
		return "", fmt.Errorf("%d of its %d tables begin or end in no line of their own", n-len(found), n)
	}
	var failed error
	now := region.ReplaceAllStringFunc(page, func(text string) string {
		words := strings.Fields(region.FindStringSubmatch(text)[1])
		source, known := sources[words[0]]
		if !known {
			failed = fmt.Errorf("nothing is known of %q", words[0])
			return text
		}
		t, err := source(words[1:])
		if err != nil {
			failed = fmt.Errorf("%s: %w", strings.Join(words, " "), err)
			return text
		}
		return start + strings.Join(words, " ") + " -->\n" + t.String() + end
	})
	return now, failed
}

// table is rows under a head.
type table struct {
	head []string
	rows [][]string
}

func (t *table) add(cells ...string) { t.rows = append(t.rows, cells) }

// String is the table in Markdown.
func (t table) String() string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(t.head)
	b.WriteString(strings.Repeat("|---", len(t.head)) + "|\n")
	for _, row := range t.rows {
		cells := make([]string, len(row))
		for i, cell := range row {
			cells[i] = strings.ReplaceAll(strings.Join(strings.Fields(cell), " "), "|", `\|`)
		}
		line(cells)
	}
	return b.String()
}

// code sets words as such.
func code(words ...string) string {
	var all []string
	for _, w := range words {
		all = append(all, "`"+w+"`")
	}
	return strings.Join(all, ", ")
}

// sentence is a comment of the code without the name that Go begins it with.
func sentence(name, comment string) string {
	comment = strings.TrimPrefix(strings.TrimPrefix(comment, name+" is "), name+" are ")
	if comment == "" {
		return ""
	}
	return strings.ToUpper(comment[:1]) + comment[1:]
}
