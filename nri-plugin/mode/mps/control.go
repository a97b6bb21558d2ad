// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// limits are what clients are held to.
type limits struct {
	core v1alpha1.Percent
	mem  v1alpha1.MiB
}

// limitsOf are a slice's. Without a quota of compute nothing of it is held back.
func limitsOf(g ledger.Grant) limits {
	return limits{cmp.Or(g.Core, v1alpha1.WholeGPU), g.Mem}
}

func (l limits) most(m limits) limits { return limits{max(l.core, m.core), max(l.mem, m.mem)} }

// cover reports whether a slice's own limits lower those.
func (l limits) cover(m limits) bool { return m.core <= l.core && m.mem <= l.mem }

func (l limits) threads() string { return strconv.FormatInt(int64(l.core), 10) }
func (l limits) memory() string  { return strconv.FormatInt(int64(l.mem), 10) + "M" }

func (l limits) sameThreads(reply string) bool {
	got, err := strconv.ParseFloat(reply, 64)
	return err == nil && got == float64(l.core)
}

// sameMemory takes the whole GiB for the limit where the daemon prints no more: every daemon that
// has been run tells from 1 GiB on nothing less.
func (l limits) sameMemory(reply string) bool {
	got, err := parseSize(reply)
	want := l.mem.Bytes()
	return err == nil && (got == want || got > 0 && strings.HasSuffix(reply, "G") && got == want&^(1<<30-1))
}

// spaces are the limits of a server's clients, by the namespace that the clients are
// in. A server of the legacy protocol has one for all, without a name.
type spaces map[string]limits

// States of a server.
const (
	active = "ACTIVE"
	faulty = "FAULT"
)

// control has the commands of a control daemon, in the protocol that it speaks.
// The daemon has one device, and one server that is ours.
type control interface {
	// needs are the namespaces that hold slices, of which each is named.
	needs(slices spaces) spaces
	// look finds the server and its state: no PID without one. An error means that no
	// daemon has answered.
	look() (pid int, status string, err error)
	// begin starts the server, and tells what the daemon says to that.
	begin() (said string, err error)
	// hold has the clients held to these limits, reads each back, and tells which are so.
	hold(pid int, want spaces) (spaces, error)
	// confirm reads the limits back.
	confirm(pid int, want spaces) error
	// sweep removes the namespaces that no slice has, and tells which are left.
	sweep(want spaces) (left []string, err error)
	// clients are the PIDs of the server's.
	clients(pid int) ([]int, error)
	// end ends the server and the clients that it has.
	end(pid int, clients []int) error
}

// Protocols of control daemons.
const (
	legacyProtocol = 2
	namespaces     = 3
)

// link reaches the daemon of a folder.
type link struct {
	Daemons
	dir  string
	wait time.Duration
}

// control talks to the daemon of a device in the protocol that it was started with.
func (m *Mode) control(uuid string, wait time.Duration) (control, error) {
	all, err := m.daemons()
	l := link{all, m.files.folder(uuid), wait}
	if m.protocol(uuid) == namespaces {
		return v3{l}, err
	}
	return legacy{l}, err
}

// protocol of a device's daemon.
func (m *Mode) protocol(uuid string) int {
	if s, _ := m.files.state(uuid); s.Protocol != 0 {
		return s.Protocol
	}
	return legacyProtocol
}

func notHeld(reply, command, want string) error {
	return fmt.Errorf("the MPS control daemon answers %q to %s, want %s; check that nothing else sets its limits, and its log below the agent's state directory", reply, command, want)
}

var errSize = errors.New("not a size")

// parseSize reads a number of bytes, K, M or G.
func parseSize(text string) (uint64, error) {
	text = strings.TrimSuffix(text, "B")
	shift := 0
	if n := len(text); n > 0 {
		if at := strings.IndexByte("KMG", text[n-1]); at >= 0 {
			shift, text = 10*(at+1), text[:n-1]
		}
	}
	n, err := strconv.ParseUint(text, 10, 64-shift)
	if err != nil {
		return 0, errSize
	}
	return n << shift, nil
}

// pids reads the first field of every line.
func pids(reply string) ([]int, error) {
	var all []int
	for line := range strings.Lines(reply) {
		field, _, _ := strings.Cut(strings.TrimSpace(line), ",")
		if field == "" {
			continue
		}
		pid, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("the MPS control daemon says %q", reply)
		}
		all = append(all, pid)
	}
	return all, nil
}

// branch is the driver's, 0 for one that is not known. What its control daemon can is
// known from it alone: the program's help names no options, and one that it does not know it
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
