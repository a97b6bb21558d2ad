// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// Each attack on the page names a test that exists, and each TestHostile… is named there.
func TestAttacksHaveTests(t *testing.T) {
	root := must.Get(manifests.Root())(t)
	page := must.Get(os.ReadFile(filepath.Join(root, "docs/security.md")))(t)
	var tests []string
	must.Do(t, filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)\(`).FindAllSubmatch(text, -1) {
			tests = append(tests, string(m[1]))
		}
		return err
	}))
	named := func(name, test string) bool {
		prefix, open := strings.CutSuffix(name, "…")
		return test == name || open && strings.HasPrefix(test, prefix)
	}
	names := regexp.MustCompile("`(Test[\\w…]+)`").FindAllStringSubmatch(string(page), -1)
	if len(names) < 20 {
		t.Fatalf("only %d names of tests were found", len(names))
	}
	makefile := must.Get(os.ReadFile(filepath.Join(root, "Makefile")))(t)
	const run = "Hostile|Soak$|TestPolicy"
	if !strings.Contains(string(makefile), "-run '"+strings.ReplaceAll(run, "$", "$$")+"'") {
		t.Errorf("make test-hostile does not run %s", run)
	}
	for _, n := range names {
		found := false
		for _, test := range tests {
			found = found || named(n[1], test) && regexp.MustCompile(run).MatchString(test)
		}
		if !found {
			t.Errorf("docs/security.md names %s, and there is no such test", n[1])
		}
	}
	for _, test := range tests {
		found := !strings.HasPrefix(test, "TestHostile")
		for _, n := range names {
			found = found || named(n[1], test)
		}
		if !found {
			t.Errorf("docs/security.md says nothing of what %s shows", test)
		}
	}
}
