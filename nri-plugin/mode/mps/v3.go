// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"vernier.dev/vernier/nri-plugin/ledger"
)

// v3 is protocol 3, which drivers from R615 on speak beside the legacy one: one server
// with a namespace for each slice, whose limits bind who connects by its folder.
// NVIDIA documents the commands and their columns (MPS v3 Interface); of a server's
// states only Ready is written anywhere, so every other is one that we wait for.
//
// SM partitions are not used: one can be made only while the device has no client at
// all, their unit is 8 of some 130 multiprocessors, every client names the one that it
// likes in its environment, and thread percentages mean nothing in them.
type v3 struct{ link }

// ourServer is our server's. Its length counts in the paths of sockets.
const ourServer = "vernier"

// defaultSpace comes with every server. No container sees its folder.
const defaultSpace = "default"

// spaceOf names a container's namespace: names are short for the sockets' paths, and
// lower case.
func spaceOf(k ledger.Key) string {
	sum := sha256.Sum256([]byte(string(k.Pod) + "/" + k.Container))
	return "s" + hex.EncodeToString(sum[:8])
}

func (v3) needs(slices spaces) spaces { return slices }

// rows runs a command that lists, and returns the fields of each line.
func (c v3) rows(args ...string) ([][]string, error) {
	reply, err := c.Run(c.dir, c.wait, append(args, "--format=csv,noheader")...)
	var all [][]string
	for line := range strings.Lines(reply) {
		if line = strings.TrimSpace(line); line != "" {
			all = append(all, strings.Split(line, ","))
		}
	}
	return all, err
}

// server is our server's row; nil without one.
func (c v3) server() ([]string, error) {
	rows, err := c.rows("server", "list")
	for _, row := range rows {
		if len(row) > 3 && row[0] == ourServer {
			return row, err
		}
	}
	return nil, err
}

func (c v3) look() (pid int, status string, err error) {
	row, err := c.server()
	if err != nil || row == nil {
		return 0, "", err
	}
	if pid, err = strconv.Atoi(row[2]); err != nil {
		return 0, "", nil // it has none while it does not run
	}
	switch {
	case strings.EqualFold(row[3], "ready"):
		status = active
	case strings.EqualFold(row[3], faulty):
		status = faulty
	default:
		status = row[3]
	}
	return pid, status, nil
}

// begin makes the server again where one by its name does not run.
func (c v3) begin() (string, error) {
	row, err := c.server()
	if err == nil && row != nil {
		err = c.end(0, nil)
	}
	if err != nil {
		return "", err
	}
	return c.Run(c.dir, c.wait, "server", "create", ourServer)
}

// have are the namespaces that there are, less the default one.
func (c v3) have() (map[string][]string, error) {
	rows, err := c.rows("namespace", "list", "--server="+ourServer)
	all := map[string][]string{}
	for _, row := range rows {
		if len(row) > 4 && row[0] != defaultSpace {
			all[row[0]] = row
		}
	}
	return all, err
}

// isHeld compares a namespace's row with the limits that it should have.
func (l limits) isHeld(row []string) bool {
	return row != nil && l.sameMemory(row[3]) && l.sameThreads(row[4])
}

// hold makes what is missing and sets what differs: a new namespace inherits no limits,
// and those of one with clients cannot be changed, so that one whose clients stay as
// they are is kept apart from the rest.
func (c v3) hold(_ int, want spaces) (spaces, error) {
	have, err := c.have()
	if err != nil {
		return nil, err
	}
	var failed []error
	for _, name := range slices.Sorted(maps.Keys(want)) {
		l, row := want[name], have[name]
		if row == nil {
			_, err = c.Run(c.dir, c.wait, "namespace", "create", name, "--server="+ourServer)
		}
		if err == nil && !l.isHeld(row) {
			_, err = c.Run(c.dir, c.wait, "namespace", "set", name, "--server="+ourServer,
				"--pinned-memory-limit="+l.memory(), "--active-thread-percentage="+l.threads())
		}
		failed, err = append(failed, err), nil
	}
	if have, err = c.have(); err != nil {
		return nil, err
	}
	held := spaces{}
	for name, l := range want {
		if l.isHeld(have[name]) {
			held[name] = l
		}
	}
	if len(held) < len(want) {
		failed = append(failed, c.confirm(0, want))
	}
	return held, errors.Join(failed...)
}

func (c v3) confirm(_ int, want spaces) error {
	have, err := c.have()
	if err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(want)) {
		if l := want[name]; !l.isHeld(have[name]) {
			return notHeld(strings.Join(have[name], ","), "namespace list "+name, fmt.Sprintf("%s and %s %%", l.memory(), l.threads()))
		}
	}
	return nil
}

// sweep leaves a namespace that has a client: its container is about to be gone.
func (c v3) sweep(want spaces) (left []string, err error) {
	have, err := c.have()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(have)) {
		if _, wanted := want[name]; wanted {
			continue
		}
		if _, err := c.Run(c.dir, c.wait, "namespace", "delete", name, "--server="+ourServer); err != nil {
			left = append(left, name)
		}
	}
	return left, nil
}

func (c v3) clients(int) ([]int, error) {
	reply, err := c.Run(c.dir, c.wait, "client", "list", "--server="+ourServer, "--format=csv,noheader")
	if err != nil {
		return nil, err
	}
	return pids(reply)
}

// end ends the clients first, as the documentation says of --force, and takes the
// namespaces along.
func (c v3) end(int, []int) error {
	_, err := c.Run(c.dir, c.wait, "server", "delete", ourServer, "--force")
	return err
}
