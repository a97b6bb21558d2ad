// SPDX-License-Identifier: Apache-2.0

package report

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/vgpu-limiter/atomicfile"
)

// Writer puts a report where it goes.
type Writer func(form func(io.Writer) error) error

// ToStderr writes to stderr. A report that can't be written there is lost: the exit code is the
// command's, and nobody reads stderr.
func ToStderr(form func(io.Writer) error) error {
	_ = form(os.Stderr)
	return nil
}

// ToFile replaces the file when the report is written, whole or not at all. A path that is no
// ordinary file, such as a pipe or a terminal, is written to. An error says now that it
// couldn't be then.
func ToFile(path string) (Writer, error) {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		path = real
	}
	mode := fs.FileMode(0o644)
	info, err := os.Stat(path)
	switch {
	case err == nil && info.IsDir():
		return nil, &fs.PathError{Op: "open", Path: path, Err: unix.EISDIR}
	case err == nil && !info.Mode().IsRegular():
		out, err := os.OpenFile(path, os.O_WRONLY, 0)
		return func(form func(io.Writer) error) error { return errors.Join(form(out), out.Close()) }, err
	case err == nil:
		mode = info.Mode().Perm()
	case !errors.Is(err, fs.ErrNotExist):
		return nil, err
	}
	folder := filepath.Dir(path)
	if err := unix.Access(folder, unix.W_OK|unix.X_OK); err != nil {
		return nil, &fs.PathError{Op: "write to", Path: folder, Err: err}
	}
	return func(form func(io.Writer) error) error {
		return atomicfile.Replace(path, mode, func(out *os.File) error { return form(out) })
	}, nil
}
