// SPDX-License-Identifier: Apache-2.0

// Package preload owns one question: what does a container's image itself have in
// /etc/ld.so.preload, where the limiter's mount hides it?
//
// It asks the kernel for the runtime's own view of the container's root, where
// nothing is mounted over the image's files. It writes nothing, enters no namespace
// and runs nothing of the container's.
package preload

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Path is where the dynamic loader looks for libraries to load first.
const Path = "/etc/ld.so.preload"

// maxBytes bounds what is taken for a list of libraries.
const maxBytes = 64 << 10

// Image reads the files of containers' images.
type Image struct {
	// Proc is where procfs of the host's PID namespace is mounted.
	Proc string
}

// Own is the content of the image's own file; nil if it has none, or an empty one.
// pid is the container's first process, which does not run yet. The usual answer
// costs two short reads and a stat.
func (i Image) Own(pid uint32) ([]byte, error) {
	root, err := i.root(pid)
	if err != nil {
		return nil, fmt.Errorf("finding the root of process %d: %w", pid, err)
	}
	runtime, err := i.parent(pid)
	if err != nil {
		return nil, err
	}
	// The runtime makes the file to mount on where the image has none. In an
	// overlay that shows in the container's own layer, which is still new.
	if root.upper != "" {
		made, err := os.Lstat(filepath.Join(i.path(runtime, "root"), root.upper, Path))
		if err == nil && made.Mode().IsRegular() && made.Size() == 0 {
			return nil, nil
		}
	}
	at, err := i.mountpoint(runtime, root)
	if err != nil {
		return nil, err
	}
	return read(filepath.Join(i.path(runtime, "root"), at))
}

func (i Image) path(pid uint32, file string) string {
	return filepath.Join(i.Proc, strconv.FormatUint(uint64(pid), 10), file)
}

// parent of a container's first process is the runtime's process that looks after
// it, in the namespace where its root was mounted.
func (i Image) parent(pid uint32) (uint32, error) {
	stat, err := os.ReadFile(i.path(pid, "stat"))
	if err != nil {
		return 0, err
	}
	// PID (name) state parent …, and the name may hold anything.
	fields := strings.Fields(string(stat[strings.LastIndexByte(string(stat), ')')+1:]))
	if len(fields) < 2 {
		return 0, fmt.Errorf("process %d has no parent", pid)
	}
	parent, err := strconv.ParseUint(fields[1], 10, 32)
	return uint32(parent), err
}

// mount is a line of a mount table. The same device and root name the same files
// in every namespace.
type mount struct {
	device, root, at string
	// upper is the writable layer of an overlay.
	upper string
}

// root is the mount of the process's root.
func (i Image) root(pid uint32) (mount, error) {
	return i.find(pid, func(m mount) bool { return m.at == "/" })
}

// mountpoint is where another process sees the files of that mount.
func (i Image) mountpoint(pid uint32, of mount) (string, error) {
	m, err := i.find(pid, func(m mount) bool { return m.device == of.device && m.root == of.root })
	if err != nil {
		return "", fmt.Errorf("finding the container's root as the runtime's process %d has it: %w", pid, err)
	}
	return m.at, nil
}

var errNoMount = errors.New("not in its mount table")

// find is the first mount of a process's table that fits.
func (i Image) find(pid uint32, fits func(mount) bool) (mount, error) {
	f, err := os.Open(i.path(pid, "mountinfo"))
	if err != nil {
		return mount{}, err
	}
	defer f.Close()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		m, ok := parse(lines.Text())
		if ok && fits(m) {
			return m, nil
		}
	}
	return mount{}, errNoMount
}

// parse reads: id parent major:minor root mountpoint options … - type source options.
func parse(line string) (mount, bool) {
	before, after, found := strings.Cut(line, " - ")
	left, right := strings.Fields(before), strings.Fields(after)
	if !found || len(left) < 5 || len(right) < 3 {
		return mount{}, false
	}
	m := mount{device: left[2], root: left[3], at: unescape(left[4])}
	if right[0] == "overlay" {
		for option := range strings.SplitSeq(right[2], ",") {
			// What is written with escapes is left to the longer way.
			if upper, is := strings.CutPrefix(option, "upperdir="); is && filepath.IsAbs(upper) && !strings.Contains(upper, `\`) {
				m.upper = upper
			}
		}
	}
	return m, true
}

// unescape undoes the table's octal escapes of blanks and backslashes.
func unescape(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// read reads the file as a process would whose root that folder is: a link leads
// nowhere else.
func read(root string) ([]byte, error) {
	dir, err := unix.Open(root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: root, Err: err}
	}
	defer unix.Close(dir)
	fd, err := unix.Openat2(dir, strings.TrimPrefix(Path, "/"), &unix.OpenHow{
		Flags: unix.O_RDONLY | unix.O_CLOEXEC | unix.O_NONBLOCK, Resolve: unix.RESOLVE_IN_ROOT,
	})
	if errors.Is(err, unix.ENOENT) {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: root + Path, Err: err}
	}
	f := os.NewFile(uintptr(fd), Path)
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, nil // the loader takes no list from it either
	}
	content, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	switch {
	case err != nil:
		return nil, err
	case len(content) > maxBytes:
		return nil, fmt.Errorf("the image's %s has more than %d bytes, which is no list of libraries", Path, maxBytes)
	case len(content) == 0:
		return nil, nil
	}
	return content, nil
}
