// SPDX-License-Identifier: Apache-2.0

package mode

import (
	"errors"
	"fmt"

	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/ledger"
)

// DriverLimit is the driver's own memory limit on a container's cgroup. It is no
// mode: it makes the memory side of one stronger, where driver, device and
// cgroups allow.
type DriverLimit struct {
	// Devices is the latest picture of the node.
	Devices interface {
		Snapshot() (device.Snapshot, bool)
		Library() (device.Library, error)
	}
	// Leaf finds a container's own cgroup; nil where the node has no cgroup v2.
	Leaf func(pid uint32, container string) (string, error)
}

// weaker marks an error that says why the limit is not available, which lowers
// the guarantee and fails nothing.
type weaker struct{ error }

// cgroup is the directory that limits are to be set on.
func (d *DriverLimit) cgroup(c Container, pid uint32) (string, error) {
	now, scanned := d.Devices.Snapshot()
	if !scanned {
		// Not known is not the same as not available.
		return "", errors.New("NVML has not answered yet; it is tried again")
	}
	if !now.Driver.MemoryLimits {
		return "", weaker{errors.New(now.Driver.MemoryLimitsReason)}
	}
	if d.Leaf == nil {
		return "", weaker{errors.New("the node has no cgroup v2 hierarchy")}
	}
	leaf, err := d.Leaf(pid, c.ID)
	if errors.Is(err, cgroup.ErrNone) {
		return "", weaker{err}
	}
	return leaf, err
}

// set holds the cgroup to the slice's memory and reads the limit back: what is
// reported as the driver's guarantee is what the driver says it holds.
func (d *DriverLimit) set(g ledger.Grant, cgroup string) error {
	library, err := d.Devices.Library()
	if err != nil {
		return err
	}
	err = library.SetMemoryLimit(g.UUID, cgroup, g.Mem)
	if errors.Is(err, device.ErrUnsupported) {
		return weaker{err}
	}
	if err != nil {
		return fmt.Errorf("the driver refuses the memory limit of %d MiB on device %s: %w; check nvidia-smi and the driver's log on the node", g.Mem, g.UUID, err)
	}
	return d.verify(g, cgroup)
}

// verify compares the limit that is in force with the slice.
func (d *DriverLimit) verify(g ledger.Grant, cgroup string) error {
	library, err := d.Devices.Library()
	if err != nil {
		return err
	}
	got, err := library.MemoryLimit(g.UUID, cgroup)
	if err != nil {
		return fmt.Errorf("reading the memory limit on device %s back: %w; check nvidia-smi and the driver's log on the node", g.UUID, err)
	}
	if got != g.Mem {
		return fmt.Errorf("the driver holds the container to %d MiB of device %s instead of %d MiB; check that nothing else sets memory limits on the node", got, g.UUID, g.Mem)
	}
	return nil
}
