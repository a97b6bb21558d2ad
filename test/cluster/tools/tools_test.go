// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// module writes a tool's module into a folder like this package's, and points the
// cache to an empty folder.
func module(t *testing.T, source string) (Tool, string) {
	t.Helper()
	src := filepath.Join(t.TempDir(), "test", "cluster", "tools")
	tool := Tool{Name: "hello", Packages: []string{"."}, Output: "hello", LDFlags: "-s -w", Cold: "1 s"}
	for file, text := range map[string]string{
		"hello/go.mod": "module vernier.dev/tools/hello\n\ngo 1.26.0\n", "hello/main.go": source, "kubernetes/go.mod": "",
	} {
		path := filepath.Join(src, file)
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o644)))
	}
	t.Setenv("VERNIER_CACHE", t.TempDir())
	t.Chdir(src)
	return tool, src
}

const hello = "package main\n\nfunc main() {}\n"

func TestEnsureBuildsOnce(t *testing.T) {
	tool, src := module(t, hello)
	var progress bytes.Buffer
	first := must.Get(Ensure(t.Context(), &progress, tool))(t)
	if _, err := os.Stat(filepath.Join(first[0], "hello")); err != nil {
		t.Error(err)
	}
	if !strings.Contains(progress.String(), "building hello") {
		t.Errorf("progress %q", progress.String())
	}
	progress.Reset()
	second, err := Ensure(t.Context(), &progress, tool)
	if err != nil || second[0] != first[0] || progress.Len() > 0 {
		t.Errorf("again: %v, %v, progress %q", second, err, progress.String())
	}
	must.Do(t, os.WriteFile(filepath.Join(src, "hello", "main.go"), []byte(hello+"\n// changed\n"), 0o644))
	if missing, err := Missing(tool); err != nil || len(missing) != 1 {
		t.Errorf("with another source nothing is missing: %v, %v", missing, err)
	}
}

// A program of several names has each of them beside it.
func TestLinks(t *testing.T) {
	tool, _ := module(t, `package main

import "os"

func main() { os.Stdout.WriteString(os.Args[0]) }
`)
	tool.Links = []string{"first", "second"}
	dirs := must.Get(Ensure(t.Context(), &bytes.Buffer{}, tool))(t)
	for _, name := range tool.Links {
		path := filepath.Join(dirs[0], name)
		if out, err := exec.Command(path).Output(); err != nil || string(out) != path {
			t.Errorf("%s was called by %q, %v", name, out, err)
		}
	}
}

// A machine without Go has the tools ready: nothing is built or asked of Go, and one that
// is not there is named.
func TestReadyTools(t *testing.T) {
	ready := t.TempDir()
	t.Setenv(ReadyVariable, ready)
	t.Setenv("PATH", "")
	must.Do(t, os.Mkdir(filepath.Join(ready, Etcd.Name), 0o755))
	if dirs, err := Ensure(t.Context(), &bytes.Buffer{}, Etcd); err != nil || dirs[0] != filepath.Join(ready, Etcd.Name) {
		t.Errorf("%v, %v", dirs, err)
	}
	if missing, err := Missing(Etcd); err != nil || len(missing) > 0 {
		t.Errorf("missing %v, %v", missing, err)
	}
	for _, err := range []error{second(Ensure(t.Context(), &bytes.Buffer{}, Runc)), second(Missing(Runc))} {
		if err == nil || !strings.Contains(err.Error(), "no folder "+Runc.Name) {
			t.Errorf("a tool that is not there: %v", err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestFailedBuildLeavesNothing(t *testing.T) {
	tool, _ := module(t, "package main\n\nfunc main() { undefined() }\n")
	_, err := Ensure(t.Context(), &bytes.Buffer{}, tool)
	if err == nil || !strings.Contains(err.Error(), "undefined") {
		t.Fatalf("error %v does not say what the compiler said", err)
	}
	if missing, err := Missing(tool); err != nil || len(missing) != 1 {
		t.Errorf("the failed build counts as built: %v, %v", missing, err)
	}
}

// TestSecondBuilderWaits: what another process builds is waited for, not built
// twice, and the wait ends with its context.
func TestSecondBuilderWaits(t *testing.T) {
	tool, src := module(t, hello)
	folder := must.Get(tool.folder(src))(t)
	cache := must.Get(CacheDir())(t)
	dir := filepath.Join(cache, "tools", folder)
	must.Do(t, os.MkdirAll(filepath.Dir(dir), 0o755))
	unlock := must.Get(lock(t.Context(), &bytes.Buffer{}, dir+".lock", "hello"))(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var progress bytes.Buffer
	if _, err := Ensure(ctx, &progress, tool); !errors.Is(err, context.Canceled) {
		t.Errorf("error %v", err)
	}
	if got := progress.String(); !strings.Contains(got, "another process is building hello") || strings.Contains(got, "building hello src") {
		t.Errorf("progress %q", got)
	}
	must.Do(t, os.Mkdir(dir, 0o755)) // the other one is done
	unlock()
	progress.Reset()
	if _, err := Ensure(t.Context(), &progress, tool); err != nil || progress.Len() > 0 {
		t.Errorf("after the other builder: %v, progress %q", err, progress.String())
	}
}

// TestEveryToolHasItsVersion reads the real go.mod files.
func TestEveryToolHasItsVersion(t *testing.T) {
	src := must.Get(SourceDir())(t)
	folders := map[string]bool{}
	for _, tool := range All {
		version, err := tool.version(src)
		if err != nil {
			t.Error(err)
		}
		if tool.Module != "" && !strings.HasPrefix(version, "v") {
			t.Errorf("%s has version %q", tool.Name, version)
		}
		if flags := tool.ldflags(version); strings.Contains(flags, "VERSION") || strings.Contains(flags, "MINOR") {
			t.Errorf("%s: not filled in: %s", tool.Name, flags)
		}
		folder, err := tool.folder(src)
		if err != nil || folders[folder] {
			t.Errorf("%s: folder %q, error %v", tool.Name, folder, err)
		}
		folders[folder] = true
	}
	kubernetes, _ := Kubernetes.version(src)
	if flags := Kubernetes.ldflags(kubernetes); !strings.Contains(flags, "gitVersion="+kubernetes) {
		t.Errorf("Kubernetes does not get its version: %s", flags)
	}
}

func TestFlagsDecideTheFolder(t *testing.T) {
	tool, src := module(t, hello)
	base := must.Get(tool.folder(src))(t)
	for name, change := range map[string]func(*Tool){
		"tags": func(t *Tool) { t.Tags = "x" }, "flags": func(t *Tool) { t.LDFlags = "" }, "cgo": func(t *Tool) { t.CGO = true },
		"packages": func(t *Tool) { t.Packages = []string{"./..."} }, "output": func(t *Tool) { t.Output = "other" },
	} {
		changed := tool
		change(&changed)
		if got, err := changed.folder(src); err != nil || got == base {
			t.Errorf("other %s: folder %q, error %v", name, got, err)
		}
	}
}
