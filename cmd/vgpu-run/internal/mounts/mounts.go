// SPDX-License-Identifier: Apache-2.0

// Package mounts gives a process a file system of its own. In it the limiter's
// files are where the library looks for them, as they are in a container. It
// differs from the machine's in nothing else. Nothing of it is seen outside
// of the process and its children, and nothing is left when they have ended.
//
// It changes for them: /etc, and the folder above /usr/local/vernier, are
// ours, read-only, with all that was in them bound into place. A file that a neighbour
// on the machine later adds to them, or replaces in /etc by renaming, isn't seen.
package mounts

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/vgpu-limiter/layout"
)

const preloadPath = "/etc/ld.so.preload"

// Files are the limiter's files on the machine.
type Files struct {
	Library  string // libvgpu.so
	Limits   string
	Counters string
	Pace     string
	Scratch  string // an empty folder for our use
}

// Enter puts the files into place, in a mount namespace that nobody else is in.
func Enter(f Files) error {
	defer unix.Umask(unix.Umask(0)) // the modes below are meant as they are written
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	preload, err := os.ReadFile(preloadPath)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	err = graft(preloadPath, f.Scratch, func(path string) error {
		return os.WriteFile(path, []byte(layout.LibraryPath+"\n"+string(preload)), 0o644)
	})
	if err != nil {
		return err
	}
	return graft(layout.Folder, f.Scratch, func(path string) error {
		return errors.Join(
			os.Mkdir(path, 0o755),
			copyFile(f.Library, filepath.Join(path, filepath.Base(layout.LibraryPath)), 0o755),
			copyFile(f.Limits, filepath.Join(path, filepath.Base(layout.LimitsPath)), 0o444),
			bind(f.Counters, filepath.Join(path, filepath.Base(layout.CountersPath)), false),
			bindReadOnly(f.Pace, filepath.Join(path, filepath.Base(layout.PacePath))),
		)
	})
}

// graft makes path by calling fill, without touching the folder that it would be
// in: a read-only one of ours takes its place, with everything else that was in
// it. Folders that are missing on the way are made.
func graft(path, scratch string, fill func(path string) error) error {
	parent, missing := filepath.Split(filepath.Clean(path))
	for {
		if real, err := filepath.EvalSymlinks(parent); err == nil {
			parent = real
			break
		} else if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		parent, missing = filepath.Dir(filepath.Clean(parent)), filepath.Join(filepath.Base(parent), missing)
	}
	if parent == "/" {
		return fmt.Errorf("there is no %s to put %s into; create it, as an empty folder", filepath.Dir(path), path)
	}
	if err := unix.Mount("vernier", scratch, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV, "mode=0755"); err != nil {
		return fmt.Errorf("mounting a tmpfs: %w", err)
	}
	top, _, _ := strings.Cut(missing, "/")
	if err := mirror(parent, scratch, top); err != nil {
		return err
	}
	at := filepath.Join(scratch, missing)
	if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := fill(at); err != nil {
		return err
	}
	if err := unix.Mount("", scratch, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|unix.MS_NOSUID|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("making %s read-only: %w", parent, err)
	}
	if err := unix.Mount(scratch, parent, "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("mounting over %s: %w", parent, err)
	}
	return nil
}

// mirror shows all that is in from, but for one name, in the folder to.
func mirror(from, to, but string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, e := range entries {
		source, target := filepath.Join(from, e.Name()), filepath.Join(to, e.Name())
		switch {
		case e.Name() == but:
		case e.Type()&fs.ModeSymlink != 0:
			var link string
			if link, err = os.Readlink(source); err == nil {
				err = os.Symlink(link, target)
			}
		default:
			err = bind(source, target, e.IsDir())
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// bind mounts source, with what is mounted in it, at target, which it makes.
func bind(source, target string, folder bool) error {
	var err error
	if folder {
		err = os.Mkdir(target, 0o755)
	} else {
		err = os.WriteFile(target, nil, 0o644)
	}
	if err != nil {
		return err
	}
	if err := unix.Mount(source, target, "", unix.MS_BIND|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("mounting %s: %w", source, err)
	}
	return nil
}

// bindReadOnly mounts a file so that it can't be written there.
func bindReadOnly(source, target string) error {
	if err := bind(source, target, false); err != nil {
		return err
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(target, &fs); err != nil {
		return err
	}
	// In a user namespace these may be locked: they have to be said again.
	locked := uintptr(fs.Flags) & (unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	if err := unix.Mount("", target, "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY|locked, ""); err != nil {
		return fmt.Errorf("making %s read-only: %w", source, err)
	}
	return nil
}

// copyFile copies instead of mounting: the source may be on a file system from
// which nothing can be executed, and may go while the command still runs.
func copyFile(source, target string, mode fs.FileMode) error {
	content, err := os.ReadFile(source)
	if err == nil {
		err = os.WriteFile(target, content, mode)
	}
	return err
}
