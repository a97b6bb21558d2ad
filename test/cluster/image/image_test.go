// SPDX-License-Identifier: Apache-2.0

package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/test/must"
)

func build(t *testing.T, add ...func(*Image)) []byte {
	t.Helper()
	m := &Image{Name: "vernier.local/test:1", Entrypoint: []string{"/bin/tool"}, Env: []string{"A=b"}, User: "7:8"}
	for _, f := range add {
		f(m)
	}
	var b bytes.Buffer
	must.Do(t, m.Write(&b))
	return b.Bytes()
}

// members reads a tar: each header's type and name, and the data of files.
func members(t *testing.T, archive []byte) (names []string, data map[string][]byte) {
	t.Helper()
	data = map[string][]byte{}
	for tr := tar.NewReader(bytes.NewReader(archive)); ; {
		h, err := tr.Next()
		if errors.Is(err, io.EOF) {
			return names, data
		}
		must.Do(t, err)
		names = append(names, string(h.Typeflag)+" "+h.Name)
		if data[h.Name], err = io.ReadAll(tr); err != nil {
			t.Fatal(err)
		}
	}
}

func TestSameFilesMakeSameBytes(t *testing.T) {
	tool := func(m *Image) { m.Add("/bin/tool", 0o755, []byte("tool")) }
	link := func(m *Image) { m.Link("/bin/alias", "tool") }
	other := func(m *Image) { m.Add("/bin/tool", 0o755, []byte("other")) }
	first := build(t, tool, link)
	if !bytes.Equal(first, build(t, link, tool)) {
		t.Error("the order of the calls shows in the image")
	}
	if !bytes.Equal(first, build(t, other, link, tool)) {
		t.Error("a file that was replaced shows in the image")
	}
	if bytes.Equal(first, build(t, link, other)) {
		t.Error("another file's content does not show in the image")
	}
}

func TestArchive(t *testing.T) {
	archive := build(t,
		func(m *Image) { m.Add("/usr/bin/tool", 0o700, []byte("tool")) },
		func(m *Image) { m.Link("/bin", "usr/bin") },
		func(m *Image) { m.Dir("/tmp", 0o777) })
	_, files := members(t, archive)
	var manifest []struct {
		Config   string
		RepoTags []string
		Layers   []string
	}
	if err := json.Unmarshal(files["manifest.json"], &manifest); err != nil || len(manifest) != 1 || len(manifest[0].Layers) != 1 {
		t.Fatalf("manifest %s: %v", files["manifest.json"], err)
	}
	if got := manifest[0].RepoTags; !slices.Equal(got, []string{"vernier.local/test:1"}) {
		t.Errorf("tags %v", got)
	}
	var config struct {
		Config struct {
			Entrypoint, Env []string
			User            string
		}
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	must.Do(t, json.Unmarshal(files[manifest[0].Config], &config))
	layer := files[manifest[0].Layers[0]]
	sum := sha256.Sum256(layer)
	// containerd refuses a layer whose digest is not what the configuration says.
	if got := config.RootFS.DiffIDs; !slices.Equal(got, []string{"sha256:" + hex.EncodeToString(sum[:])}) {
		t.Errorf("diff_ids %v", got)
	}
	if config.Config.User != "7:8" || !slices.Contains(config.Config.Env, "A=b") || !slices.Equal(config.Config.Entrypoint, []string{"/bin/tool"}) {
		t.Errorf("config %+v", config.Config)
	}
	names, _ := members(t, layer)
	if want := []string{"2 bin", "5 tmp/", "5 usr/", "5 usr/bin/", "0 usr/bin/tool"}; !slices.Equal(names, want) {
		t.Errorf("layer has %q, want %q", names, want)
	}
}

// TestAddProgram runs a dynamically linked program with nothing but what the
// image has: its loader, told to look nowhere else, must find every library.
func TestAddProgram(t *testing.T) {
	program := must.Get(exec.LookPath("env"))(t)
	m := &Image{Name: "vernier.local/test:1"}
	must.Do(t, m.AddProgram("/bin/env", program))
	root := t.TempDir()
	var loader string
	var dirs []string
	for name, e := range m.entries {
		if e.mode.IsDir() {
			continue
		}
		file := filepath.Join(root, name)
		must.Do(t, os.MkdirAll(filepath.Dir(file), 0o755))
		must.Do(t, os.WriteFile(file, e.data, e.mode))
		if strings.HasPrefix(filepath.Base(file), "ld-") {
			loader = file
		}
		dirs = append(dirs, filepath.Dir(file))
	}
	if loader == "" {
		t.Fatal("the image has no loader")
	}
	cmd := exec.Command(loader, "--inhibit-cache", "--library-path", strings.Join(dirs, ":"), "--list", filepath.Join(root, "bin/env"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if _, path, ok := strings.Cut(line, " => "); ok && !strings.HasPrefix(path, root) {
			t.Errorf("taken from outside the image: %s", line)
		}
	}
}

func TestAddProgramLeavesOutWhatIsProvided(t *testing.T) {
	program := must.Get(exec.LookPath("env"))(t)
	m := &Image{}
	must.Do(t, m.AddProgram("/bin/env", program, "libc.so.6"))
	for name := range m.entries {
		if strings.HasSuffix(name, "/libc.so.6") {
			t.Errorf("%s is in the image", name)
		}
	}
}

// What a program's own image may lack: the rest of the C library, and what modules of an
// interpreter need, as far as the machine has it.
func TestAddLibraries(t *testing.T) {
	loader := must.Get(find("libm.so.6", libraryDirs))(t)
	for what, add := range map[string]func(*Image) error{
		"libpthread.so.0": (*Image).AddCLibrary,
		"libc.so.6":       func(m *Image) error { return m.AddLibraries(loader) },
	} {
		m := &Image{}
		must.Do(t, add(m))
		if !slices.ContainsFunc(slices.Collect(maps.Keys(m.entries)), func(name string) bool { return filepath.Base(name) == what }) {
			t.Errorf("no %s among %v", what, slices.Collect(maps.Keys(m.entries)))
		}
	}
}

func TestAddProgramNamesWhatIsMissing(t *testing.T) {
	if _, err := find("libnowhere.so.9", []string{"/lib"}); err == nil || !strings.Contains(err.Error(), "libnowhere.so.9") {
		t.Errorf("error %v", err)
	}
	script := filepath.Join(t.TempDir(), "script")
	must.Do(t, os.WriteFile(script, []byte("#!/bin/sh\n"), 0o755))
	if err := (&Image{}).AddProgram("/bin/script", script); err == nil {
		t.Error("a script was taken for a program")
	}
}
