// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

// Reasons of events.
const (
	// ReasonFault: a client's fatal fault has taken the contexts of all.
	ReasonFault = "MPSServerFault"
	// ReasonLost: the control daemon or the server is gone.
	ReasonLost = "MPSServerLost"
)

// ended is the event of the containers of a server that is gone.
const ended = "the MPS server of device %s has ended, and the contexts of all processes that it served with it; they have to start again"

// Period between two calls of Look.
const Period = 2 * time.Second

// drain is how long the clients of a server that had a fault have to end: they get
// nothing but errors any more, and nobody new is served before they have.
const drain = 30 * time.Second

// fault is one of a server, since when.
type fault struct {
	server int
	since  time.Time
}

// Look looks at every server that there should be once.
func (m *Mode) Look(now time.Time) error {
	_, known := m.node.Containers()
	m.reading.Lock()
	ready, owed := maps.Clone(m.ready), map[string]bool{}
	if known {
		owed, m.owed = m.owed, owed
	}
	m.reading.Unlock()
	for uuid := range owed {
		m.tell(uuid, ReasonLost, ended, uuid)
	}
	failed := []error{m.files.trim()}
	for _, uuid := range slices.Sorted(maps.Keys(ready)) {
		failed = append(failed, m.look(uuid, ready[uuid], now))
	}
	return errors.Join(failed...)
}

func (m *Mode) look(uuid string, s server, now time.Time) error {
	c, err := m.control(uuid, m.patience)
	if err != nil {
		return err
	}
	pid, status, err := c.look()
	switch {
	case err == nil && pid != 0 && pid != s.pid && m.branch() < manyUsers:
		return m.again(uuid) // another user's, after the last client of the one before
	case err != nil || pid != s.pid:
		return m.lost(uuid, err)
	case status != faulty:
		had := m.faults[uuid].server == s.pid // not of a server before
		delete(m.faults, uuid)
		if status != active {
			return nil
		}
		if stray, err := m.strays(uuid, c); had || stray {
			return m.again(uuid)
		} else {
			return err
		}
	}
	had, known := m.faults[uuid]
	if !known || had.server != s.pid {
		had = fault{s.pid, now}
		m.faults[uuid] = had
		m.tell(uuid, ReasonFault, "a process on device %s had a fatal fault, and with it all processes that its MPS server serves have lost their contexts. They get nothing but errors and have to start again. The server takes new ones when they have ended, in %s at the latest", uuid, drain)
	}
	clients, err := c.clients(s.pid)
	if err != nil || len(clients) > 0 && now.Sub(had.since) < drain {
		return err
	}
	return m.restart(uuid, c, s.pid, clients)
}

// strays reports whether a server's limits are not what it was given, or its memory is not
// what containers are given, and removes what no slice has: what had clients still when its slice went.
func (m *Mode) strays(uuid string, c control) (bool, error) {
	m.setting <- struct{}{}
	defer func() { <-m.setting }()
	s, ready := m.server(uuid)
	if !ready {
		return false, nil
	}
	all, err := m.daemons()
	if err != nil {
		return false, err
	}
	if c.confirm(s.pid, s.spaces) != nil || common(all, m.files.folder(uuid), s.pid) != nil {
		return true, nil
	}
	return false, m.sweep(uuid, c, s.spaces)
}

// again tells a server its limits once more.
func (m *Mode) again(uuid string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unset(uuid)
	_, err := m.bring(uuid)
	return err
}

// restart replaces a server that had a fault, and nothing else: the daemon and the
// other devices' servers go on.
func (m *Mode) restart(uuid string, c control, pid int, clients []int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unset(uuid)
	delete(m.faults, uuid)
	m.warned[uuid] = true
	if err := c.end(pid, clients); err != nil {
		return err
	}
	if err := m.await("the server that had a fault to end", func() (bool, error) {
		now, _, err := c.look()
		return now != pid, err
	}); err != nil {
		return err
	}
	_, err := m.bring(uuid)
	return err
}

// lost is for a device whose daemon does not answer, or whose server is gone. Another
// is started, as soon as the old server has ended with its clients.
func (m *Mode) lost(uuid string, why error) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.unset(uuid)
	delete(m.faults, uuid)
	if why != nil {
		m.tell(uuid, ReasonLost, "the MPS control daemon of device %s does not answer (%v): processes that its server serves go on, new ones start when those have ended", uuid, why)
	} else {
		m.tell(uuid, ReasonLost, ended, uuid)
	}
	m.warned[uuid] = true
	_, err := m.bring(uuid)
	return err
}

// owe has the device's containers warned as soon as they are known.
func (m *Mode) owe(uuid string) {
	m.reading.Lock()
	defer m.reading.Unlock()
	m.owed[uuid] = true
}

// tell tells every pod with a container on the device.
func (m *Mode) tell(uuid, reason, format string, args ...any) {
	all, _ := m.node.Containers()
	for _, c := range all {
		if slices.ContainsFunc(c.Grants, onDevice(uuid)) {
			m.node.Warn(c, reason, fmt.Sprintf(format, args...))
		}
	}
}

// verify reads back that the container's slice is held as it was set, and that
// its server and its first process share memory. The runtime waits.
func (m *Mode) verify(of mode.Container, g ledger.Grant, first uint32) error {
	end := time.Now().Add(m.haste)
	// One whose limits are just set once more is not ready for some milliseconds.
	s, _ := m.server(g.UUID)
	space, held := s.space(of, limitsOf(g))
	for ; !held; space, held = s.space(of, limitsOf(g)) {
		if time.Now().After(end) {
			return errors.New("its MPS server is not ready any more; it is tried again")
		}
		time.Sleep(startLook)
		s, _ = m.server(g.UUID)
	}
	select {
	case m.setting <- struct{}{}:
		defer func() { <-m.setting }()
	case <-time.After(time.Until(end)):
		return errors.New("an MPS control daemon is slow to answer; it is tried again")
	}
	c, err := m.control(g.UUID, m.haste)
	if err != nil {
		return err
	}
	pid, status, err := c.look()
	if err == nil && (pid != s.pid || status != active) {
		err = fmt.Errorf("its MPS server is in state %s; it is tried again", status)
	}
	if err == nil {
		err = c.confirm(pid, spaces{space: s.spaces[space]})
	}
	if err == nil {
		err = m.exclusive(g.UUID)
	}
	all, bad := m.daemons()
	err = errors.Join(err, bad)
	for _, process := range []int{pid, int(first)} {
		if err == nil {
			err = common(all, m.files.folder(g.UUID), process)
		}
	}
	return err
}

func onDevice(uuid string) func(ledger.Grant) bool {
	return func(g ledger.Grant) bool { return g.UUID == uuid }
}
