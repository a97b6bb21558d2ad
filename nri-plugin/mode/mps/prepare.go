// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

// startLook is the pause between two looks for a daemon or a server. Both answer within
// milliseconds as a rule; what takes longer than our patience is looked at again some
// seconds later, for other devices wait.
const startLook = 20 * time.Millisecond

// serverUID is whose a server is: in multi-user mode root's serves everybody.
const serverUID = 0

// Prepare has a server ready for the container's slice.
func (m *Mode) Prepare(c mode.Container) error {
	g, err := only(c)
	if err != nil {
		return err
	}
	m.mu.Lock()
	began, err := m.bring(g.UUID)
	m.mu.Unlock()
	if began {
		err = errors.Join(err, m.node.Devices.Refresh())
	}
	return err
}

// bring brings one device in line with its slices; began reports whether it was not
// ours before. m.mu is held.
func (m *Mode) bring(uuid string) (began bool, err error) {
	all, _ := m.wanted()
	slices, wanted := all[uuid]
	if !wanted {
		return false, nil // the slice is gone again
	}
	c, err := m.control(uuid, m.patience)
	if err != nil {
		return false, err
	}
	if has, ready := m.server(uuid); ready && maps.Equal(has.spaces, c.needs(slices)) {
		return false, nil
	}
	_, before := m.files.state(uuid)
	if err := m.ensure(uuid, c, slices); err != nil {
		return !before, fmt.Errorf("the MPS server of device %s: %w", uuid, err)
	}
	return !before, nil
}

// ensure has a daemon on the device, with one server, and both hold clients to the
// limits of the slices. What is there of an earlier agent's is used. m.mu is held.
func (m *Mode) ensure(uuid string, c control, slices spaces) error {
	_, before := m.files.state(uuid)
	pid, _, err := c.look()
	if err == nil {
		err = m.shares(uuid)
	}
	if err != nil {
		if c, err = m.start(uuid); err != nil {
			m.unset(uuid)
			return err
		}
		pid = 0
	} else if err := m.exclude(uuid); err != nil {
		m.unset(uuid)
		return err
	}
	if pid == 0 && !m.warned[uuid] {
		// It went while nobody looked, as while there was no agent.
		if _, known := m.node.Containers(); known {
			m.tell(uuid, ReasonLost, ended, uuid)
		} else if before {
			m.owe(uuid)
		}
		m.warned[uuid] = true
	}
	pid, status, err := m.serve(c, pid)
	if err != nil {
		m.unset(uuid)
		return err
	}
	delete(m.warned, uuid)
	if status == faulty {
		// Look replaces it. Until then it holds nobody.
		m.set(uuid, server{pid: pid})
		return nil
	}
	m.setting <- struct{}{}
	defer func() { <-m.setting }()
	held, err := c.hold(pid, c.needs(slices))
	for space := range held {
		if bad := m.files.show(uuid, space); bad != nil {
			delete(held, space)
			err = errors.Join(err, bad)
		}
	}
	m.set(uuid, server{pid, held})
	return errors.Join(err, m.sweep(uuid, c, held))
}

// sweep removes what no slice has. m.setting is held.
func (m *Mode) sweep(uuid string, c control, want spaces) error {
	left, err := c.sweep(want)
	if err != nil {
		return err
	}
	return m.files.removeStale(uuid, want, left)
}

// start takes the device over and starts its daemon, in the newest protocol that it
// speaks. m.mu is held.
func (m *Mode) start(uuid string) (control, error) {
	c, err := m.daemons()
	if err != nil {
		return nil, err
	}
	dir := m.files.folder(uuid)
	if err := m.clear(uuid, c, dir); err != nil {
		return nil, err
	}
	driver := m.branch()
	if s, _ := m.files.state(uuid); s.Protocol != driver.protocol() {
		s.Protocol = driver.protocol()
		if err := m.files.write(s); err != nil {
			return nil, err
		}
	}
	if err := m.mount(uuid, c, dir); err != nil {
		return nil, err
	}
	if err := c.Start(dir, uuid, driver); err != nil {
		return nil, fmt.Errorf("starting nvidia-cuda-mps-control: %w", err)
	}
	speaks, err := m.control(uuid, m.patience)
	if err != nil {
		return nil, err
	}
	return speaks, m.await("nvidia-cuda-mps-control to answer", func() (bool, error) {
		_, _, err := speaks.look()
		return err == nil, nil
	})
}

// mount has the memory that the daemon shares with its clients. Containers that live
// longer than a daemon have what they were given, so the next one takes that over; where
// there are none it begins empty.
func (m *Mode) mount(uuid string, c Daemons, dir string) error {
	all, known := m.node.Containers()
	had := slices.ContainsFunc(all, func(of mode.Container) bool { return slices.ContainsFunc(of.Grants, onDevice(uuid)) })
	if known && !had {
		if err := c.Unmount(dir); err != nil {
			return err
		}
	}
	now, _ := m.node.Devices.Snapshot()
	return c.Mount(dir, memoryPercent(len(now.Devices)))
}

// shares is an error unless the device's daemon has the memory that containers are given;
// its servers have what it has.
func (m *Mode) shares(uuid string) error {
	c, err := m.daemons()
	if err != nil {
		return err
	}
	dir := m.files.folder(uuid)
	all, err := c.Processes(dir)
	for _, p := range all {
		if err == nil && !p.Server {
			err = common(c, dir, p.PID)
		}
	}
	return err
}

// common is an error unless the process has the folder's memory.
func common(c Daemons, dir string, pid int) error {
	is, err := c.Shares(dir, pid)
	if err == nil && !is {
		err = fmt.Errorf("process %d has another %s than %s. See that the agent's state directory passes mounts on to the node (mountPropagation: Bidirectional), and that nobody unmounts there", pid, SharedMemory, shared(dir))
	}
	return err
}

// clear ends a daemon that does not answer, or that shares no memory with containers, and
// takes the device over.
func (m *Mode) clear(uuid string, c Daemons, dir string) error {
	left, err := c.Processes(dir)
	if err != nil {
		return err
	}
	if daemons := slices.DeleteFunc(slices.Clone(left), func(p Process) bool { return p.Server }); len(daemons) > 0 {
		if err := c.End(daemons); err != nil {
			return err
		}
	}
	if servers := slices.DeleteFunc(left, func(p Process) bool { return !p.Server }); len(servers) > 0 {
		return fmt.Errorf("its control daemon is gone, and server %d goes on for the clients that it has; another is started when they have ended", servers[0].PID)
	}
	if err := m.alone(uuid); err != nil {
		return err
	}
	return m.exclude(uuid)
}

// alone reports whether nobody uses the device in another way: it changes its mode when
// it is empty.
func (m *Mode) alone(uuid string) error {
	all, known := m.node.Containers()
	if !known {
		return errors.New("the container runtime is out of sight, so what runs on the device is not known; it is tried again")
	}
	for _, c := range all {
		for _, g := range c.Grants {
			if g.UUID == uuid && g.Mode != v1alpha1.ModeMPS {
				return fmt.Errorf("container %s of pod %s has a slice of it in mode %s, and a device changes its mode when it is empty", c.Name, c.Owner, g.Mode)
			}
		}
	}
	library, err := m.node.Devices.Library()
	if err != nil {
		return err
	}
	pids, err := library.Processes(uuid)
	if err != nil {
		return err
	}
	if len(pids) > 0 {
		return fmt.Errorf("processes %v use the device without it; it is tried again when they have ended", pids)
	}
	return nil
}

// exclude keeps everything but the server and its clients off the device, and reads
// that back. What the device was is written down before.
func (m *Mode) exclude(uuid string) error {
	library, err := m.node.Devices.Library()
	if err != nil {
		return err
	}
	was, err := library.ComputeMode(uuid)
	if err == nil {
		err = m.files.enter(state{UUID: uuid, Mode: was})
	}
	if err != nil || was == device.ComputeExclusiveProcess {
		return err
	}
	if err := library.SetComputeMode(uuid, device.ComputeExclusiveProcess); err != nil {
		return fmt.Errorf("setting its compute mode to EXCLUSIVE_PROCESS: %w", err)
	}
	return m.exclusive(uuid)
}

// exclusive reads back that nothing but the server and its clients can have a context.
func (m *Mode) exclusive(uuid string) error {
	library, err := m.node.Devices.Library()
	if err != nil {
		return err
	}
	now, err := library.ComputeMode(uuid)
	if err == nil && now != device.ComputeExclusiveProcess {
		err = errors.New("its compute mode was set to EXCLUSIVE_PROCESS and is not; see that nothing else sets it on the node")
	}
	return err
}

// serve has a server, and waits until it takes clients or has had a fault.
func (m *Mode) serve(c control, found int) (pid int, status string, err error) {
	said := ""
	if found == 0 {
		// One that was deleted is no longer listed, and has its name until its process has ended.
		if m.await("its server to be begun", func() (bool, error) { said, err = c.begin(); return err == nil, nil }) != nil {
			return 0, "", err
		}
	}
	err = m.await("its server to be active", func() (bool, error) {
		pid, status, err = c.look()
		return pid != 0 && (status == active || status == faulty), err
	})
	if err != nil {
		err = fmt.Errorf("%w; the control daemon said %q; see its log below the agent's state directory", err, said)
	}
	return pid, status, err
}

// await looks until it is so.
func (m *Mode) await(what string, is func() (bool, error)) error {
	for end := time.Now().Add(m.patience); ; time.Sleep(startLook) {
		if so, err := is(); so || err != nil {
			return err
		}
		if time.Now().After(end) {
			return fmt.Errorf("waited %s for %s", m.patience, what)
		}
	}
}

// Settle brings daemons and slices together, to be called after every change of
// either: a device without slices is given back as it was.
func (m *Mode) Settle() error {
	changed, err := m.settle()
	if changed {
		err = errors.Join(err, m.node.Devices.Refresh())
	}
	return err
}

func (m *Mode) settle() (changed bool, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	wanted, known := m.wanted()
	ours, err := m.files.all()
	failed := []error{err}
	for _, s := range ours {
		if _, is := wanted[s.UUID]; is {
			_, err := m.bring(s.UUID)
			failed = append(failed, err)
		} else if known {
			changed = true
			failed = append(failed, m.giveBack(s))
		}
	}
	if known {
		ids := map[string]bool{}
		all, _ := m.node.Containers()
		for _, c := range all {
			ids[c.ID] = true
		}
		failed = append(failed, m.files.keep(ids))
	}
	return changed, errors.Join(failed...)
}

// giveBack ends a device's daemon and makes the device what it was. m.mu is held.
func (m *Mode) giveBack(s state) error {
	m.unset(s.UUID)
	delete(m.warned, s.UUID)
	c, err := m.daemons()
	if err != nil {
		return err
	}
	left, err := c.Processes(m.files.folder(s.UUID))
	if err == nil {
		err = c.End(left)
	}
	if err == nil {
		err = c.Unmount(m.files.folder(s.UUID))
	}
	if err != nil {
		return fmt.Errorf("ending the MPS daemon of device %s: %w", s.UUID, err)
	}
	library, err := m.node.Devices.Library()
	if err != nil {
		return err
	}
	if now, _ := m.node.Devices.Snapshot(); !has(now, s.UUID) {
		return m.files.remove(s.UUID) // the device itself is gone
	}
	if err := library.SetComputeMode(s.UUID, s.Mode); err != nil {
		return fmt.Errorf("putting back the compute mode of device %s: %w", s.UUID, err)
	}
	return m.files.remove(s.UUID)
}

func has(now device.Snapshot, uuid string) bool {
	_, found := now.Device(uuid)
	return found
}

// wanted are the limits of the slices in this mode, by device and by the container that
// has them. known is false while it is unknown of which containers the ledger has
// lost the slices.
func (m *Mode) wanted() (all map[string]spaces, known bool) {
	all = map[string]spaces{}
	add := func(of ledger.Key, grants []ledger.Grant) {
		for _, g := range grants {
			if g.Mode != v1alpha1.ModeMPS {
				continue
			}
			if all[g.UUID] == nil {
				all[g.UUID] = spaces{}
			}
			name := spaceOf(of)
			all[g.UUID][name] = all[g.UUID][name].most(limitsOf(g))
		}
	}
	containers, known := m.node.Containers()
	for _, c := range containers {
		add(c.Key(), c.Grants)
	}
	m.node.Index().Each(add)
	return all, known
}
