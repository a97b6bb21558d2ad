// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/cmd/vgpu-run/internal/driver"
	"vernier.dev/vernier/cmd/vgpu-run/internal/options"
	"vernier.dev/vernier/vgpu-limiter/layout"
)

// limits are what the options allow. The driver is asked only for what they
// leave open: the indices' UUIDs, the whole memory, or which devices there are.
func limits(o options.Options) (layout.Limits, error) {
	l := layout.Limits{Container: "vgpu-run"}
	open := len(o.Devices) == 0
	for _, d := range o.Devices {
		_, isIndex := d.Index()
		open = open || isIndex || d.Mem == 0
	}
	var found []driver.Device
	if open {
		self, err := os.Executable()
		if err != nil {
			return l, err
		}
		if found, err = driver.Devices(exec.Command(self, askDriver)); err != nil {
			return l, fmt.Errorf("%w%s", err, causes())
		}
	}
	asked := o.Devices
	if len(asked) == 0 {
		for _, d := range found[:min(len(found), layout.MaxDevices)] {
			asked = append(asked, options.Device{Name: d.UUID, Share: o.Default})
		}
	}
	for _, d := range asked {
		limit := layout.DeviceLimit{UUID: d.Name, Core: uint32(d.Core), MayBurst: d.Burst, Idle: d.Idle, MemoryBytes: uint64(d.Mem.Bytes())}
		if open {
			real, err := pick(found, d)
			if err != nil {
				return l, err
			}
			limit.UUID = real.UUID
			switch {
			case limit.MemoryBytes == 0:
				limit.MemoryBytes = real.MemoryBytes
			case limit.MemoryBytes > real.MemoryBytes:
				return l, fmt.Errorf("--mem-mib %d: device %s has %d MiB; ask for at most that, or leave --mem-mib out for all of it", d.Mem, d.Name, real.MemoryBytes>>20)
			}
		}
		l.Devices = append(l.Devices, limit)
	}
	_, err := l.Encode() // a device named twice, by UUID and by index, is found here
	if err != nil {
		return l, fmt.Errorf("--device: %w", err)
	}
	return l, nil
}

// pick finds the device that is asked for among those that the driver shows.
func pick(found []driver.Device, asked options.Device) (driver.Device, error) {
	index, isIndex := asked.Index()
	for i, d := range found {
		if isIndex && i == index || strings.EqualFold(d.UUID, asked.Name) {
			return d, nil
		}
	}
	var shown strings.Builder
	for i, d := range found {
		fmt.Fprintf(&shown, "\n  %d  %s  %d MiB", i, d.UUID, d.MemoryBytes>>20)
	}
	return driver.Device{}, fmt.Errorf("--device %s: the driver doesn't show it; it shows%s%s", asked.Name, shown.String(), causes())
}

// causes names the settings that hide devices from CUDA, where they are set.
func causes() string {
	var all strings.Builder
	if v, set := os.LookupEnv("CUDA_VISIBLE_DEVICES"); set {
		fmt.Fprintf(&all, "\nCUDA_VISIBLE_DEVICES=%s hides all other devices: unset it, or count among those", v)
	}
	if kib := addressSpace(); kib != 0 {
		fmt.Fprintf(&all, "\nulimit -v is %d KiB, and the CUDA driver needs more address space than the GPUs have memory: ulimit -v unlimited", kib)
	}
	return all.String()
}

// addressSpace is the limit of a process's address space in KiB, as ulimit -v shows it; 0
// where there is none.
func addressSpace() uint64 {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_AS, &limit); err != nil || limit.Cur == unix.RLIM_INFINITY {
		return 0
	}
	return limit.Cur >> 10
}
