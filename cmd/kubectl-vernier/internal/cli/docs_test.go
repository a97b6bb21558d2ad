// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"io"
	"strings"
	"testing"

	"vernier.dev/vernier/test/docs"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// What sentences of the documentation call a command of the plugin is one, with flags
// that it has. The blocks of commands are run (package docs).
func TestCommandsInSentences(t *testing.T) {
	root := must.Get(manifests.Root())(t)
	named, err := docs.Mentions(root, "kubectl vernier")
	if err != nil || len(named) < 20 {
		t.Fatalf("%d are named, %v", len(named), err)
	}
	for _, m := range named {
		words := strings.Fields(m.Text)[2:]
		c, rest, err := New(io.Discard, io.Discard).Find(words)
		if err == nil && len(words) > 0 && !strings.HasPrefix(words[0], "-") && !c.HasParent() {
			t.Errorf("%s:%d: %q is no command", m.Page, m.Line, m.Text)
		}
		if err == nil {
			c.InitDefaultVersionFlag() // cobra adds --version only when it executes the command
			err = c.ParseFlags(rest)
		}
		if err != nil {
			t.Errorf("%s:%d: %q: %v", m.Page, m.Line, m.Text, err)
		}
	}
}
