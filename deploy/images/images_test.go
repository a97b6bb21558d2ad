// SPDX-License-Identifier: Apache-2.0

//go:build e2e

package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"io"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/validate"

	"vernier.dev/vernier/test/must"
)

// What `make images` has put into bin/images is what the Dockerfile describes,
// and made again it is the same to the byte.
func TestImages(t *testing.T) {
	stages := stagesOf(t)
	var nonRoot []string
	for _, s := range stages {
		if len(s.entrypoint) == 0 {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			img, annotations := open(t, filepath.Join("../../bin/images", s.labels[labelTitle]+".tar"))
			if want := "docker.io/library/vernier-" + s.name + ":" + s.labels[labelVersion]; annotations["io.containerd.image.name"] != want {
				t.Errorf("its name is %q, want %q", annotations["io.containerd.image.name"], want)
			}
			again := must.Get(s.image(sourcesOf(runtime.GOARCH, "../..", "../../bin")))(t)
			if got, want := digest(t, img), digest(t, again); got != want {
				t.Errorf("the image is %s, the programs in bin make %s: not reproducible, or `make images` was not run after `make build`", got, want)
			}
			config := must.Get(img.ConfigFile())(t)
			if !slices.Equal(config.Config.Entrypoint, s.entrypoint) || config.Config.User != s.user || !maps.Equal(config.Config.Labels, s.labels) {
				t.Errorf("configuration %+v, want entrypoint %q, user %q, labels %v", config.Config, s.entrypoint, s.user, s.labels)
			}
			if config.Config.User != "" {
				nonRoot = append(nonRoot, s.name)
			}
			files := extract(t, img)
			var want []string
			for _, c := range s.copies {
				want = append(want, c.target)
			}
			slices.Sort(want)
			if got := slices.Sorted(maps.Keys(files)); !slices.Equal(got, want) {
				t.Errorf("it has\n%q, the Dockerfile copies\n%q", got, want)
			}
			if f, ok := files[s.entrypoint[0]]; !ok || f.mode != 0o755 {
				t.Errorf("its program %s is not there or cannot be run", s.entrypoint[0])
			}
			checkLibraries(t, files)
		})
	}
	if want := []string{"webhook", "allocator"}; !slices.Equal(nonRoot, want) {
		t.Errorf("images of an ordinary user: %q, want %q", nonRoot, want)
	}
}

// What NVIDIA's libnvidia-ml.so.1 needs of the C library is in the node's image.
func TestImageServesNVML(t *testing.T) {
	img, _ := open(t, "../../bin/images/vernier-node.tar")
	libraries := names(extract(t, img))
	for _, needed := range []string{"libpthread.so.0", "libm.so.6", "libdl.so.2", "librt.so.1", "libc.so.6", "ld-linux-x86-64.so.2"} {
		if !libraries[needed] {
			t.Errorf("no %s in the image", needed)
		}
	}
}

type file struct {
	mode int64
	data []byte
}

// checkLibraries wants the loader and every library of every ELF file, where the
// loader looks for it.
func checkLibraries(t *testing.T, files map[string]file) {
	t.Helper()
	libraries := names(files)
	for name, f := range files {
		binary, err := elf.NewFile(bytes.NewReader(f.data))
		if err != nil {
			continue // a text
		}
		for _, p := range binary.Progs {
			if p.Type != elf.PT_INTERP {
				continue
			}
			loader := must.Get(io.ReadAll(p.Open()))(t)
			if _, ok := files[strings.TrimRight(string(loader), "\x00")]; !ok {
				t.Errorf("%s: its loader %s is not in the image", name, loader)
			}
		}
		needed, err := binary.ImportedLibraries()
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for _, n := range needed {
			if !libraries[n] {
				t.Errorf("%s: its library %s is not in the image", name, n)
			}
		}
	}
}

// names are the libraries that Debian's loader finds without a cache.
func names(files map[string]file) map[string]bool {
	found := map[string]bool{}
	for name := range files {
		if dir := path.Dir(name); dir == "/lib/x86_64-linux-gnu" || dir == "/lib64" {
			found[path.Base(name)] = true
		}
	}
	return found
}

func stagesOf(t *testing.T) []*stage {
	t.Helper()
	text := must.Get(os.ReadFile("../../Dockerfile"))(t)
	return must.Get(parse(string(text), runtime.GOARCH))(t)
}

// open unpacks an OCI archive and has the library check all of it.
func open(t *testing.T, archive string) (v1.Image, map[string]string) {
	t.Helper()
	dir := t.TempDir()
	data, err := os.ReadFile(archive)
	if err != nil {
		t.Fatalf("%v: run `make images`", err)
	}
	for name, f := range untar(t, bytes.NewReader(data)) {
		to := filepath.Join(dir, name)
		must.Do(t, errors.Join(os.MkdirAll(filepath.Dir(to), 0o755), os.WriteFile(to, f.data, 0o644)))
	}
	index := must.Get(layout.ImageIndexFromPath(dir))(t)
	if err := validate.Index(index); err != nil {
		t.Errorf("%s: %v", archive, err)
	}
	manifest := must.Get(index.IndexManifest())(t)
	if len(manifest.Manifests) != 1 {
		t.Fatalf("%s has %d images, want 1", archive, len(manifest.Manifests))
	}
	img := must.Get(index.Image(manifest.Manifests[0].Digest))(t)
	return img, manifest.Manifests[0].Annotations
}

func extract(t *testing.T, img v1.Image) map[string]file {
	t.Helper()
	r := mutate.Extract(img)
	defer r.Close()
	files := map[string]file{}
	for name, f := range untar(t, r) {
		files[path.Join("/", name)] = f
	}
	return files
}

// untar reads the files and wants them to be root's, and folders to be for all.
func untar(t *testing.T, r io.Reader) map[string]file {
	t.Helper()
	files := map[string]file{}
	for tr := tar.NewReader(r); ; {
		h, err := tr.Next()
		if err == io.EOF {
			return files
		}
		must.Do(t, err)
		if h.Uid != 0 || h.Gid != 0 || h.ModTime.Unix() != 0 || h.Typeflag == tar.TypeDir && h.Mode != 0o755 {
			t.Errorf("%s: %+v", h.Name, h)
		}
		if h.Typeflag != tar.TypeReg {
			continue
		}
		data := must.Get(io.ReadAll(tr))(t)
		files[h.Name] = file{h.Mode, data}
	}
}

func digest(t *testing.T, img v1.Image) string {
	t.Helper()
	d := must.Get(img.Digest())(t)
	return d.String()
}
