// SPDX-License-Identifier: Apache-2.0

// Command words checks with vale what the Go files below some folders say to a reader: the
// comments of exported names, and all string literals of several words, which are the messages
// of errors, events and logs. The rules are in styles. It checks calls of loggers as well, and exits
// with 1 if there are findings. With "pages" in place of folders it checks hand-written pages by the
// same rules, and exits with 1 also where they have more words than the file budgets allows.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

func main() {
	if len(os.Args) == 2 && os.Args[1] == "pages" {
		if err := checkPages(os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "words:", err)
			os.Exit(1)
		}
		return
	}
	var all []line
	var logs []string
	for _, root := range os.Args[1:] {
		lines, found, err := read(root)
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(2)
		}
		all, logs = append(all, lines...), append(logs, found...)
	}
	findings, err := check(all)
	findings = append(findings, logs...)
	for _, f := range findings {
		fmt.Println(f)
	}
	if err != nil || len(findings) > 0 {
		fmt.Fprintln(os.Stderr, "words:", len(findings), "findings", err)
		os.Exit(1)
	}
}

// line is a line of Markdown for vale, and FILE:LINE where it is from.
type line struct{ text, at string }

// read returns the lines of all Go files below a folder that are no tests, and the findings at their
// calls of loggers.
func read(root string) (all []line, findings []string, err error) {
	err = filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || filepath.Ext(path) != ".go" ||
			strings.HasSuffix(path, "_test.go") || strings.HasPrefix(entry.Name(), "zz_generated") {
			return err
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err == nil {
			x := extractor{files: files}
			ast.Inspect(file, x.visit)
			all, findings = append(all, x.lines...), append(findings, x.findings...)
		}
		return err
	})
	return all, findings, err
}

type extractor struct {
	files    *token.FileSet
	lines    []line
	findings []string
}

// plain takes out what opens a block of Markdown that ends lines or pages further down.
var plain = strings.NewReplacer("<", "&lt;", "```", "`", "~~~", "", "\n", " ")

func (x *extractor) add(text string, at token.Pos) {
	p := x.files.Position(at)
	x.lines = append(x.lines, line{plain.Replace(text), fmt.Sprintf("%s:%d", p.Filename, p.Line)})
}

// paragraph adds text on its own.
func (x *extractor) paragraph(text string, at token.Pos) {
	if strings.Contains(text, " ") && !strings.Contains(text, "\n") {
		x.add(strings.TrimSpace(text), at)
		x.add("", at)
	}
}

func (x *extractor) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.File:
		x.comment(n.Doc)
	case *ast.GenDecl:
		for _, spec := range n.Specs {
			if exported(spec) {
				x.comment(n.Doc)
				break
			}
		}
		return n.Tok != token.IMPORT
	case *ast.TypeSpec:
		if exported(n) {
			x.comment(n.Doc, n.Comment)
		}
	case *ast.ValueSpec:
		if exported(n) {
			x.comment(n.Doc, n.Comment)
		}
	case *ast.FuncDecl:
		if n.Name.IsExported() {
			x.comment(n.Doc)
		}
	case *ast.Field:
		if len(n.Names) > 0 && n.Names[0].IsExported() {
			x.comment(n.Doc, n.Comment)
		}
		n.Tag = nil
	case *ast.CallExpr:
		x.logCall(n)
	case *ast.BasicLit:
		if n.Kind == token.STRING {
			x.paragraph(x.message(n), n.Pos())
		}
	case *ast.BinaryExpr:
		if n.Op == token.ADD {
			x.paragraph(x.message(n), n.Pos())
			return false
		}
	}
	return true
}

func exported(spec ast.Spec) bool {
	switch s := spec.(type) {
	case *ast.TypeSpec:
		return s.Name.IsExported()
	case *ast.ValueSpec:
		return s.Names[0].IsExported()
	}
	return false
}

// markerMessage is what the API server says of a value that a rule refuses.
var markerMessage = regexp.MustCompile(`\bmessage=("(?:[^"\\]|\\.)*")`)

func (x *extractor) comment(groups ...*ast.CommentGroup) {
	for _, group := range groups {
		if group == nil {
			continue
		}
		for _, c := range group.List {
			text := strings.TrimPrefix(c.Text[len("//"):], " ")
			if strings.HasPrefix(text, "+") {
				message := ""
				if found := markerMessage.FindStringSubmatch(text); found != nil {
					message, _ = strconv.Unquote(found[1])
				}
				x.add("", c.Pos())
				x.paragraph(message, c.Pos())
				continue
			}
			x.add(text, c.Pos())
		}
		x.add("", group.End())
	}
}

// message returns a text with "%s" for what is not known before it runs, whose own texts
// are added apart.
func (x *extractor) message(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BasicLit:
		if text, err := strconv.Unquote(e.Value); err == nil && e.Kind == token.STRING {
			return text
		}
	case *ast.BinaryExpr:
		return x.message(e.X) + x.message(e.Y)
	}
	ast.Inspect(e, x.visit)
	return "%s"
}

var alert = regexp.MustCompile(`^[^:]*:(\d+):\d+:(.*)`)

// check returns vale's findings, each with where it is from.
func check(lines []line) (findings []string, err error) {
	var text bytes.Buffer
	for _, l := range lines {
		fmt.Fprintln(&text, l.text)
	}
	out, err := vale(&text, "--ext=.md")
	for scan := bufio.NewScanner(bytes.NewReader(out)); scan.Scan(); {
		if found := alert.FindStringSubmatch(scan.Text()); found != nil {
			n, _ := strconv.Atoi(found[1])
			findings = append(findings, lines[n-1].at+": "+found[2])
		}
	}
	return findings, err
}

// vale returns its findings, a line each. With findings it exits with 1, which is no error.
func vale(in io.Reader, args ...string) ([]byte, error) {
	run := exec.Command(os.Getenv("VALE"), append([]string{"--config=test/words/vale.ini", "--no-global", "--output=line"}, args...)...)
	run.Stdin, run.Stderr = in, os.Stderr
	out, err := run.Output()
	if len(out) > 0 && errors.As(err, new(*exec.ExitError)) {
		err = nil
	}
	return out, err
}
