// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/docs"
	"vernier.dev/vernier/test/manifests"
	"vernier.dev/vernier/test/must"
)

// Every pod of the examples is admitted, without a warning. Their pages apply files that are
// there, and all of them. That they do what the pages say TestDemo sees on a cluster.
func TestExamples(t *testing.T) {
	root := must.Get(manifests.Root())(t)
	pages := must.Get(docs.Commands(root))(t)
	folders, err := filepath.Glob(filepath.Join(root, "docs/examples/*/"))
	if err != nil || len(folders) < 5 {
		t.Fatalf("%d examples, %v", len(folders), err)
	}
	for _, folder := range folders {
		name := filepath.Base(folder)
		if name == "README.md" {
			continue
		}
		out, _, err := run(t, nil, "explain -f "+folder)
		if err != nil || !strings.Contains(out, "admitted") || strings.Contains(out, "warning") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
		applied := map[string]bool{}
		for _, b := range pages {
			if b.Page != filepath.Join("docs/examples", name, "README.md") {
				continue
			}
			words := strings.Fields(b.Script())
			for i, word := range words {
				if !strings.HasPrefix(word, "docs/examples/") {
					continue
				}
				if _, err := os.Stat(filepath.Join(root, word)); err != nil {
					t.Errorf("%s: %v", b.Page, err)
				}
				applied[word] = applied[word] || i > 1 && words[i-2] == "apply"
			}
		}
		files := must.Get(filepath.Glob(filepath.Join(folder, "*.yaml")))(t)
		for _, file := range files {
			if short := filepath.Join("docs/examples", name, filepath.Base(file)); !applied[short] && !applied[filepath.Dir(short)] {
				t.Errorf("%s is not applied by its page", short)
			}
		}
	}
}
