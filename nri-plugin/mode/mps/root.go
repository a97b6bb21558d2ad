// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Root reports whether a process is root as we see it: root of a container is, unless the
// container has a user namespace. One that cannot be read may be.
func Root(pid uint32) bool {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	for line := range strings.Lines(string(text)) {
		if ids, is := strings.CutPrefix(line, "Uid:"); is {
			return slices.Contains(strings.Fields(ids), "0")
		}
	}
	return true
}
