// SPDX-License-Identifier: Apache-2.0

// Package atomicfile owns how a file that others read is put on the host: whole or not
// at all, by a rename. It decides neither content nor place.
package atomicfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Write is Replace with content that is read from elsewhere.
func Write(path string, content io.Reader, mode os.FileMode) error {
	return Replace(path, mode, func(out *os.File) error {
		_, err := io.Copy(out, content)
		return err
	})
}

// Replace puts the file that fill writes in place of whatever is at path, with exactly
// mode (whatever the umask). A process that has the old one open or mounted keeps it. The folder
// must exist; until the rename the new file has a name that begins with a dot.
func Replace(path string, mode os.FileMode, fill func(*os.File) error) error {
	out, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	err = errors.Join(fill(out), out.Chmod(mode), out.Close())
	if err == nil {
		err = os.Rename(out.Name(), path)
	}
	if err != nil {
		_ = os.Remove(out.Name())
	}
	return err
}

// Install copies a program or library of ours to the node, with its folder.
func Install(from, to string) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer in.Close()
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	if err := Write(to, in, 0o755); err != nil {
		return fmt.Errorf("installing %s: %w", to, err)
	}
	return nil
}
