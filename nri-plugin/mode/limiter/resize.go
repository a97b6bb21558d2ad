// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"errors"
	"fmt"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// Resize puts other amounts of one device in force in a running container, whose first process is
// pid. The driver's limit is raised before the library's and lowered after it. A core of 0 is
// that of the container's start.
//
// It wraps *layout.InfeasibleError and layout.ErrOlderLibrary; with these nothing has
// changed. A container without files returns fs.ErrNotExist. After a crash, or another error, the
// caller repeats the call. Calls are made one after the other.
func (l *Limiter) Resize(c mode.Container, pid uint32, uuid string, core v1alpha1.Percent, mem v1alpha1.MiB) error {
	dir, err := l.folder(c)
	if err != nil {
		return err
	}
	was, err := layout.InForce(dir.limits(), dir.pace())
	if err != nil {
		return fmt.Errorf("%w: %w", layout.ErrOlderLibrary, err)
	}
	before := v1alpha1.MiB(0)
	for _, d := range was.Devices {
		if d.UUID == uuid {
			before = v1alpha1.MiB(d.MemoryBytes >> 20)
		}
	}
	if mem > before {
		if err := l.driver.Change(c, pid, uuid, mem); err != nil {
			return err
		}
	}
	// The library's files may be made for the next run at the same time, but no others resize.
	err = layout.Resize(dir.limits(), dir.counters(), dir.pace(), layout.DeviceLimit{UUID: uuid, Core: uint32(core), MemoryBytes: mem.Bytes()})
	if err != nil {
		if mem > before {
			err = errors.Join(err, l.driver.Change(c, pid, uuid, before))
		}
		return fmt.Errorf("resizing container %s of pod %s: %w", c.Name, c.Owner, err)
	}
	if mem < before {
		return l.driver.Change(c, pid, uuid, mem)
	}
	return nil
}

// Lendable is what decides how much of a running container's memory may be lent, of each of its devices.
func (l *Limiter) Lendable(c mode.Container) ([]layout.Lendable, error) {
	dir, err := l.folder(c)
	if err != nil {
		return nil, err
	}
	return layout.ReadLendable(dir.limits(), dir.counters(), dir.pace())
}

// SetReady puts in force what of a running container's memory of a device is not lent; 0 is all. The
// driver's limit stays: it holds the container to what it was promised. Errors are layout.SetReady's.
func (l *Limiter) SetReady(c mode.Container, uuid string, ready v1alpha1.MiB) error {
	dir, err := l.folder(c)
	if err != nil {
		return err
	}
	return layout.SetReady(dir.limits(), dir.counters(), dir.pace(), uuid, ready.Bytes())
}
