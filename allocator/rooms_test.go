// SPDX-License-Identifier: Apache-2.0

package allocator

import (
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// rooms are the packages of the allocator. Each may import packages of the lines below it, and
// none of its own line.
var rooms = [][]string{
	{"."},
	{"repair", "bindwatch"},
	{"preemption"},
	{"scheduling"},
	{"binding", "reservation"},
	{"eventhandlers"},
	{"queue"},
	{"cache", "podgroup", "notify"},
	{"restore", "ranking"},
	{"feasible", "index", "page", "backfill"},
	{"ledgerspec", "pin", "agents", "usage"},
	{"view"},
	{"podstate"},
	{"victims"},
	{"placement", "group", "priority", "eventlist"},
	{"placement/packer"},
	{"placement/lp"},
}

// No package of the allocator imports one above it or another part, and each is in the list.
func TestImportsRunDownwards(t *testing.T) {
	const prefix = "vernier.dev/vernier/allocator"
	level := map[string]int{}
	for i, line := range rooms {
		for _, name := range line {
			level[name] = i
		}
	}
	seen := map[string]bool{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		room := filepath.ToSlash(filepath.Dir(path))
		from, known := level[room]
		if seen[room] = true; !known {
			t.Errorf("%s is not in the list of packages", room)
		}
		if strings.HasSuffix(path, "_test.go") {
			return nil
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			for _, part := range []string{"webhook", "nri-plugin", "vgpu-limiter", "cmd"} {
				if strings.HasPrefix(imported, "vernier.dev/vernier/"+part) {
					t.Errorf("%s imports %s, which is of another part", path, imported)
				}
			}
			if rest, ours := strings.CutPrefix(imported, prefix); ours {
				to := strings.TrimPrefix(rest, "/")
				if to == "" {
					to = "."
				}
				if level[to] <= from {
					t.Errorf("%s imports %s, which is not below it", path, imported)
				}
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(rooms...) {
		if !seen[name] {
			t.Errorf("%s is in the list and not there", name)
		}
	}
}
