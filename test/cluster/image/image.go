// SPDX-License-Identifier: Apache-2.0

// Package image writes container images from local files: one layer, no base,
// no registry, in the docker-archive form that `ctr images import` reads. The
// same files make the same bytes.
//
// It never runs or unpacks an image.
package image

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"runtime"
	"slices"
	"strings"
)

// Image is what will be written. Its files are added by its methods.
type Image struct {
	// Name is the full reference with a tag, such as "vernier.local/pause:1".
	Name       string
	Entrypoint []string
	Cmd        []string
	Env        []string
	// User is "uid[:gid]"; empty is root.
	User string

	entries map[string]entry
}

type entry struct {
	mode fs.FileMode // type and permission bits
	data []byte
	link string
}

// Add puts a file into the image, with its parent folders. It replaces what an
// earlier call put there.
func (m *Image) Add(name string, mode fs.FileMode, data []byte) {
	m.put(name, entry{mode: mode.Perm(), data: data})
}

// AddFile copies a file of this machine, with its permission bits.
func (m *Image) AddFile(name, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	m.Add(name, info.Mode(), data)
	return nil
}

// Link puts a symbolic link at name.
func (m *Image) Link(name, target string) {
	m.put(name, entry{mode: fs.ModeSymlink | 0o777, link: target})
}

// Dir puts an empty folder there; the parents of files need none.
func (m *Image) Dir(name string, mode fs.FileMode) {
	m.put(name, entry{mode: fs.ModeDir | mode})
}

func (m *Image) put(name string, e entry) {
	if m.entries == nil {
		m.entries = map[string]entry{}
	}
	name = strings.TrimPrefix(path.Clean("/"+name), "/")
	m.entries[name] = e
	for dir := path.Dir(name); dir != "."; dir = path.Dir(dir) {
		if _, ok := m.entries[dir]; ok {
			return
		}
		m.entries[dir] = entry{mode: fs.ModeDir | 0o755}
	}
}

// Save writes the image to a file of this machine.
func (m *Image) Save(file string) error {
	var b bytes.Buffer
	if err := m.Write(&b); err != nil {
		return fmt.Errorf("image %s: %w", m.Name, err)
	}
	return os.WriteFile(file, b.Bytes(), 0o644)
}

// Write writes the docker-archive: the configuration, the layer, the manifest.
func (m *Image) Write(w io.Writer) error {
	layer, err := m.layer()
	if err != nil {
		return err
	}
	// Fields of the image specification; a fixed date keeps the bytes the same.
	const epoch = "1970-01-01T00:00:00Z"
	config, err := json.Marshal(map[string]any{
		"architecture": runtime.GOARCH, "os": "linux", "created": epoch,
		"config": map[string]any{
			"Entrypoint": m.Entrypoint, "Cmd": m.Cmd, "User": m.User, "WorkingDir": "/",
			"Env": append([]string{"PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"}, m.Env...),
		},
		"rootfs":  map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + digest(layer)}},
		"history": []any{map[string]any{"created": epoch, "created_by": "vernier test/cluster/image"}},
	})
	if err != nil {
		return err
	}
	configName, layerName := digest(config)+".json", digest(layer)+"/layer.tar"
	manifest, err := json.Marshal([]any{map[string]any{
		"Config": configName, "RepoTags": []string{m.Name}, "Layers": []string{layerName},
	}})
	if err != nil {
		return err
	}
	tw := tar.NewWriter(w)
	for _, f := range []struct {
		name string
		data []byte
	}{{configName, config}, {layerName, layer}, {"manifest.json", manifest}} {
		if err := writeEntry(tw, f.name, entry{mode: 0o644, data: f.data}); err != nil {
			return err
		}
	}
	return tw.Close()
}

// layer is the tar of the files, without owners and times. Sorting puts parents
// first: a parent's name is a prefix of its children's.
func (m *Image) layer() ([]byte, error) {
	var b bytes.Buffer
	tw := tar.NewWriter(&b)
	for _, name := range slices.Sorted(maps.Keys(m.entries)) {
		if err := writeEntry(tw, name, m.entries[name]); err != nil {
			return nil, err
		}
	}
	if err := tw.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

func writeEntry(tw *tar.Writer, name string, e entry) error {
	h := &tar.Header{Name: name, Mode: int64(e.mode.Perm()), Typeflag: tar.TypeReg, Size: int64(len(e.data))}
	if e.mode&fs.ModeSticky != 0 {
		h.Mode |= 0o1000
	}
	switch e.mode.Type() {
	case fs.ModeDir:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case fs.ModeSymlink:
		h.Typeflag, h.Linkname = tar.TypeSymlink, e.link
	}
	if err := tw.WriteHeader(h); err != nil {
		return err
	}
	_, err := tw.Write(e.data)
	return err
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
