// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/nri-plugin/device"
)

// Fingerprint tells one file from another that took its place. The zero value is
// that of no file.
type Fingerprint struct {
	device, inode uint64
	size          int64
	changed       time.Time
}

// FingerprintOf is the file's that a path leads to.
func FingerprintOf(path string) Fingerprint {
	info, err := os.Stat(path)
	if err != nil {
		return Fingerprint{}
	}
	f := Fingerprint{size: info.Size(), changed: info.ModTime()}
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		f.device, f.inode = s.Dev, s.Ino
	}
	return f
}

// replaced reports whether the driver was upgraded or removed under us: the old
// library stays in this process, and goes on answering until the module is gone as
// well, but the files that containers are given are others now. Without a path the
// loader chose the file, and only the driver's own word tells.
func (inv *Inventory) replaced() error {
	if inv.library != "" && FingerprintOf(inv.library) != inv.loaded {
		return fmt.Errorf("the driver's library %s was replaced: %w", inv.library, device.ErrReplaced)
	}
	if _, r := inv.lib.DeviceGetCount(); r == nvml.ERROR_LIB_RM_VERSION_MISMATCH {
		return fmt.Errorf("the kernel module was replaced: %w: %w", r, device.ErrReplaced)
	}
	return nil
}

// swapped reports whether another device answers in the place of a known one.
func swapped(u *unit) error {
	if uuid, r := u.handle.GetUUID(); r == nvml.SUCCESS && uuid != u.fixed.UUID {
		return fmt.Errorf("device %s took the place of %s: %w", uuid, u.fixed.UUID, device.ErrReplaced)
	}
	return nil
}
