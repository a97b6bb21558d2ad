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
	lines, _, err := read(dir)
	must.Do(t, err)
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

// Calls of loggers are by Kubernetes' conventions; what only looks like one is none.
func TestLogCalls(t *testing.T) {
	dir := t.TempDir()
	must.Do(t, os.WriteFile(filepath.Join(dir, "p.go"), []byte(`package p

func f() {
	log.Info("Began", "pod", key, "podUID", p.UID)
	log.V(1).Info("began", "pod", p.Name)
	log.Error(err, "Cannot " + verb + " it.", "device", uuid)
	log.WithValues("Bad key", 1, key, 2).Error(nil, "--flag is set", "odd")
	log.Info("Listed", all...)
	log.Info("Ended", "container", c.GetId())
	http.Error(w, "gone", 1)
	info, _ := entry.Info()
	_ = err.Error() + f.log.Error(nil, g(), "pod", p.GetName())
}
`), 0o600))
	_, found, err := read(dir)
	must.Do(t, err)
	want := []string{
		`5: the message "began" does not begin with a capital`, `5: a pod without its namespace`,
		`6: the message " it." ends with a period`, `6: the key "device" is spelled "gpu" everywhere else`,
		`7: the message "--flag is set" does not begin with a capital`, `7: a key without a value`,
		`7: the key "Bad key" is not in lowerCamelCase`, `7: a key that is no constant text`, `9: the key of a container's ID is "containerID"`, `12: a pod without its namespace`,
	}
	for i := range found {
		found[i] = strings.TrimPrefix(found[i], dir+"/p.go:")
	}
	if !slices.Equal(found, want) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(found, "\n"), strings.Join(want, "\n"))
	}
}
