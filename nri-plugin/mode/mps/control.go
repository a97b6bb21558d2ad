// SPDX-License-Identifier: Apache-2.0

package mps

import (
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
	if g.Core == 0 {
		g.Core = v1alpha1.WholeGPU
	}
	return limits{g.Core, g.Mem}
}

func (l limits) most(m limits) limits { return limits{max(l.core, m.core), max(l.mem, m.mem)} }

// cover tells whether a slice's own limits lower those.
func (l limits) cover(m limits) bool { return m.core <= l.core && m.mem <= l.mem }

func (l limits) threads() string { return strconv.FormatInt(int64(l.core), 10) }
func (l limits) memory() string  { return strconv.FormatInt(int64(l.mem), 10) + "M" }

// States of a server.
const (
	active = "ACTIVE"
	faulty = "FAULT"
)

// control is the text protocol of a control daemon. It shows one device, number 0.
type control struct {
	Daemons
	dir  string
	wait time.Duration
}

func (c control) ask(format string, args ...any) (string, error) {
	reply, err := c.Ask(c.dir, fmt.Sprintf(format, args...), c.wait)
	return strings.TrimSpace(reply), err
}

// servers are the PIDs of those that the daemon has.
func (c control) servers() ([]int, error) { return c.pids("get_server_list") }

// clients are the PIDs of a server's.
func (c control) clients(server int) ([]int, error) { return c.pids("get_client_list %d", server) }

func (c control) pids(format string, args ...any) ([]int, error) {
	reply, err := c.ask(format, args...)
	var pids []int
	for _, word := range strings.Fields(reply) {
		pid, bad := strconv.Atoi(word)
		if bad != nil {
			return nil, fmt.Errorf("the MPS control daemon says %q", reply)
		}
		pids = append(pids, pid)
	}
	return pids, err
}

func (c control) status(server int) (string, error) { return c.ask("get_server_status %d", server) }

// hold sets the limits, for the server and for those that the daemon may start in its
// stead, and reads each back.
func (c control) hold(server int, l limits) error {
	for _, command := range []string{
		"set_default_active_thread_percentage " + l.threads(),
		"set_default_device_pinned_mem_limit 0 " + l.memory(),
		fmt.Sprintf("set_active_thread_percentage %d %s", server, l.threads()),
		fmt.Sprintf("set_device_pinned_mem_limit %d 0 %s", server, l.memory()),
	} {
		if _, err := c.ask("%s", command); err != nil {
			return err
		}
	}
	for _, of := range []string{"", strconv.Itoa(server)} {
		if err := c.confirm(of, l); err != nil {
			return err
		}
	}
	return nil
}

// confirm reads the limits back: a server's, or those that the daemon gives to its
// next ones.
func (c control) confirm(server string, l limits) error {
	name, of := "", " "+server+" "
	if server == "" {
		name, of = "default_", " "
	}
	for _, limit := range []struct {
		command, want string
		same          func(reply string) bool
	}{
		{"get_" + name + "active_thread_percentage" + strings.TrimRight(of, " "), l.threads() + " %", l.sameThreads},
		{"get_" + name + "device_pinned_mem_limit" + of + "0", l.memory(), l.sameMemory},
	} {
		reply, err := c.ask("%s", limit.command)
		if err != nil {
			return err
		}
		if !limit.same(reply) {
			return fmt.Errorf("the MPS control daemon answers %q to %s, want %s; check that nothing else sets its limits, and its log below the agent's state directory", reply, limit.command, limit.want)
		}
	}
	return nil
}

func (l limits) sameThreads(reply string) bool {
	got, err := strconv.ParseFloat(reply, 64)
	return err == nil && got == float64(l.core)
}

func (l limits) sameMemory(reply string) bool {
	got, err := parseSize(reply)
	return err == nil && got == l.mem.Bytes()
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
