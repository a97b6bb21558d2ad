// SPDX-License-Identifier: Apache-2.0

package machine

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/moby/sys/mountinfo"
)

// Hierarchies are the control group hierarchies mounted on this machine: one on
// most machines, one per controller besides on those that still have version 1.
type Hierarchies struct {
	// Unified is where version 2 is mounted, empty where it is not.
	Unified string
	// V1 holds the mount point of every version 1 hierarchy.
	V1 []string
}

// FindHierarchies reads them from this process's mounts.
func FindHierarchies() (Hierarchies, error) {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup2", "cgroup"))
	if err != nil {
		return Hierarchies{}, err
	}
	var h Hierarchies
	for _, m := range mounts {
		if m.FSType == "cgroup2" {
			h.Unified = m.Mountpoint
		} else {
			h.V1 = append(h.V1, m.Mountpoint)
		}
	}
	if h.Unified == "" {
		at := "/sys/fs/cgroup"
		if len(h.V1) > 0 {
			at += "/unified"
		}
		return h, fmt.Errorf("control groups version 2 are not mounted: mount -t cgroup2 none %s (after mkdir -p)", at)
	}
	return h, nil
}

// Has says whether any hierarchy has the controller.
func (h Hierarchies) Has(controller string) bool {
	available, _ := words(filepath.Join(h.Unified, "cgroup.controllers"))
	return slices.Contains(available, controller) || slices.ContainsFunc(h.V1, func(root string) bool {
		_, err := os.Stat(filepath.Join(root, v1File[controller]))
		return v1File[controller] != "" && err == nil
	})
}

// v1File is a file that only a hierarchy with the controller has at its top.
var v1File = map[string]string{"cpu": "cpu.shares", "cpuset": "cpuset.cpus", "memory": "memory.stat", "pids": "../pids/tasks"}

// Create makes a group of the given name at the top of every hierarchy, with
// every controller that it has, as a kubelet expects of its root group.
func (h Hierarchies) Create(name string) error {
	for _, root := range h.V1 {
		dir := filepath.Join(root, name)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		// A cpuset group of version 1 holds no process until these are set.
		for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
			value, err := os.ReadFile(filepath.Join(root, file))
			if errors.Is(err, os.ErrNotExist) {
				continue
			}
			if err == nil {
				err = os.WriteFile(filepath.Join(dir, file), value, 0)
			}
			if err != nil {
				return err
			}
		}
	}
	return os.MkdirAll(filepath.Join(h.Unified, name), 0o755)
}

// Needed are the controllers without which a kubelet starts no pod.
var Needed = []string{"cpu", "cpuset", "memory", "pids"}

// Enable hands the controllers of version 2 down to the top groups and returns
// those that were not handed down before, to be put back with Disable.
func (h Hierarchies) Enable() ([]string, error) {
	available, err := words(filepath.Join(h.Unified, "cgroup.controllers"))
	if err != nil {
		return nil, err
	}
	enabled, err := words(filepath.Join(h.Unified, "cgroup.subtree_control"))
	if err != nil {
		return nil, err
	}
	var added []string
	for _, c := range available {
		if slices.Contains(enabled, c) {
			continue
		}
		switch err := h.control("+" + c); {
		case err == nil:
			added = append(added, c)
		case slices.Contains(Needed, c):
			return added, fmt.Errorf("control group controller %s: %w", c, err)
		}
	}
	return added, nil
}

// Disable takes controllers back from the top groups. One that another program
// uses by now stays.
func (h Hierarchies) Disable(controllers []string) {
	for _, c := range controllers {
		_ = h.control("-" + c)
	}
}

func (h Hierarchies) control(change string) error {
	return os.WriteFile(filepath.Join(h.Unified, "cgroup.subtree_control"), []byte(change), 0)
}

// Leftovers names the top groups that start with prefix, in any hierarchy.
func (h Hierarchies) Leftovers(prefix string) []string {
	var names []string
	for _, root := range h.roots() {
		found, _ := filepath.Glob(filepath.Join(root, prefix+"*"))
		for _, dir := range found {
			names = append(names, filepath.Base(dir))
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// Processes lists the processes in the group and the groups below it.
func (h Hierarchies) Processes(name string) []int {
	var pids []int
	for _, root := range h.roots() {
		for _, dir := range tree(filepath.Join(root, name)) {
			list, _ := words(filepath.Join(dir, "cgroup.procs")) // gone by now: none
			for _, w := range list {
				if pid, err := strconv.Atoi(w); err == nil && pid > 0 {
					pids = append(pids, pid)
				}
			}
		}
	}
	slices.Sort(pids)
	return slices.Compact(pids)
}

// Remove removes the group, empty of processes, from every hierarchy.
func (h Hierarchies) Remove(name string) error {
	var all error
	for _, root := range h.roots() {
		for _, dir := range tree(filepath.Join(root, name)) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, os.ErrNotExist) {
				all = errors.Join(all, err)
			}
		}
	}
	return all
}

func (h Hierarchies) roots() []string { return append([]string{h.Unified}, h.V1...) }

// tree lists a folder and those below it, children first.
func tree(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	var dirs []string
	for _, e := range entries {
		if e.IsDir() {
			dirs = append(dirs, tree(filepath.Join(dir, e.Name()))...)
		}
	}
	return append(dirs, dir)
}

func words(file string) ([]string, error) {
	data, err := os.ReadFile(file)
	return strings.Fields(string(data)), err
}
