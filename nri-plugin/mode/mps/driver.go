// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"strconv"
	"strings"
)

// branch is the driver's, 0 for one that is not known. What its control daemon can is
// told by it alone: the program's help names no options, and one that it does not know it
// takes for a command line that reads commands.
type branch int

// The first branches that can do something. 535, 550 and 555 have been run beside
// (test/nvidia); of 615 NVIDIA's documentation says it.
const (
	// manyUsers is the first whose server can take the clients of all users.
	manyUsers branch = 555
	// newest is the first that speaks protocol 3.
	newest branch = 615
)

func branchOf(version string) branch {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return branch(n)
}

// branch of the driver as it was last seen.
func (m *Mode) branch() branch {
	now, _ := m.node.Devices.Snapshot()
	return branchOf(now.Driver.Version)
}

// protocol is the newest one that its daemon speaks.
func (b branch) protocol() int {
	if b >= newest {
		return namespaces
	}
	return legacyProtocol
}

// options start its daemon, with one server for all users where it can have one.
func (b branch) options() []string {
	switch {
	case b >= newest:
		return []string{foreground, "-m", "-p", strconv.Itoa(namespaces)}
	case b >= manyUsers:
		return []string{foreground, "-multiuser-server"}
	}
	return []string{foreground}
}
