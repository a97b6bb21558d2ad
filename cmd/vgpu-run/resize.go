// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"vernier.dev/vernier/cmd/vgpu-run/internal/driver"
	"vernier.dev/vernier/cmd/vgpu-run/internal/options"
	"vernier.dev/vernier/cmd/vgpu-run/internal/session"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// resize changes the share of a command that runs, and prints what is in force.
func resize(o options.Resize) error {
	var to layout.DeviceLimit
	err := session.Resize(cmp.Or(o.RunDir, session.DefaultDir(os.Geteuid())), o.Session, func(inForce layout.Limits) (_ layout.DeviceLimit, err error) {
		to, err = resized(o, inForce)
		return to, err
	})
	if err != nil {
		return err
	}
	core := "no compute quota"
	if to.Core != 0 {
		core = fmt.Sprintf("core %d%%", to.Core)
	}
	fmt.Printf("%s: %s, memory %d MiB\n", to.UUID, core, to.MemoryBytes>>20)
	return nil
}

// resized is what the session is to have. The driver is asked only for more memory.
func resized(o options.Resize, inForce layout.Limits) (layout.DeviceLimit, error) {
	i := 0
	if o.Device != "" {
		i = slices.IndexFunc(inForce.Devices, func(d layout.DeviceLimit) bool { return d.UUID == o.Device })
	}
	if i < 0 || o.Device == "" && len(inForce.Devices) > 1 {
		var has []string
		for _, d := range inForce.Devices {
			has = append(has, d.UUID)
		}
		return layout.DeviceLimit{}, fmt.Errorf("--device: name one of the command's devices: %v", has)
	}
	to := inForce.Devices[i]
	to.Core = cmp.Or(uint32(o.Core), to.Core)
	bytes := uint64(o.Mem.Bytes())
	if bytes > to.MemoryBytes {
		self, err := os.Executable()
		if err != nil {
			return to, err
		}
		found, err := driver.Devices(exec.Command(self, askDriver))
		if err != nil {
			return to, fmt.Errorf("%w%s", err, causes())
		}
		real, err := pick(found, options.Device{Name: to.UUID})
		if err != nil {
			return to, err
		}
		if bytes > real.MemoryBytes {
			return to, fmt.Errorf("--mem-mib %d: device %s has %d MiB; ask for at most that", o.Mem, to.UUID, real.MemoryBytes>>20)
		}
	}
	to.MemoryBytes = cmp.Or(bytes, to.MemoryBytes)
	return to, nil
}
