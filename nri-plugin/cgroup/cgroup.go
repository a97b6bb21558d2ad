// SPDX-License-Identifier: Apache-2.0

// Package cgroup owns what the node's cgroups tell of a container. By v2 that is
// its own directory, on which the driver's memory limits are set, and how long
// its tasks have waited for a CPU. By v1 it is which CPUs its pod is held to. By
// either it is how much processor time it has used.
//
// It never writes to a cgroup.
package cgroup

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// ErrNone is wrapped when a container has no directory of its own.
var ErrNone = errors.New("no cgroup directory of its own")

var errNoV2 = errors.New("the node has no cgroup v2 hierarchy")

// New is NewProcessors for a node that has the v2 hierarchy.
func New(proc string) (*Processors, error) {
	p, err := NewProcessors(proc)
	if err == nil && p.m.v2 == "" {
		err = errNoV2
	}
	return p, err
}

// Leaf is the full path of the v2 directory of the process pid, which runs the
// container of that id. The directory must be the container's alone: a limit on
// a shared one would hold others to it as well, and be lifted by others. Runtimes
// put the container's id into the name of its directory, so its absence is
// ErrNone.
func (p *Processors) Leaf(pid uint32, container string) (string, error) {
	path, err := own(p.proc, pid, container, "")
	if err != nil {
		return "", err
	}
	return filepath.Join(p.m.v2, path), nil
}

// own is the container's directory in the hierarchy that has the v1 controller, or
// in v2 where that is empty.
func own(proc string, pid uint32, container, controller string) (string, error) {
	text, err := os.ReadFile(filepath.Join(proc, strconv.FormatUint(uint64(pid), 10), "cgroup"))
	if err != nil {
		return "", fmt.Errorf("reading the cgroup of process %d: %w", pid, err)
	}
	for line := range strings.Lines(string(text)) {
		// Fields: id:controllers:path, with none of them for v2.
		fields := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(fields) < 3 || !slices.Contains(strings.Split(fields[1], ","), controller) {
			continue
		}
		if container == "" || !strings.Contains(filepath.Base(fields[2]), container) {
			return "", fmt.Errorf("%w: process %d is in %s", ErrNone, pid, fields[2])
		}
		return fields[2], nil
	}
	return "", fmt.Errorf("%w: process %d is in none", ErrNone, pid)
}

// mounts are where the node's hierarchies are.
type mounts struct {
	// v2 is empty where there is none. Under a hybrid set-up it is the unified
	// hierarchy beside the v1 controllers.
	v2 string
	// v1 by controller.
	v1 map[string]string
}

// readMounts reads the mount table of the process.
func readMounts(proc string) (mounts, error) {
	m := mounts{v1: map[string]string{}}
	f, err := os.Open(filepath.Join(proc, "self", "mountinfo"))
	if err != nil {
		return m, fmt.Errorf("reading the mount table: %w", err)
	}
	defer f.Close()
	all, err := mountinfo.GetMountsFromReader(f, mountinfo.FSTypeFilter("cgroup2", "cgroup"))
	if err != nil {
		return m, fmt.Errorf("reading the mount table: %w", err)
	}
	for _, mount := range all {
		if mount.FSType == "cgroup2" {
			m.v2 = cmp.Or(m.v2, mount.Mountpoint)
			continue
		}
		for option := range strings.SplitSeq(mount.VFSOptions, ",") {
			m.v1[option] = mount.Mountpoint
		}
	}
	return m, nil
}
