// SPDX-License-Identifier: Apache-2.0

package tests

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// hook is one row of hooks.def.
type hook struct{ library, symbol, why string }

func hooks(t *testing.T) []hook {
	t.Helper()
	b := must.Get(os.ReadFile("../src/runtime/hooks.def"))(t)
	var rows []hook
	for _, m := range regexp.MustCompile(`(?m)^HOOK\((\w+), (\w+), .*"(.*)"\)$`).FindAllStringSubmatch(string(b), -1) {
		rows = append(rows, hook{m[1], m[2], m[3]})
	}
	if len(rows) < 50 || len(rows) != strings.Count(string(b), "\nHOOK(") {
		t.Fatalf("read %d rows of hooks.def", len(rows))
	}
	return rows
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return string(out)
}

// TestHeaders: our declarations of the driver's ABI are those of the simulated
// driver's cuda.h and of NVIDIA's nvml.h.
func TestHeaders(t *testing.T) {
	t.Parallel()
	nvml := strings.TrimSpace(run(t, "go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml"))
	run(t, compiler(), "-std=c11", "-fsyntax-only", "-x", "c", "-I../include", "-I../../test/simgpu/include",
		"-I"+filepath.Join(nvml, "pkg", "nvml"), "-include", "stddef.h", "abi_check.h")
}

// TestLibrary: the library that ships needs libc only, nothing of it newer than
// glibc 2.28, runs no code when it is loaded, and exports the table and the
// lookups, nothing else.
func TestLibrary(t *testing.T) {
	t.Parallel()
	b := must.Get(build())(t)
	library := filepath.Join(b.dir, "libvgpu.so")
	dynamic := run(t, "readelf", "-dW", library)
	needed := regexp.MustCompile(`\(NEEDED\).*\[(.*)\]`).FindAllStringSubmatch(dynamic, -1)
	if len(needed) != 1 || needed[0][1] != "libc.so.6" {
		t.Errorf("needs %v, want libc.so.6 only", needed)
	}
	for _, tag := range []string{"(INIT)", "(INIT_ARRAY)", "(FINI)", "(FINI_ARRAY)", "(RELR)"} {
		if strings.Contains(dynamic, tag) {
			t.Errorf("has %s", tag)
		}
	}
	// It comes out of the stack of each thread of each program, and the loader has little of
	// it for programs that are audited.
	local := regexp.MustCompile(`(?m)^ *TLS( +0x[0-9a-f]+){4} 0x([0-9a-f]+)`).FindStringSubmatch(run(t, "readelf", "-lW", library))
	if local == nil {
		t.Error("readelf shows no thread-local memory")
	} else if size, _ := strconv.ParseUint(local[2], 16, 64); size > 128 {
		t.Errorf("%d bytes of thread-local memory, want 128 at most", size)
	}
	symbols := run(t, "objdump", "-T", library)
	versions := regexp.MustCompile(`GLIBC_([0-9]+)\.([0-9]+)`).FindAllStringSubmatch(symbols, -1)
	if len(versions) == 0 {
		t.Error("objdump shows no symbol versions")
	}
	for _, v := range versions {
		if minor, _ := strconv.Atoi(v[2]); v[1] != "2" || minor > 28 {
			t.Errorf("needs GLIBC_%s.%s", v[1], v[2])
		}
	}
	want := []string{"dlsym", "dlvsym"}
	for _, h := range hooks(t) {
		want = append(want, h.symbol)
	}
	var got []string
	for line := range strings.Lines(run(t, "nm", "-D", "--defined-only", library)) {
		got = append(got, strings.Fields(line)[2])
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("exports %v\nwant %v", got, want)
	}
	content := must.Get(os.ReadFile(library))(t)
	for _, path := range []string{"/usr/local/vernier/limits\x00", "/usr/local/vernier/counters\x00"} {
		if !bytes.Contains(content, []byte(path)) {
			t.Errorf("does not name %q", path)
		}
	}
	if bytes.Contains(content, []byte("getenv")) {
		t.Error("reads the environment")
	}
}

// TestHooksTable: the table in docs/design/limiter.md has each row of hooks.def, and no other.
func TestHooksTable(t *testing.T) {
	t.Parallel()
	page := must.Get(os.ReadFile("../../docs/design/limiter.md"))(t)
	want := "| library | function | why |\n| --- | --- | --- |\n"
	for _, h := range hooks(t) {
		want += fmt.Sprintf("| %s | `%s` | %s |\n", h.library, h.symbol, h.why)
	}
	regions := regexp.MustCompile(`(?ms)^<!-- generated: hooks -->\n(.*?)^<!-- end of what is generated -->$`).FindAllSubmatch(page, -1)
	if len(regions) != 1 {
		t.Fatalf("docs/design/limiter.md has %d regions of generated hooks, want 1", len(regions))
	}
	got := string(regions[0][1])
	if got == want {
		return
	}
	for line := range strings.Lines(want) {
		if !strings.Contains(got, line) {
			t.Errorf("the table lacks %q", line)
		}
	}
	t.Error("the table in docs/design/limiter.md differs from hooks.def. remedy: make -C vgpu-limiter hooks-table")
}
