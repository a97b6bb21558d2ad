// SPDX-License-Identifier: Apache-2.0

// Package hostfile owns how the agent puts a file on the node that others read:
// whole or not at all, by a rename. It decides neither content nor place.
package hostfile

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
)

// Write puts a file in place of whatever is at path. Who has the old one open or
// mounted keeps it. The folder must exist; until the rename the new file has a
// name that begins with a dot.
func Write(path string, content io.Reader, mode os.FileMode) error {
	out, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	_, err = io.Copy(out, content)
	err = errors.Join(err, out.Chmod(mode), out.Close())
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
