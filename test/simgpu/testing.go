// SPDX-License-Identifier: Apache-2.0

package simgpu

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// New builds what is missing and creates a machine for one test, in the test's
// own folder. The process's environment points to it (SIMGPU_STATE, and all
// devices visible), so that libraries loaded into the test use it too.
func New(t testing.TB, cfg Config) *Sim {
	t.Helper()
	out := ""
	if bin := os.Getenv("VERNIER_BIN"); bin != "" {
		out = filepath.Join(bin, "simgpu")
	}
	bin := must.Get(Build(out))(t)
	s := must.Get(Create(bin, filepath.Join(t.TempDir(), "state"), cfg))(t)
	t.Setenv("SIMGPU_STATE", s.State)
	t.Setenv("SIMGPU_ALL_DEVICES", "1")
	return s
}

// ShortDir is a folder for one test that every user can reach, with a short name: a socket's
// path has 107 characters at most.
func ShortDir(t testing.TB) string {
	t.Helper()
	dir := must.Get(os.MkdirTemp("", "sim"))(t)
	t.Cleanup(func() { os.RemoveAll(dir) })
	must.Do(t, os.Chmod(dir, 0o755))
	return dir
}

// needRoot skips the test without root; what is its subject and verb.
func needRoot(t testing.TB, what string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip(what + " root")
	}
}

// declared is a function in nvml.h, or in our declarations of the CUDA driver API; the twin
// that a call has is in the macro's name.
var declared = regexp.MustCompile(`(?m)^(?:.*DECLDIR|CUresult CUDAAPI|CU_(PTSZ|PTDS)\()\s*[*]*\s*((?:nvml|cu)[A-Z]\w*)\s*[(,]`)

// Symbols is what NVIDIA's library exports, "cuda" or "nvml": the functions that its header
// declares and what symbols.txt lists beside them. A variable has its size in bytes.
func Symbols(t testing.TB, library string) map[string]string {
	t.Helper()
	folder := filepath.Join(must.Get(moduleRoot())(t), "test", "simgpu")
	headers := filepath.Join(folder, "include", "cuda", "*.h")
	if library == "nvml" {
		module := must.Get(exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "github.com/NVIDIA/go-nvml").Output())(t)
		headers = filepath.Join(strings.TrimSpace(string(module)), "pkg", "nvml", "nvml.h")
	}
	all := map[string]string{}
	for _, header := range must.Get(filepath.Glob(headers))(t) {
		for _, found := range declared.FindAllStringSubmatch(string(must.Get(os.ReadFile(header))(t)), -1) {
			all[found[2]] = ""
			if found[1] != "" {
				all[found[2]+"_"+strings.ToLower(found[1])] = ""
			}
		}
	}
	for line := range strings.Lines(string(must.Get(os.ReadFile(filepath.Join(folder, library, "symbols.txt")))(t))) {
		if name, size, _ := strings.Cut(strings.TrimSpace(line), " "); name != "#" {
			all[name] = size
		}
	}
	return all
}
