// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// epoch is the date of everything: a date of the build would make every build
// another image.
var epoch = time.Unix(0, 0).UTC()

// platformImage is an image for nodes of an architecture.
type platformImage struct {
	arch string
	v1.Image
}

// image has the stage's files as its only layer.
func (s *stage) image(from sources) (v1.Image, error) {
	files, err := s.layer(from)
	if err != nil {
		return nil, err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(files)), nil },
		tarball.WithMediaType(types.OCILayer))
	if err != nil {
		return nil, err
	}
	img := mutate.MediaType(mutate.ConfigMediaType(empty.Image, types.OCIConfigJSON), types.OCIManifestSchema1)
	img, err = mutate.Append(img, mutate.Addendum{Layer: layer, History: v1.History{Created: v1.Time{Time: epoch}, CreatedBy: "make images"}})
	if err != nil {
		return nil, err
	}
	config, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	config = config.DeepCopy()
	config.Architecture, config.OS, config.Created = from.arch, "linux", v1.Time{Time: epoch}
	config.Config = v1.Config{Entrypoint: s.entrypoint, User: s.user, Labels: s.labels, WorkingDir: "/"}
	return mutate.ConfigFile(img, config)
}

// layer is the tar of the files and the folders above them, in order, with no
// owner but root and no date but epoch.
func (s *stage) layer(from sources) ([]byte, error) {
	files := map[string]copied{}
	folders := map[string]bool{}
	for _, c := range s.copies {
		files[c.target] = c
		for dir := path.Dir(c.target); dir != "/"; dir = path.Dir(dir) {
			folders[dir] = true
		}
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, dir := range slices.Sorted(maps.Keys(folders)) {
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: 0o755, ModTime: epoch}); err != nil {
			return nil, err
		}
	}
	for _, target := range slices.Sorted(maps.Keys(files)) {
		file := from.locate(files[target])
		if err := write(w, target[1:], file); err != nil {
			return nil, fmt.Errorf("%s: %w: run `make programs deps`", target, err)
		}
	}
	err := w.Close()
	return b.Bytes(), err
}

// write puts a file of this machine into a tar, runnable by all if it is by anyone.
func write(w *tar.Writer, name, file string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	mode := int64(0o644)
	if info.Mode()&0o111 != 0 {
		mode = 0o755
	}
	if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Size: int64(len(data)), Mode: mode, ModTime: epoch}); err != nil {
		return err
	}
	_, err = w.Write(data)
	return err
}

// save writes an OCI archive: the layout as the library makes it, in one tar.
func save(images []platformImage, reference, file string) error {
	dir, err := os.MkdirTemp(filepath.Dir(file), ".layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	_, tag, _ := strings.Cut(reference, ":")
	// The first is the specification's; by the second containerd, and docker load
	// after it, know a name without being told one.
	names := map[string]string{"org.opencontainers.image.ref.name": tag, "io.containerd.image.name": "docker.io/library/" + reference}
	if err := appendTo(l, images, names); err != nil {
		return err
	}
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	err = filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		return write(w, name, path)
	})
	if err != nil {
		return err
	}
	if err := w.Close(); err != nil {
		return err
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// appendTo puts an image into a layout, or an index of several.
func appendTo(l layout.Path, images []platformImage, annotations map[string]string) error {
	platform := func(arch string) v1.Platform { return v1.Platform{OS: "linux", Architecture: arch} }
	if len(images) == 1 {
		return l.AppendImage(images[0], layout.WithAnnotations(annotations), layout.WithPlatform(platform(images[0].arch)))
	}
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, img := range images {
		p := platform(img.arch)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img.Image, Descriptor: v1.Descriptor{Platform: &p}})
	}
	return l.AppendIndex(index, layout.WithAnnotations(annotations))
}

func report(file string, images []platformImage) error {
	info, err := os.Stat(file)
	if err != nil {
		return err
	}
	for _, img := range images {
		digest, err := img.Digest()
		if err != nil {
			return err
		}
		fmt.Printf("%s  %s  %s  %.1f MiB\n", file, img.arch, digest, float64(info.Size())/(1<<20))
	}
	return nil
}
