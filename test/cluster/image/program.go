// SPDX-License-Identifier: Apache-2.0

package image

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// libraryDirs are where the dynamic loaders of Debian and of Red Hat look when
// neither the program nor a cache says otherwise.
var libraryDirs = []string{
	"/lib/x86_64-linux-gnu", "/usr/lib/x86_64-linux-gnu",
	"/lib/aarch64-linux-gnu", "/usr/lib/aarch64-linux-gnu",
	"/lib64", "/usr/lib64", "/lib", "/usr/lib",
}

// AddProgram copies an ELF program, or a shared library, of this machine, and
// with it its loader and the libraries that it needs, at the paths where this
// machine has them. Libraries named in provided are left out: something else puts
// them into the container, as a GPU's driver libraries are.
func (m *Image) AddProgram(name, from string, provided ...string) error {
	if err := m.AddFile(name, from); err != nil {
		return err
	}
	seen := map[string]bool{}
	for _, p := range provided {
		seen[p] = true
	}
	if err := m.addNeeded(from, seen); err != nil {
		return fmt.Errorf("libraries of %s: %w", from, err)
	}
	return nil
}

// AddCLibrary copies the C library whole: what is put into a container, as a GPU's driver
// libraries are, needs more of it than the image's own programs do.
func (m *Image) AddCLibrary() error {
	for _, lib := range []string{"libc.so.6", "libdl.so.2", "libm.so.6", "libpthread.so.0", "librt.so.1"} {
		at, err := find(lib, libraryDirs)
		if err != nil {
			return err
		}
		if err := m.AddProgram(at, at); err != nil {
			return err
		}
	}
	return nil
}

// AddLibraries copies the libraries that shared libraries need, as far as they lie where
// this machine's loader looks. The others come with what needs them.
func (m *Image) AddLibraries(from ...string) error {
	seen := map[string]bool{}
	for _, file := range from {
		f, err := elf.Open(file)
		if err != nil {
			return err
		}
		needed, err := f.ImportedLibraries()
		f.Close()
		if err != nil {
			return err
		}
		for _, lib := range needed {
			at, err := find(lib, libraryDirs)
			if err != nil || seen[lib] {
				continue
			}
			seen[lib] = true
			if err := m.AddProgram(at, at); err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *Image) addNeeded(from string, seen map[string]bool) error {
	f, err := elf.Open(from)
	if err != nil {
		return err
	}
	defer f.Close()
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		data := make([]byte, p.Filesz)
		if _, err := p.ReadAt(data, 0); err != nil {
			return err
		}
		loader := strings.TrimRight(string(data), "\x00")
		if err := m.AddFile(loader, loader); err != nil {
			return err
		}
		seen[filepath.Base(loader)] = true
	}
	needed, err := f.ImportedLibraries()
	if err != nil {
		return err
	}
	for _, lib := range needed {
		if seen[lib] {
			continue
		}
		seen[lib] = true
		file, err := find(lib, searchPath(f, from))
		if err != nil {
			return err
		}
		if err := m.AddFile(file, file); err != nil {
			return err
		}
		if err := m.addNeeded(file, seen); err != nil {
			return err
		}
	}
	return nil
}

// searchPath is the file's own RPATH and RUNPATH, then the loader's folders.
func searchPath(f *elf.File, from string) []string {
	var dirs []string
	for _, tag := range []elf.DynTag{elf.DT_RPATH, elf.DT_RUNPATH} {
		values, _ := f.DynString(tag) // static programs have no dynamic section
		for _, v := range values {
			for _, dir := range strings.Split(v, ":") {
				dirs = append(dirs, strings.NewReplacer("$ORIGIN", filepath.Dir(from), "${ORIGIN}", filepath.Dir(from)).Replace(dir))
			}
		}
	}
	return slices.Concat(dirs, libraryDirs)
}

// Library is where this machine has a library.
func Library(name string) (string, error) { return find(name, libraryDirs) }

func find(lib string, dirs []string) (string, error) {
	for _, dir := range dirs {
		file := filepath.Join(dir, lib)
		if _, err := os.Stat(file); err == nil {
			return file, nil
		} else if !errors.Is(err, os.ErrNotExist) {
			return "", err
		}
	}
	return "", fmt.Errorf("%s is in none of %s: install it, or name it as provided", lib, strings.Join(dirs, ", "))
}
