// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"fmt"
	"strconv"
	"strings"
)

// legacy is the text protocol that every driver's daemon speaks. A server has one limit
// of each kind for all of its clients.
type legacy struct{ link }

func (c legacy) ask(format string, args ...any) (string, error) {
	reply, err := c.Ask(c.dir, fmt.Sprintf(format, args...), c.wait)
	return strings.TrimSpace(reply), err
}

// needs is one namespace, with the largest slice's limits.
func (legacy) needs(slices spaces) spaces {
	var all limits
	for _, l := range slices {
		all = all.most(l)
	}
	return spaces{"": all}
}

func (c legacy) look() (pid int, status string, err error) {
	reply, err := c.ask("get_server_list")
	if err != nil {
		return 0, "", err
	}
	servers, err := pids(reply)
	if err != nil || len(servers) == 0 {
		return 0, "", err
	}
	if status, err = c.ask("get_server_status %d", servers[0]); strings.HasPrefix(status, unknownCommand) {
		status, err = c.serves(servers[0])
	}
	return servers[0], status, err
}

// unknownCommand begins the answer to a command that the daemon does not have.
const unknownCommand = "Unknown command"

// serves is the status where the daemon tells none, as before driver R550: a server that
// tells its limits is active. One that has had a fault looks like that, too. It takes new
// clients when its last one has ended, and nobody here hurries them.
func (c legacy) serves(server int) (string, error) {
	reply, err := c.ask("get_active_thread_percentage %d", server)
	if _, bad := strconv.ParseFloat(reply, 64); err != nil || bad != nil {
		return reply, err
	}
	return active, nil
}

func (c legacy) begin() (string, error) { return c.ask("start_server -uid %d", serverUID) }

// hold sets the limits, for the server and for those that the daemon may start in its
// stead, and reads each back.
func (c legacy) hold(server int, want spaces) (spaces, error) {
	l := want[""]
	for _, command := range []string{
		"set_default_active_thread_percentage " + l.threads(),
		"set_default_device_pinned_mem_limit 0 " + l.memory(),
		fmt.Sprintf("set_active_thread_percentage %d %s", server, l.threads()),
		fmt.Sprintf("set_device_pinned_mem_limit %d 0 %s", server, l.memory()),
	} {
		if _, err := c.ask("%s", command); err != nil {
			return nil, err
		}
	}
	for _, of := range []string{"", strconv.Itoa(server)} {
		if err := c.same(of, l); err != nil {
			return nil, err
		}
	}
	return want, nil
}

func (c legacy) confirm(server int, want spaces) error { return c.same(strconv.Itoa(server), want[""]) }

// same reads the limits back: a server's, or those that the daemon gives to its next
// ones.
func (c legacy) same(server string, l limits) error {
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
			return notHeld(reply, limit.command, limit.want)
		}
	}
	return nil
}

func (legacy) sweep(spaces) ([]string, error) { return nil, nil }

func (c legacy) clients(server int) ([]int, error) {
	reply, err := c.ask("get_client_list %d", server)
	if err != nil {
		return nil, err
	}
	return pids(reply)
}

func (c legacy) end(server int, clients []int) error {
	for _, client := range clients {
		if _, err := c.ask("terminate_client %d %d", server, client); err != nil {
			return err
		}
	}
	_, err := c.ask("shutdown_server %d -f", server)
	return err
}
