// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// api is where names are spelled.
const api = "api/v1alpha1"

// constant is one of the API's, with what is said of it.
type constant struct {
	name, value, doc string
	// with are all that are declared beside it.
	with *ast.GenDecl
}

// names has the constants that are declared together with those named, and are names
// of ours: values of labels are none.
func names(of []string) (table, error) {
	t := table{head: []string{"name", "meaning"}}
	all, err := constants()
	if err != nil {
		return t, err
	}
	value := map[string]string{}
	for _, c := range all {
		value[c.name] = c.value
	}
	spelled := regexp.MustCompile(`\b[A-Z]\w+\b`)
	for _, first := range of {
		found := false
		for _, c := range all {
			if c.name == first {
				found = true
				for _, other := range all {
					if other.with != c.with || !strings.Contains(other.value, "/") {
						continue
					}
					said := spelled.ReplaceAllStringFunc(other.doc, func(word string) string {
						if v, known := value[word]; known && word != other.name {
							return code(v)
						}
						return word
					})
					// No word of a name such as AnnotationMode is one of the sentence.
					t.add(code(other.value), sentence("", strings.TrimPrefix(sentence(other.name, said), other.name+" ")))
				}
			}
		}
		if !found {
			return t, fmt.Errorf("%s has no constant %s", api, first)
		}
	}
	return t, nil
}

// constants are the API's of type string, in the order of its files.
func constants() (all []constant, err error) {
	files, err := filepath.Glob(filepath.Join(api, "*.go"))
	if err != nil {
		return nil, err
	}
	set := token.NewFileSet()
	known := map[string]string{}
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(set, name, nil, parser.ParseComments)
		if err != nil {
			return nil, err
		}
		for _, d := range file.Decls {
			group, ok := d.(*ast.GenDecl)
			if !ok || group.Tok != token.CONST {
				continue
			}
			for _, s := range group.Specs {
				spec := s.(*ast.ValueSpec)
				doc := spec.Doc
				if doc == nil {
					doc = group.Doc
				}
				for i, ident := range spec.Names {
					if i >= len(spec.Values) {
						continue
					}
					if v, isText := evaluate(spec.Values[i], known); isText {
						known[ident.Name] = v
						all = append(all, constant{ident.Name, v, strings.TrimSpace(doc.Text()), group})
					}
				}
			}
		}
	}
	return all, nil
}

// evaluate reads a text that is put together from literals and other constants.
func evaluate(e ast.Expr, known map[string]string) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		v, err := strconv.Unquote(e.Value)
		return v, err == nil && e.Kind == token.STRING
	case *ast.Ident:
		v, found := known[e.Name]
		return v, found
	case *ast.BinaryExpr:
		a, ok1 := evaluate(e.X, known)
		b, ok2 := evaluate(e.Y, known)
		return a + b, ok1 && ok2 && e.Op == token.ADD
	}
	return "", false
}
