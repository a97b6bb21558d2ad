// SPDX-License-Identifier: Apache-2.0

// Package cgroup owns one question: which directory of the node's cgroup v2
// hierarchy belongs to a container, and to it alone. The driver's memory limits
// are set on such a directory.
//
// It never writes to a cgroup.
package cgroup

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// ErrNone is wrapped when a container has no directory of its own.
var ErrNone = errors.New("no cgroup v2 directory of its own")

// Finder finds directories. The zero value is not usable; see New.
type Finder struct {
	proc  string
	mount string
}

// New looks for the v2 hierarchy in the mount table of the process. proc is
// where procfs is mounted, as /proc. Under a hybrid set-up the hierarchy is the
// unified one beside the v1 controllers.
func New(proc string) (*Finder, error) {
	f, err := os.Open(filepath.Join(proc, "self", "mountinfo"))
	if err != nil {
		return nil, fmt.Errorf("reading the mount table: %w", err)
	}
	defer f.Close()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// Fields: id parent major:minor root mountpoint options [optional…] - fstype …
		before, after, found := strings.Cut(lines.Text(), " - ")
		if fields := strings.Fields(before); found && len(fields) >= 5 && strings.HasPrefix(after, "cgroup2 ") {
			return &Finder{proc: proc, mount: fields[4]}, nil
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the mount table: %w", err)
	}
	return nil, errors.New("the node has no cgroup v2 hierarchy")
}

// Leaf is the full path of the v2 directory of the process pid, which runs the
// container of that id. The directory must be the container's alone: a limit on
// a shared one would hold others to it as well, and be lifted by others. Runtimes
// put the container's id into the name of its directory, so its absence is
// ErrNone.
func (f *Finder) Leaf(pid uint32, container string) (string, error) {
	text, err := os.ReadFile(filepath.Join(f.proc, strconv.FormatUint(uint64(pid), 10), "cgroup"))
	if err != nil {
		return "", fmt.Errorf("reading the cgroup of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		path, v2 := strings.CutPrefix(strings.TrimSuffix(line, "\n"), "0::")
		if !v2 {
			continue
		}
		if container == "" || !strings.Contains(filepath.Base(path), container) {
			return "", fmt.Errorf("%w: process %d is in %s", ErrNone, pid, path)
		}
		return filepath.Join(f.mount, path), nil
	}
	return "", fmt.Errorf("%w: process %d is in none", ErrNone, pid)
}
