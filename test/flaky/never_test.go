// SPDX-License-Identifier: Apache-2.0

package flaky

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// asserts is what a test's text or name says that must not be run again: Invariant 1 of
// docs/architecture.md is that nothing is booked twice.
var asserts = regexp.MustCompile(`Invariants? 1\b|^Test\w*(Soak|Hostile|Double|Overbook)`)

// never.txt names every test that must not be run again, and none that there isn't.
func TestNever(t *testing.T) {
	t.Parallel()
	list := must.Get(os.ReadFile("never.txt"))(t)
	var patterns []string
	plain := map[string]bool{}
	for line := range strings.Lines(string(list)) {
		line, _, _ := strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			patterns = append(patterns, line)
		}
		if strings.HasPrefix(line, "Test") {
			plain[line] = true
		}
	}
	never := regexp.MustCompile(`^(` + strings.Join(patterns, "|") + `)$`)
	for _, word := range []string{"TestGangSoak", "TestHostileA", "Invariant", "Invariants", "ThreadSanitizer"} {
		if !never.MatchString(word) {
			t.Errorf("test/flaky/never.txt does not name %s", word)
		}
	}
	for name, text := range tests(t) {
		if (asserts.MatchString(text) || asserts.MatchString(name)) && !never.MatchString(name) {
			t.Errorf("%s asserts an invariant: add it to test/flaky/never.txt", name)
		}
		delete(plain, name)
	}
	for name := range plain {
		t.Errorf("there is no %s: take it out of test/flaky/never.txt", name)
	}
}

// tests are the tests of the tree by name, each with its file, its text and what is said of it.
func tests(t *testing.T) map[string]string {
	t.Helper()
	out := must.Get(exec.Command("git", "-C", "../..", "ls-files", "*_test.go").Output())(t)
	found := map[string]string{}
	for path := range strings.FieldsSeq(string(out)) {
		source, err := os.ReadFile("../../" + path)
		if err != nil {
			continue // gone from the working tree
		}
		fset := token.NewFileSet()
		file := must.Get(parser.ParseFile(fset, path, source, parser.ParseComments))(t)
		for _, decl := range file.Decls {
			if f, is := decl.(*ast.FuncDecl); is && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
				found[f.Name.Name] += path + "\n" + f.Doc.Text() + string(source[fset.Position(f.Pos()).Offset:fset.Position(f.End()).Offset])
			}
		}
	}
	return found
}
