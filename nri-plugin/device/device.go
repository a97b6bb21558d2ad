// SPDX-License-Identifier: Apache-2.0

// Package device owns what the node agent knows of the GPUs: the interface to NVML, the latest
// picture of the devices and its update loop.
//
// It never links NVML (package inventory does, with cgo), never talks to the API
// server and never decides who gets a device.
package device

import (
	"errors"
	"slices"
	"time"

	"vernier.dev/vernier/api/v1alpha1"
)

// ErrUnsupported is wrapped when the driver or the device lacks what was asked
// for; the caller falls back and says so.
var ErrUnsupported = errors.New("not supported by the driver")

// ErrReplaced is wrapped when the driver, or a device, is another one than the
// library was loaded for. Only a process that loads the library again sees what is
// there now: this one has to end.
var ErrReplaced = errors.New("the agent restarts to load NVML again; running containers are not touched")

// ErrMismatch is wrapped when the library is of another version than the kernel
// module that is loaded.
var ErrMismatch = errors.New("the driver was upgraded and its old kernel module is still loaded: drain the node and reload the module, or reboot")

// Library is NVML, as much of it as the agent uses.
type Library interface {
	// Scan looks at the driver and every device. It may take seconds under load.
	Scan() (Snapshot, error)
	// Memory is the device's total memory, asked of the driver now: one call on
	// a cached handle, fit for the path of a container's creation. An error
	// means that the device does not answer.
	Memory(uuid string) (v1alpha1.MiB, error)
	// SetMemoryLimit holds all processes of the cgroup (a directory of the v2
	// hierarchy) to that much memory of the device.
	SetMemoryLimit(uuid, cgroup string, limit v1alpha1.MiB) error
	// MemoryLimit reads that limit back; 0 is no limit.
	MemoryLimit(uuid, cgroup string) (v1alpha1.MiB, error)
	// Processes are the PIDs, in our own PID namespace, of those that have a
	// context on the device, sorted.
	Processes(uuid string) ([]int, error)
	// Utilization is the percent of NVML's last sample period in which each process
	// worked on the device, by its PID in our own PID namespace. It returns the time stamp to
	// ask with the next time, too.
	Utilization(uuid string, since uint64) (busy map[int]int, last uint64, err error)
	// Use is how much of the device is in use, by all processes.
	Use(uuid string) (Use, error)
	// Activity is what the device did since it was asked the time before; nothing is known
	// the first time. It may take some milliseconds.
	Activity(uuid string) (Activity, error)
	// Instances are what MIG has cut the device into, asked of the driver now.
	Instances(uuid string) ([]v1alpha1.MIGInstance, error)
	// CreateInstance makes an instance that is there whole afterwards, or finishes
	// one that was begun. It may take a second.
	CreateInstance(uuid string, at v1alpha1.MIGPlace) error
	// DestroyInstance destroys one; that it is not there is no error.
	DestroyInstance(uuid string, at v1alpha1.MIGPlace) error
	// EnableMIG puts a device into MIG mode at once, or leaves nothing changed.
	// It does not switch a device that takes a reset for it, or is in use.
	EnableMIG(uuid string) error
	// ComputeMode says who may have contexts on the device.
	ComputeMode(uuid string) (ComputeMode, error)
	SetComputeMode(uuid string, mode ComputeMode) error
	// WaitEvent blocks until a device reports a critical event, at most for the
	// timeout, and reports whether one came. The next Scan shows its effect.
	WaitEvent(timeout time.Duration) bool
}

// Devices are the node's, and the latest picture of them. Watcher is what the agent has.
type Devices interface {
	Snapshot() (s Snapshot, scanned bool)
	Library() (Library, error)
	Refresh() error
}

// Use is how much of a device is in use.
type Use struct {
	MemoryBytes uint64
	// Busy is the percent of the driver's last sample period in which a kernel ran.
	Busy v1alpha1.Percent
}

// Figure is one figure of a device's activity, over all of its users.
type Figure int

const (
	// SMActive is the part of the multiprocessors that were busy, 0 to 1, on average.
	SMActive Figure = iota
	// SMOccupancy is the part of the warps that there can be that were there.
	SMOccupancy
	// DRAMActive is the part of the memory's bandwidth that was used.
	DRAMActive
	// Bytes per second, from the device's side.
	PCIeTransmit
	PCIeReceive
	NVLinkTransmit
	NVLinkReceive
)

// Activity has the figures that the device knows, and no others.
type Activity map[Figure]float64

// Snapshot is the driver and its devices at one time.
type Snapshot struct {
	Driver v1alpha1.DriverStatus
	// Devices in NVML's order.
	Devices []v1alpha1.DeviceStatus
	// Topology is which of them are near each other, nil where nothing is known of that.
	Topology *v1alpha1.TopologyStatus
	// Unseen says of which devices NVML counts but tells nothing, and why.
	Unseen []string
}

// Device finds a device by its UUID.
func (s *Snapshot) Device(uuid string) (v1alpha1.DeviceStatus, bool) {
	for i := range s.Devices {
		if s.Devices[i].UUID == uuid {
			return s.Devices[i], true
		}
	}
	return v1alpha1.DeviceStatus{}, false
}

// Usable are the devices of which slices may be given: healthy, and if MIG is on,
// known to be cut into what.
func (s *Snapshot) Usable() []v1alpha1.DeviceStatus {
	return slices.DeleteFunc(slices.Clone(s.Devices), func(d v1alpha1.DeviceStatus) bool {
		return !d.Healthy || d.MIG == v1alpha1.MIGEnabled && len(d.Profiles) == 0
	})
}

// ComputeMode says who may have contexts on a device, as NVML counts it.
type ComputeMode int32

// Modes that the agent looks for; there are others.
const (
	// ComputeDefault lets every process.
	ComputeDefault ComputeMode = 0
	// ComputeExclusiveProcess lets one process at a time: the MPS server, whose
	// clients count as it.
	ComputeExclusiveProcess ComputeMode = 3
)
