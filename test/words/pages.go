// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// budget is how many words the pages of some patterns may have together.
type budget struct {
	max      int
	patterns []string
	words    int
}

// uncounted pages have no budget, and nobody rewrites what a release or a decision said.
func uncounted(page string) bool {
	return page == "CHANGELOG.md" || strings.HasPrefix(page, "docs/decisions/")
}

// handWritten returns the pages that are in git or will be.
func handWritten() (pages []string, err error) {
	out, err := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md").Output()
	for _, page := range strings.Fields(string(out)) {
		if _, err := os.Stat(page); err == nil && !uncounted(page) {
			pages = append(pages, page)
		}
	}
	return pages, err
}

var (
	generated = regexp.MustCompile(`(?s)<!-- generated: .*?<!-- end of what is generated -->`)
	remark    = regexp.MustCompile(`(?s)<!--.*?-->`)
	word      = regexp.MustCompile(`[^\s|]*[\pL\pN][^\s|]*`)
)

// count returns the words of a page that somebody wrote.
func count(text string) int {
	text = remark.ReplaceAllString(generated.ReplaceAllString(text, ""), "")
	return len(word.FindAllString(text, -1))
}

// budgets reads the lines of a file: a number and the patterns it is for. The last pattern is "all".
func budgets(text string) (all []budget, err error) {
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		max, err := strconv.Atoi(fields[0])
		if err != nil || len(fields) < 2 {
			return nil, fmt.Errorf("%q is no number of words and patterns of pages", line)
		}
		all = append(all, budget{max: max, patterns: fields[1:]})
	}
	return all, nil
}

// spend adds the words of a page to the first budget with a pattern for it, and to that of all pages.
func spend(all []budget, page, text string) {
	n := count(text)
	match := func(pattern string) bool {
		ok, _ := filepath.Match(pattern, page)
		return ok || pattern == "*"
	}
	for i := range all {
		b := &all[i]
		if slices.ContainsFunc(b.patterns, match) {
			b.words += n
			all[len(all)-1].words += n
			return
		}
	}
}

// table prints the budgets and reports whether every one is kept.
func table(all []budget, out io.Writer) (kept bool) {
	kept = true
	for _, b := range all {
		over := ""
		if b.words > b.max {
			kept, over = false, "  OVER"
		}
		fmt.Fprintf(out, "%6d of %6d  %s%s\n", b.words, b.max, strings.Join(b.patterns, " "), over)
	}
	return kept
}

// checkPages prints the budgets, and vale's findings in the pages.
func checkPages(out io.Writer) error {
	text, err := os.ReadFile("test/words/budgets")
	if err != nil {
		return err
	}
	all, err := budgets(string(text))
	if err != nil {
		return err
	}
	pages, err := handWritten()
	if err != nil {
		return err
	}
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			return err
		}
		spend(all, page, string(text))
	}
	kept := table(all, out)
	findings, err := vale(nil, pages...)
	switch fmt.Fprintf(out, "%s", findings); {
	case err != nil:
		return err
	case len(findings) > 0:
		return fmt.Errorf("%d findings", bytes.Count(findings, []byte("\n")))
	case !kept:
		return errors.New("more words than test/words/budgets allows: take as many away as you add")
	}
	return nil
}
