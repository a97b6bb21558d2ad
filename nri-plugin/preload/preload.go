// SPDX-License-Identifier: Apache-2.0

// Package preload owns one question: what does a container's image itself have in
// /etc/ld.so.preload, where the limiter's mount hides it?
//
// It asks the kernel for the runtime's own view of the container's root, where
// nothing is mounted over the image's files. It writes nothing, enters no namespace
// and runs nothing of the container's.
package preload

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/moby/sys/mountinfo"
	"github.com/prometheus/procfs"
	"golang.org/x/sys/unix"
)

// Path is where the dynamic loader looks for libraries to load first.
const Path = "/etc/ld.so.preload"

// maxBytes bounds what is taken for a list of libraries.
const maxBytes = 64 << 10

// A container's root may be a file system in user space, as lazy snapshotters make, whose
// content comes from a registry that a tenant can hold up. A read there then takes for ever,
// no signal ends it, and the runtime waits for it with every container of the node.
const (
	// patience with one read.
	patience = 250 * time.Millisecond
	// maxReads at a time: each that does not come back keeps a thread.
	maxReads = 16
)

// Image reads the files of containers' images.
type Image struct {
	// proc is where procfs of the host's PID namespace is mounted.
	proc     string
	patience time.Duration
	// reads has a place for each that is under way.
	reads chan struct{}
}

// New reads what is mounted in the processes below proc, the host's procfs.
func New(proc string) *Image {
	return &Image{proc: proc, patience: patience, reads: make(chan struct{}, maxReads)}
}

// Own is the content of the image's own file; nil if it has none, or an empty one. The
// pid is the container's first process, which does not run yet. The usual answer
// costs two short reads and a stat.
func (i *Image) Own(pid uint32) ([]byte, error) {
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
	if upper := upperOf(root); upper != "" {
		made, err := os.Lstat(filepath.Join(i.path(runtime, "root"), upper, Path))
		if err == nil && made.Mode().IsRegular() && made.Size() == 0 {
			return nil, nil
		}
	}
	at, err := i.mountpoint(runtime, root)
	if err != nil {
		return nil, err
	}
	return i.bounded(func() ([]byte, error) { return read(filepath.Join(i.path(runtime, "root"), at)) })
}

// bounded reads aside, and leaves a read behind that takes too long.
func (i *Image) bounded(read func() ([]byte, error)) ([]byte, error) {
	select {
	case i.reads <- struct{}{}:
	default:
		return nil, fmt.Errorf("%d images' files are waited for already, in vain; see to the node's snapshotter, then restart vernier-node", cap(i.reads))
	}
	type result struct {
		content []byte
		err     error
	}
	done := make(chan result, 1)
	go func() {
		defer func() { <-i.reads }()
		content, err := read()
		done <- result{content, err}
	}()
	late := time.NewTimer(i.patience)
	defer late.Stop()
	select {
	case r := <-done:
		return r.content, r.err
	case <-late.C:
		return nil, fmt.Errorf("the image's %s cannot be read within %s: its file system does not answer", Path, i.patience)
	}
}

func (i *Image) path(pid uint32, file string) string {
	return filepath.Join(i.proc, strconv.FormatUint(uint64(pid), 10), file)
}

// parent of a container's first process is the runtime's process that looks after
// it, in the namespace where its root was mounted.
func (i *Image) parent(pid uint32) (uint32, error) {
	fs, err := procfs.NewFS(i.proc)
	if err != nil {
		return 0, err
	}
	process, err := fs.Proc(int(pid))
	if err != nil {
		return 0, err
	}
	stat, err := process.Stat()
	return uint32(stat.PPID), err
}

// root is the mount of the process's root.
func (i *Image) root(pid uint32) (*mountinfo.Info, error) {
	return i.find(pid, func(m *mountinfo.Info) bool { return m.Mountpoint == "/" })
}

// mountpoint is where another process sees the files of that mount: the same device and
// root name the same files in every namespace.
func (i *Image) mountpoint(pid uint32, of *mountinfo.Info) (string, error) {
	m, err := i.find(pid, func(m *mountinfo.Info) bool { return m.Major == of.Major && m.Minor == of.Minor && m.Root == of.Root })
	if err != nil {
		return "", fmt.Errorf("finding the container's root as the runtime's process %d has it: %w", pid, err)
	}
	return m.Mountpoint, nil
}

var errNoMount = errors.New("not in its mount table")

// find is the first mount of a process's table that fits.
func (i *Image) find(pid uint32, fits func(*mountinfo.Info) bool) (*mountinfo.Info, error) {
	f, err := os.Open(i.path(pid, "mountinfo"))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	found, err := mountinfo.GetMountsFromReader(f, func(m *mountinfo.Info) (skip, stop bool) {
		fit := fits(m)
		return !fit, fit
	})
	if err == nil && len(found) == 0 {
		err = errNoMount
	}
	if err != nil {
		return nil, err
	}
	return found[0], nil
}

// upperOf is the writable layer of an overlay; empty where there is none, or where it is
// written with escapes, which is left to the longer way.
func upperOf(m *mountinfo.Info) string {
	if m.FSType != "overlay" {
		return ""
	}
	for option := range strings.SplitSeq(m.VFSOptions, ",") {
		if upper, is := strings.CutPrefix(option, "upperdir="); is && filepath.IsAbs(upper) && !strings.Contains(upper, `\`) {
			return upper
		}
	}
	return ""
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
