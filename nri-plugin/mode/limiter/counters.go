// SPDX-License-Identifier: Apache-2.0

package limiter

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/nri-plugin/mode"
	"vernier.dev/vernier/vgpu-limiter/layout"
	"vernier.dev/vernier/vgpu-limiter/pace"
)

// The counters are the one file of ours that tenants write. Each is alone on a tmpfs of its
// size: what a tenant writes into it takes none of the node's disk, is never more than the
// layout, and is charged to the memory of the container that first touches it. Nobody
// reaches the file system's root: the file is bound to its name in the run's folder, and
// the file system's own mount is gone again before the container is created.

// mountCounters makes the counters of a run that uses n devices.
func (d folder) mountCounters(n int) error {
	at := d.scratch()
	err := os.WriteFile(d.counters(), nil, 0o444) // what the file is bound to
	if err == nil {
		err = os.Mkdir(at, 0o700)
	}
	if err != nil {
		return err
	}
	flags := uintptr(unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC)
	err = unix.Mount("vernier-counters", at, "tmpfs", flags, "mode=0700,nr_inodes=3,size="+strconv.Itoa(layout.CountersBytes))
	if errors.Is(err, unix.EPERM) && os.Geteuid() != 0 {
		// Only in tests: the agent is root, or it could do nothing of what it is for.
		return errors.Join(os.Remove(at), layout.CreateCounters(d.counters(), n))
	}
	if err != nil {
		return fmt.Errorf("mounting a tmpfs on %s: %w", at, err)
	}
	file := filepath.Join(at, "counters")
	if err = layout.CreateSparseCounters(file, n); err == nil {
		if err = unix.Mount(file, d.counters(), "", unix.MS_BIND, ""); err != nil {
			err = fmt.Errorf("binding the counters to %s: %w", d.counters(), err)
		}
	}
	return errors.Join(err, unmount(at), os.Remove(at))
}

// scratch is where the run's tmpfs is mounted while it is made.
func (d folder) scratch() string { return string(d) + "/.counters" }

// remove removes a run's folder. A container that still has the counters keeps them.
func (d folder) remove() error {
	return errors.Join(unmount(d.scratch()), unmount(d.counters()), os.RemoveAll(string(d)))
}

// unmount ends every mount on a path, if there is one.
func unmount(path string) error {
	for {
		switch err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); {
		case err == nil:
		case errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOENT), errors.Is(err, unix.EPERM) && os.Geteuid() != 0:
			return nil // nothing is mounted there
		default:
			return fmt.Errorf("unmounting %s: %w", path, err)
		}
	}
}

// Usage reads the counters of the container's run. Figures that cannot be are an error.
func (l *Limiter) Usage(c mode.Container) (*layout.Usage, error) {
	dir, err := l.folder(c)
	if err != nil {
		return nil, err
	}
	usage, err := layout.ReadUsage(dir.counters())
	if err != nil {
		return nil, err
	}
	limits, peaks := make([]uint64, len(c.Grants)), make([]uint64, len(c.Grants))
	for i, g := range c.Grants {
		limits[i], peaks[i] = g.Mem.Bytes(), g.Mem.Bytes()
	}
	if p, err := layout.OpenPace(dir.pace(), len(c.Grants)); err == nil {
		for i := range c.Grants {
			if inForce, resized := p.Resized(i); resized { // by then the ledger may have others
				limits[i], peaks[i] = max(limits[i], inForce), layout.MaxMemoryBytes
			}
		}
		_ = p.Close()
	}
	if err := usage.Check(limits, peaks, pace.Now()); err != nil {
		return nil, err
	}
	return &usage, nil
}
