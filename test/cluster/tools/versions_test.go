// SPDX-License-Identifier: Apache-2.0

package tools

import (
	"archive/zip"
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

// published serves versions of a module, each a program that prints its own, to the go
// command.
func published(t *testing.T, module string, versions ...string) {
	t.Helper()
	proxy := t.TempDir()
	dir := filepath.Join(proxy, module, "@v")
	must.Do(t, os.MkdirAll(dir, 0o755))
	for _, v := range versions {
		mod := "module " + module + "\n\ngo 1.24.0\n"
		var archive bytes.Buffer
		w := zip.NewWriter(&archive)
		for name, text := range map[string]string{
			"go.mod": mod, "main.go": fmt.Sprintf("package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(%q) }\n", v),
		} {
			f, err := w.Create(module + "@" + v + "/" + name)
			if err == nil {
				_, err = f.Write([]byte(text))
			}
			must.Do(t, err)
		}
		must.Do(t, w.Close())
		for file, data := range map[string][]byte{
			".info": fmt.Appendf(nil, `{"Version":%q}`, v), ".mod": []byte(mod), ".zip": archive.Bytes(),
		} {
			must.Do(t, os.WriteFile(filepath.Join(dir, v+file), data, 0o644))
		}
	}
	t.Setenv("GOPROXY", "file://"+proxy)
	t.Setenv("GONOSUMDB", module)
	t.Setenv("GOMODCACHE", t.TempDir())
	t.Setenv("GOFLAGS", "-modcacherw")
}

// The environment chooses another version than the tool's go.mod has, which is kept beside it.
func TestChosenVersion(t *testing.T) {
	tool, src := module(t, hello)
	published(t, "example.org/hello", "v1.34.0")
	tool.Module, tool.Packages = "example.org/hello", []string{"example.org/hello"}
	pinned := "module vernier.dev/tools/hello\n\ngo 1.26.0\n\nrequire example.org/hello v1.36.3\n"
	must.Do(t, os.WriteFile(filepath.Join(src, "hello", "go.mod"), []byte(pinned), 0o644))
	unchosen := must.Get(tool.folder(src))(t)

	t.Setenv("VERNIER_HELLO_VERSION", "v1.34.0")
	dirs := must.Get(Ensure(t.Context(), &bytes.Buffer{}, tool))(t)
	if name := filepath.Base(dirs[0]); name == unchosen || !strings.HasPrefix(name, "hello-v1.34.0-") {
		t.Errorf("v1.34.0 is kept as %s, the go.mod's version as %s", name, unchosen)
	}
	if out, err := exec.Command(filepath.Join(dirs[0], "hello")).Output(); err != nil || string(out) != "v1.34.0" {
		t.Errorf("the program says %q, %v", out, err)
	}

	t.Setenv("VERNIER_HELLO_VERSION", "v1.33.0")
	if _, err := Ensure(t.Context(), &bytes.Buffer{}, tool); err == nil || !strings.Contains(err.Error(), "VERNIER_HELLO_VERSION=v1.33.0") {
		t.Errorf("a version that is not served: %v", err)
	}
}

// Kubernetes' staging modules have versions of their own.
func TestStagingModules(t *testing.T) {
	mod := filepath.Join(t.TempDir(), "go.mod")
	text := "module k8s.io/kubernetes\n\ngo 1.24.0\n\nreplace k8s.io/api => ./staging/src/k8s.io/api\n\nreplace example.org/x => example.org/y v1.0.0\n"
	must.Do(t, os.WriteFile(mod, []byte(text), 0o644))
	got, err := derived(t.Context(), "k8s.io/kubernetes", "v1.34.2", mod)
	want := "go 1.24.0\n\nrequire k8s.io/kubernetes v1.34.2\nreplace k8s.io/api => k8s.io/api v0.34.2\n"
	if err != nil || !strings.HasSuffix(got, want) {
		t.Errorf("%v, got\n%swant at its end\n%s", err, got, want)
	}
}
