// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"go/ast"
	"go/token"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// What is found at calls of a logger is by Kubernetes' logging conventions: a message begins with a
// capital and has no period at its end, and a key is a constant in lowerCamelCase.
// https://github.com/kubernetes/community/blob/master/contributors/devel/sig-instrumentation/logging.md
var (
	logKey = regexp.MustCompile(`^[a-z][a-zA-Z0-9]*$`)

	// logKeys are the only spellings of what is logged everywhere, by others that came to mind.
	logKeys = map[string]string{
		"device": "gpu", "uuid": "gpu", "devices": "gpus", "ledger": "node", "nodeName": "node", "podName": "pod", "owner": "pod",
		"uid": "podUID", "namespace": "pod", "containerName": "container", "error": "err", "cause": "err",
	}

	// logCalls are the methods of loggers, with where the pairs of keys and values begin.
	logCalls = map[string]int{"Info": 1, "Error": 2, "WithValues": 0}
)

// logCall adds what is wrong with a call, if it is one of a logger.
func (x *extractor) logCall(call *ast.CallExpr) {
	method, is := call.Fun.(*ast.SelectorExpr)
	if !is {
		return
	}
	pairs, is := logCalls[method.Sel.Name]
	if of, pkg := method.X.(*ast.Ident); !is || pkg && of.Name == "http" || len(call.Args) < max(pairs, 1) {
		return
	}
	find := func(at ast.Node, format string, args ...any) {
		p := x.files.Position(at.Pos())
		x.findings = append(x.findings, fmt.Sprintf("%s:%d: ", p.Filename, p.Line)+fmt.Sprintf(format, args...))
	}
	if pairs > 0 {
		message := call.Args[pairs-1]
		if first, is := text(message, false); is && !regexp.MustCompile(`^\p{Lu}`).MatchString(first) {
			find(message, "the message %q does not begin with a capital", first)
		}
		if last, is := text(message, true); is && strings.HasSuffix(last, ".") {
			find(message, "the message %q ends with a period", last)
		}
	}
	if call.Ellipsis != token.NoPos {
		return
	}
	rest := call.Args[pairs:]
	if len(rest)%2 != 0 {
		find(call, "a key without a value")
		return
	}
	for i := 0; i < len(rest); i += 2 {
		key, is := text(rest[i], false)
		switch {
		case !is:
			find(rest[i], "a key that is no constant text")
		case !logKey.MatchString(key):
			find(rest[i], "the key %q is not in lowerCamelCase", key)
		case logKeys[key] != "":
			find(rest[i], "the key %q is spelled %q everywhere else", key, logKeys[key])
		case key == "pod" && ends(rest[i+1], "Name", "GetName"):
			find(rest[i+1], "a pod without its namespace")
		case key == "container" && ends(rest[i+1], "ID", "GetId"):
			find(rest[i+1], "the key of a container's ID is \"containerID\"")
		}
	}
}

// text is a literal, or the first or last of several that are added.
func text(e ast.Expr, last bool) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		s, err := strconv.Unquote(e.Value)
		return s, err == nil && e.Kind == token.STRING
	case *ast.BinaryExpr:
		if last {
			return text(e.Y, last)
		}
		return text(e.X, last)
	}
	return "", false
}

// ends reports whether a value is some object's field, or method, of one of the names.
func ends(e ast.Expr, names ...string) bool {
	if call, is := e.(*ast.CallExpr); is {
		e = call.Fun
	}
	s, is := e.(*ast.SelectorExpr)
	return is && slices.Contains(names, s.Sel.Name)
}
