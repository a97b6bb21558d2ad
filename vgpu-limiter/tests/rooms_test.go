// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"debug/elf"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// roomsBelow is what the files of each room of ../src may use beside their own. What is in
// no room stands above all of them: the table of hooks names every intercepted function.
var roomsBelow = map[string][]string{
	"runtime": nil,
	"memory":  {"runtime"},
	"compute": {"memory", "runtime"},
	"nvml":    {"memory", "runtime"},
	".":       {"compute", "memory", "nvml", "runtime"},
}

// TestRooms: no file of the library uses one that uses it, directly or through others, and
// none uses a file of a room above its own. A file is a .c with its .h; it uses what it
// includes and whatever defines its undefined symbols.
func TestRooms(t *testing.T) {
	uses := map[string]map[string]bool{}
	add := func(from, to string) {
		if from != to {
			uses[from][to] = true
		}
	}
	include := regexp.MustCompile(`(?m)^#include "([^"]+)\.h"`)
	defines, undefined := map[string]string{}, map[string][]string{}
	for _, path := range slices.Concat(glob(t, "../src/*.[ch]"), glob(t, "../src/*/*.[ch]")) {
		file := strings.TrimSuffix(strings.TrimPrefix(path, "../src/"), filepath.Ext(path))
		if uses[file] == nil {
			uses[file] = map[string]bool{}
		}
		text := must.Get(os.ReadFile(path))(t)
		for _, m := range include.FindAllSubmatch(text, -1) {
			if _, err := os.Stat(filepath.Join("../src", string(m[1])+".h")); err == nil {
				add(file, string(m[1]))
			}
		}
		if filepath.Ext(path) != ".c" {
			continue
		}
		for _, s := range symbols(t, path) {
			if s.Section == elf.SHN_UNDEF {
				undefined[file] = append(undefined[file], s.Name)
			} else if elf.ST_BIND(s.Info) != elf.STB_LOCAL {
				defines[s.Name] = file
			}
		}
	}
	for file, names := range undefined {
		for _, name := range names {
			if in, ok := defines[name]; ok {
				add(file, in)
			}
		}
	}
	if len(uses) < 30 || len(defines) < 300 {
		t.Fatalf("read %d files that define %d symbols", len(uses), len(defines))
	}

	done := map[string]bool{}
	var visit func(file string, way []string)
	visit = func(file string, way []string) {
		if i := slices.Index(way, file); i >= 0 {
			t.Errorf("these files use each other: %s", strings.Join(append(way[i:], file), " -> "))
			return
		}
		if done[file] {
			return
		}
		way = append(slices.Clone(way), file)
		for _, to := range slices.Sorted(maps.Keys(uses[file])) {
			if room, other := filepath.Dir(file), filepath.Dir(to); room != other && !slices.Contains(roomsBelow[room], other) {
				t.Errorf("%s uses %s, which is in a room above or beside its own", file, to)
			}
			visit(to, way)
		}
		done[file] = true
	}
	for _, file := range slices.Sorted(maps.Keys(uses)) {
		if _, ok := roomsBelow[filepath.Dir(file)]; !ok {
			t.Errorf("%s is in no room that the test knows", file)
		}
		visit(file, nil)
	}
}

func glob(t *testing.T, pattern string) []string {
	t.Helper()
	return must.Get(filepath.Glob(pattern))(t)
}

// symbols compiles one file of the library and returns those of its object.
func symbols(t *testing.T, path string) []elf.Symbol {
	t.Helper()
	object := filepath.Join(t.TempDir(), "object.o")
	out, err := exec.Command(compiler(), "-std=c11", "-D_GNU_SOURCE", "-I../include", "-I../src", "-c", "-o", object, path).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", path, err, out)
	}
	f := must.Get(elf.Open(object))(t)
	defer f.Close()
	return must.Get(f.Symbols())(t)
}
