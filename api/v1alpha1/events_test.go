// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// The reference names every reason of an event or of a condition of a pod that the
// code has, and no other. Reasons are constants whose names begin with reason; what
// tells of something is given one, and no text of its own.
func TestReferenceOfEvents(t *testing.T) {
	text := reference(t, "events.md")
	inCode := map[string]bool{}
	for _, part := range []string{"allocator", "nri-plugin", "webhook"} {
		err := filepath.WalkDir(filepath.Join("..", "..", part), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			for reason, name := range reasons(file) {
				inCode[reason] = true
				if !strings.Contains(text, "`"+reason+"`") {
					t.Errorf("%s: %s is %s, which is not in docs/reference/events.md", path, name, reason)
				}
			}
			for _, told := range loose(file) {
				t.Errorf("%s: %s is told as it is: make it a constant whose name begins with reason, and list it in docs/reference/events.md", path, told)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range regexp.MustCompile("(?m)^\\|[^\n]*").FindAllString(text, -1) {
		cells := strings.Split(row, "|")
		of := cells[1] // of an event
		if len(cells) == 6 {
			of = cells[3] // of a condition
		}
		if reason := strings.Trim(of, " `"); strings.Contains(of, "`") && !inCode[reason] {
			t.Errorf("docs/reference/events.md has %s, and the code has not", reason)
		}
	}
	if len(inCode) < 10 {
		t.Errorf("found only %v", inCode)
	}
}

// reasons are the values of a file's constants for them, with the constants' names.
func reasons(file *ast.File) map[string]string {
	found := map[string]string{}
	ast.Inspect(file, func(n ast.Node) bool {
		spec, is := n.(*ast.ValueSpec)
		if !is {
			return true
		}
		for i, name := range spec.Names {
			if !regexp.MustCompile(`^[rR]eason[A-Z]`).MatchString(name.Name) || i >= len(spec.Values) {
				continue
			}
			if value, is := spec.Values[i].(*ast.BasicLit); is && value.Kind == token.STRING {
				if text, err := strconv.Unquote(value.Value); err == nil {
					found[text] = name.Name
				}
			}
		}
		return true
	})
	return found
}

// loose are the words in CamelCase that a file gives to what writes events.
func loose(file *ast.File) (told []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		call, is := n.(*ast.CallExpr)
		if !is {
			return true
		}
		method, is := call.Fun.(*ast.SelectorExpr)
		if !is || !regexp.MustCompile(`^(tell|Warn|Event|Eventf|AnnotatedEventf)$`).MatchString(method.Sel.Name) {
			return true
		}
		for i, arg := range call.Args {
			// The API's Eventf takes an action behind the reason.
			if method.Sel.Name == "Eventf" && i == 4 {
				continue
			}
			if value, is := arg.(*ast.BasicLit); is && regexp.MustCompile(`^"[A-Z][A-Za-z]+"$`).MatchString(value.Value) {
				told = append(told, value.Value)
			}
		}
		return true
	})
	return told
}
