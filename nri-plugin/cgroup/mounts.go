// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
)

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
