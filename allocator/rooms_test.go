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

// rooms are the rooms of the allocator, from the top floor down, each a folder with the packages
// beneath it. A package may import others of its room, and those of the rooms below.
var rooms = []string{"allocator", "kueue", "preemption", "scheduling", "binding", "queue", "state", "placement"}

// floor is on which a package stands; page and what else has no room of its own is the allocator's.
func floor(folder string) int {
	first, _, _ := strings.Cut(folder, "/")
	return max(0, slices.Index(rooms, first))
}

// No package of the allocator imports one of a room above its own, or of another part.
func TestImportsRunDownwards(t *testing.T) {
	const prefix = "vernier.dev/vernier/allocator"
	seen := map[int]bool{}
	err := filepath.WalkDir(".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		from := floor(filepath.ToSlash(filepath.Dir(path)))
		seen[from] = true
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
			if rest, ours := strings.CutPrefix(imported, prefix); ours && floor(strings.TrimPrefix(rest, "/")) < from {
				t.Errorf("%s imports %s, which is above it", path, imported)
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(seen) != len(rooms) {
		t.Errorf("there are packages of %d rooms, and not of each of %v", len(seen), rooms)
	}
}
