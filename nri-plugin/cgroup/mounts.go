// SPDX-License-Identifier: Apache-2.0

package cgroup

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"strings"
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
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		// Fields: id parent major:minor root mountpoint options [optional…] - fstype source options
		before, after, _ := strings.Cut(lines.Text(), " - ")
		place, kind := strings.Fields(before), strings.Fields(after)
		switch {
		case len(place) < 5 || len(kind) < 3:
		case kind[0] == "cgroup2" && m.v2 == "":
			m.v2 = place[4]
		case kind[0] == "cgroup":
			for option := range strings.SplitSeq(kind[2], ",") {
				m.v1[option] = place[4]
			}
		}
	}
	if err := lines.Err(); err != nil {
		return m, fmt.Errorf("reading the mount table: %w", err)
	}
	return m, nil
}
