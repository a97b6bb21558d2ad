// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

const source = `// Package p is read.
package p

import "an import/is not"

// Known is exported.
const Known = "two words"

// unknown is not exported.
var unknown = "word"

type T struct {
	// Field has a rule.
	// +kubebuilder:validation:XValidation:rule="self > 0",message="must be positive"
	Field int // more of it
	other int // none of it
}

// F returns
// an error.
func F(pod string) error {
	return fmt.Errorf("pod " + name("by name") + " of <%s>", ` + "`a node`" + `, "line\nbreak")
}
`

func TestExtract(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"p.go": source, "p_test.go": "not Go", "zz_generated.go": "nor this"} {
		must.Do(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	lines := must.Get(read(dir))(t)
	var got []string
	for _, l := range lines {
		if l.text != "" {
			got = append(got, strings.TrimPrefix(l.at, dir+"/p.go:")+" "+l.text)
		}
	}
	want := []string{
		"1 Package p is read.", "6 Known is exported.", "7 two words", "13 Field has a rule.", "14 must be positive",
		"15 more of it", "19 F returns", "20 an error.", "22 by name", "22 pod %s of &lt;%s>", "22 a node",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}

	vale := filepath.Join(dir, "vale")
	must.Do(t, os.WriteFile(vale, []byte("#!/bin/sh\ncat >/dev/null; echo stdin.md:3:8:A.Rule:why; exit 1\n"), 0o700))
	t.Setenv("VALE", vale)
	findings, err := check(lines)
	if want := []string{dir + "/p.go:6: A.Rule:why"}; err != nil || !slices.Equal(findings, want) {
		t.Errorf("%q, %v; want %q", findings, err, want)
	}
}
