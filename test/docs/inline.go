// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"bufio"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Inline is a piece of code within a sentence.
type Inline struct {
	// Page is relative to the repository.
	Page string
	Line int
	Text string
}

var (
	code     = regexp.MustCompile("`([^`]+)`")
	anyFence = regexp.MustCompile("^ *```")
)

// Mentions are the pieces of code within the sentences of all pages below the
// repository's root that begin with prefix.
func Mentions(root, prefix string) (all []Inline, err error) {
	err = pages(root, func(page, text string) {
		lines, fenced := bufio.NewScanner(strings.NewReader(text)), false
		for n := 1; lines.Scan(); n++ {
			if anyFence.MatchString(lines.Text()) {
				fenced = !fenced
			}
			for _, span := range code.FindAllStringSubmatch(lines.Text(), -1) {
				if !fenced && strings.HasPrefix(span[1], prefix) {
					all = append(all, Inline{page, n, span[1]})
				}
			}
		}
	})
	return all, err
}

// pages hands over every page below the repository's root.
func pages(root string, each func(page, text string)) error {
	return filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && skipped[entry.Name()]:
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".md":
			return nil
		}
		page, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		text, err := os.ReadFile(path)
		if err == nil {
			each(page, string(text))
		}
		return err
	})
}

var skipped = map[string]bool{"bin": true, ".git": true, "testdata": true}
