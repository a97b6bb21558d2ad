// SPDX-License-Identifier: Apache-2.0

// Package driverlimit owns the driver's own memory limit on a container's cgroup.
// It is no mode: it makes the memory side of one stronger, where driver, device
// and cgroups allow. Elsewhere it says in the slice's status why they do not.
//
// It never starts a container that it does not know to be held or not.
package driverlimit

import (
	"errors"
	"fmt"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
	"vernier.dev/vernier/nri-plugin/mode"
)

// Limit sets limits and reads them back.
type Limit struct {
	// Devices is the latest picture of the node.
	Devices interface {
		Snapshot() (device.Snapshot, bool)
		Library() (device.Library, error)
	}
	// Leaf finds a container's own cgroup; nil where the node has no cgroup v2.
	Leaf func(pid uint32, container string) (string, error)
}

// unavailable marks an error that says why there can be no limit, which lowers the
// guarantee and fails nothing.
type unavailable struct{ error }

// Apply holds the container to its slices' memory, each on its own device, and
// reads the limits back. The statuses are in the order of the grants: what is held
// gets the driver's guarantee, what cannot be a note. An error fails the start.
func (d *Limit) Apply(c mode.Container, pid uint32, all []v1alpha1.SliceStatus) error {
	return d.each(c, pid, all, d.set)
}

// Observe does the same for a container that runs. It changes no limit that is in force,
// also one that another has set. Where there is none at all it sets it. The agent was away between
// the container's creation and its start, which the runtime then does not hold back.
func (d *Limit) Observe(c mode.Container, pid uint32, all []v1alpha1.SliceStatus) error {
	return d.each(c, pid, all, func(g ledger.Grant, cgroup string) error {
		got, err := d.read(g, cgroup)
		if err == nil && got == 0 {
			err = d.set(g, cgroup)
		} else if err == nil && g.Resize.Number == 0 {
			err = same(g, got)
		}
		if err != nil {
			return unavailable{err}
		}
		return nil
	})
}

// Change holds a running container to another amount of a device's memory, and reads the limit
// back. Without limits of the driver it does nothing.
func (d *Limit) Change(c mode.Container, pid uint32, uuid string, mem v1alpha1.MiB) error {
	cgroup, err := d.cgroup(c, pid)
	if err == nil {
		err = d.set(ledger.Grant{UUID: uuid, Mem: mem}, cgroup)
	}
	if errors.As(err, &unavailable{}) {
		return nil
	}
	return err
}

func (d *Limit) each(c mode.Container, pid uint32, all []v1alpha1.SliceStatus, hold func(ledger.Grant, string) error) error {
	cgroup, none := d.cgroup(c, pid)
	for i, g := range c.Grants {
		err := none
		if err == nil {
			err = hold(g, cgroup)
		}
		switch {
		case err == nil:
			all[i].Memory = v1alpha1.GuaranteeDriver
		case errors.As(err, &unavailable{}):
			mode.Note(&all[i], "no driver memory limit: "+err.Error())
		default:
			return err
		}
	}
	return nil
}

// cgroup is the directory that limits are to be set on.
func (d *Limit) cgroup(c mode.Container, pid uint32) (string, error) {
	now, scanned := d.Devices.Snapshot()
	if !scanned {
		// Not known is not the same as not available.
		return "", errors.New("NVML has not answered yet; it is tried again")
	}
	if !now.Driver.MemoryLimits {
		return "", unavailable{errors.New(now.Driver.MemoryLimitsReason)}
	}
	if d.Leaf == nil {
		return "", unavailable{errors.New("the node has no cgroup v2 hierarchy")}
	}
	leaf, err := d.Leaf(pid, c.ID)
	if errors.Is(err, cgroup.ErrNone) {
		return "", unavailable{err}
	}
	if err == nil {
		_, err = d.Devices.Library() // an NVML that does not answer now may do so again
	}
	return leaf, err
}

// set holds the cgroup to the slice's memory and reads the limit back: what is
// reported as the driver's guarantee is what the driver says it holds.
func (d *Limit) set(g ledger.Grant, cgroup string) error {
	library, err := d.Devices.Library()
	if err != nil {
		return err
	}
	err = library.SetMemoryLimit(g.UUID, cgroup, g.Mem)
	if errors.Is(err, device.ErrUnsupported) {
		return unavailable{err}
	}
	if err != nil {
		return fmt.Errorf("the driver refuses the memory limit of %d MiB on device %s: %w; check nvidia-smi and the driver's log on the node", g.Mem, g.UUID, err)
	}
	got, err := d.read(g, cgroup)
	if err != nil {
		return err
	}
	return same(g, got)
}

// read is the limit that is in force; 0 is none.
func (d *Limit) read(g ledger.Grant, cgroup string) (v1alpha1.MiB, error) {
	library, err := d.Devices.Library()
	if err != nil {
		return 0, err
	}
	got, err := library.MemoryLimit(g.UUID, cgroup)
	if err != nil {
		return 0, fmt.Errorf("reading the memory limit on device %s back: %w; check nvidia-smi and the driver's log on the node", g.UUID, err)
	}
	return got, nil
}

// same compares the limit that is in force with the slice.
func same(g ledger.Grant, got v1alpha1.MiB) error {
	if got != g.Mem {
		return fmt.Errorf("the driver holds the container to %d MiB of device %s instead of %d MiB; check that nothing else sets memory limits on the node", got, g.UUID, g.Mem)
	}
	return nil
}
