// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

var (
	fenced  = regexp.MustCompile("(?s)```.*?```")
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	noWord  = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
)

// Links within the repository lead to a file that is there, and to a heading of it.
func TestLinks(t *testing.T) {
	root := must.Get(manifests.Root())(t)
	texts := map[string]string{}
	must.Do(t, pages(root, func(page, text string) { texts[page] = fenced.ReplaceAllString(text, "") }))
	found := 0
	for page, text := range texts {
		for _, m := range link.FindAllStringSubmatch(text, -1) {
			file, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(file, "://") {
				continue
			}
			found++
			to := page
			if file != "" {
				to = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(filepath.Join(root, to)); err != nil {
				t.Errorf("%s: %s leads nowhere", page, m[1])
			} else if anchor != "" && !anchors(texts[to])[anchor] {
				t.Errorf("%s: %s has no heading #%s", page, to, anchor)
			}
		}
	}
	if found < 100 {
		t.Errorf("only %d links were found", found)
	}
}

// anchors are the headings as GitHub names them in addresses.
func anchors(text string) map[string]bool {
	all := map[string]bool{}
	for _, h := range heading.FindAllStringSubmatch(text, -1) {
		all[strings.ReplaceAll(noWord.ReplaceAllString(strings.ToLower(h[1]), ""), " ", "-")] = true
	}
	return all
}
