// SPDX-License-Identifier: Apache-2.0

package main

import (
	"archive/tar"
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/klauspost/compress/zstd"
)

const (
	// partBytes is the size of every part but the last.
	partBytes = 40 << 20
	// sums has the checksum of each part, as sha256sum writes it, and lies beside the program.
	sums = "SHA256SUMS"
	// window reaches over the whole of the larger programs: Go programs share their packages.
	window = 128 << 20
)

// pack writes one compressed archive of a folder, cut into parts, and their checksums.
func pack(from, to string, fast bool) (err error) {
	level := zstd.SpeedBestCompression
	if fast {
		level = zstd.SpeedFastest
	}
	out := &partWriter{dir: to}
	compressed, err := zstd.NewWriter(out, zstd.WithEncoderLevel(level), zstd.WithWindowSize(window))
	if err != nil {
		return err
	}
	archive := tar.NewWriter(compressed)
	err = archive.AddFS(os.DirFS(from))
	if err := errors.Join(err, archive.Close(), compressed.Close(), out.end()); err != nil {
		return err
	}
	var text strings.Builder
	for i, sum := range out.sums {
		fmt.Fprintf(&text, "%s  %s\n", sum, partName(i))
	}
	return os.WriteFile(filepath.Join(to, sums), []byte(text.String()), 0o644)
}

func partName(i int) string { return fmt.Sprintf("part-%d", i+1) }

// partWriter begins the next part when one is full.
type partWriter struct {
	dir  string
	part []byte
	sums []string
}

func (w *partWriter) Write(p []byte) (n int, err error) {
	for len(p) > 0 {
		fits := min(len(p), partBytes-len(w.part))
		w.part = append(w.part, p[:fits]...)
		p, n = p[fits:], n+fits
		if len(w.part) == partBytes {
			if err := w.end(); err != nil {
				return n, err
			}
		}
	}
	return n, nil
}

func (w *partWriter) end() error {
	if len(w.part) == 0 {
		return nil
	}
	sum := sha256.Sum256(w.part)
	err := os.WriteFile(filepath.Join(w.dir, partName(len(w.sums))), w.part, 0o644)
	w.part, w.sums = w.part[:0], append(w.sums, hex.EncodeToString(sum[:]))
	return err
}

// add keeps parts that are whole, and unpacks them once all are there.
func (o *options) add(files []string) error {
	want, err := checksums()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(o.parts(), 0o755); err != nil {
		return err
	}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		sum := sha256.Sum256(data)
		i := slices.Index(want, hex.EncodeToString(sum[:]))
		if i < 0 {
			return fmt.Errorf("%s is damaged, or of another packing than this program: its checksum is not in %s: copy it again", file, sums)
		}
		// A part in the folder is whole or absent: it gets its name last.
		kept := filepath.Join(o.parts(), want[i])
		if err := errors.Join(os.WriteFile(kept+".new", data, 0o644), os.Rename(kept+".new", kept)); err != nil {
			return err
		}
	}
	if missing := o.missing(want); len(missing) > 0 {
		fmt.Printf("still missing: %s\n", strings.Join(missing, ", "))
		return nil
	}
	if !o.unpacked(want) {
		if err := o.unpack(want); err != nil {
			return fmt.Errorf("unpacking into %s: %w", o.root(), err)
		}
	}
	fmt.Printf("all parts are unpacked in %s: gpu-cluster run\n", o.root())
	return os.RemoveAll(o.parts())
}

func (o *options) parts() string { return filepath.Join(o.dir, "parts") }

// id names the packing that is unpacked.
func (o *options) id() string { return filepath.Join(o.root(), sums) }

// checksums are those of all parts, in order.
func checksums() ([]string, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	file := filepath.Join(filepath.Dir(self), sums)
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: copy it from bin/gpu-cluster, with the program", err)
	}
	var all []string
	for line := range strings.Lines(string(text)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		if name != partName(len(all)) {
			return nil, fmt.Errorf("%s: line %q is not that of %s: copy it again", file, line, partName(len(all)))
		}
		all = append(all, sum)
	}
	return all, nil
}

// unpacked reports whether all parts of that packing are unpacked.
func (o *options) unpacked(want []string) bool {
	id, err := os.ReadFile(o.id())
	return err == nil && string(id) == strings.Join(want, "\n")
}

// missing are the parts that have not been added, by their names; none once they are unpacked.
func (o *options) missing(want []string) (names []string) {
	for i, sum := range want {
		if _, err := os.Stat(filepath.Join(o.parts(), sum)); err != nil && !o.unpacked(want) {
			names = append(names, partName(i))
		}
	}
	return names
}

// unpack replaces what is unpacked, which is whole once it names its packing.
func (o *options) unpack(want []string) error {
	if err := os.RemoveAll(o.root()); err != nil {
		return err
	}
	var all []io.Reader
	for _, sum := range want {
		f, err := os.Open(filepath.Join(o.parts(), sum))
		if err != nil {
			return err
		}
		defer f.Close()
		all = append(all, bufio.NewReaderSize(f, 1<<20))
	}
	plain, err := zstd.NewReader(io.MultiReader(all...), zstd.WithDecoderMaxWindow(window))
	if err != nil {
		return err
	}
	defer plain.Close()
	archive := tar.NewReader(plain)
	for {
		head, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return os.WriteFile(o.id(), []byte(strings.Join(want, "\n")), 0o644)
		}
		if err == nil {
			err = extract(filepath.Join(o.root(), filepath.Clean("/"+head.Name)), head, archive)
		}
		if err != nil {
			return err
		}
	}
}

func extract(path string, head *tar.Header, from io.Reader) error {
	mode := head.FileInfo().Mode()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	switch mode.Type() {
	case fs.ModeDir:
		return os.MkdirAll(path, 0o755)
	case fs.ModeSymlink:
		return os.Symlink(head.Linkname, path)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode.Perm())
	if err != nil {
		return err
	}
	_, err = io.Copy(f, from)
	return errors.Join(err, f.Close())
}
