// SPDX-License-Identifier: Apache-2.0

// Package inventory owns the conversation with the real NVML, by go-nvml and
// cgo: it is device.Library. Handles are looked up once and kept, for a look-up
// can take seconds under load. Calls that older drivers lack are only made after
// their symbol was found: a missing symbol ends the process.
//
// It never writes to the API server or to a file, and it never shuts NVML down.
// A library that is closed under a running call takes the process with it.
package inventory

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/vgpu-limiter/utilization"
)

// Inventory is NVML, opened.
type Inventory struct {
	lib     nvml.Interface
	driver  v1alpha1.DriverStatus
	symbols map[string]bool
	events  nvml.EventSet
	now     func() time.Time

	// library is the file, and loaded what it was when it was loaded.
	library string
	loaded  Fingerprint

	mu    sync.Mutex
	count int     // of devices, by NVML
	units []*unit // those of them that have a UUID, in NVML's order
	// marks are the last critical events, by the UUID of the device or instance.
	marks map[string]mark

	gpm     sync.Mutex         // for windows, also while NVML answers
	windows map[string]*window // by UUID
}

var _ device.Library = (*Inventory)(nil)

// unit is one device: its handle, and what of it never changes.
type unit struct {
	handle nvml.Device
	fixed  v1alpha1.DeviceStatus
	// profiles of MIG, once they were asked for.
	profiles []v1alpha1.MIGProfile
}

// Symbols that are younger than the oldest driver that NVIDIA supports.
const (
	symbolSetLimits = "nvmlDeviceSetMemoryLimits_v1"
	symbolGetLimits = "nvmlDeviceGetMemoryLimits_v1"
	symbolMIG       = "nvmlDeviceGetMigMode"
	symbolAffinity  = "nvmlDeviceGetMemoryAffinity"
	symbolFields    = "nvmlDeviceGetFieldValues"
	symbolMemory    = "nvmlDeviceGetMemoryInfo_v2"
	symbolCompute   = "nvmlDeviceGetComputeRunningProcesses"
	symbolGraphics  = "nvmlDeviceGetGraphicsRunningProcesses"
	symbolMPS       = "nvmlDeviceGetMPSComputeRunningProcesses"
	symbolSetMIG    = "nvmlDeviceSetMigMode"
	symbolArch      = "nvmlDeviceGetArchitecture"
	// Of links and switches between devices.
	symbolAncestor   = "nvmlDeviceGetTopologyCommonAncestor"
	symbolP2P        = "nvmlDeviceGetP2PStatus"
	symbolLinkState  = "nvmlDeviceGetNvLinkState"
	symbolLinkRemote = "nvmlDeviceGetNvLinkRemotePciInfo_v2"
	symbolLinkType   = "nvmlDeviceGetNvLinkRemoteDeviceType"
	symbolFabric     = "nvmlDeviceGetGpuFabricInfo"
	symbolFabricV    = "nvmlDeviceGetGpuFabricInfoV"
	// With these the other calls about instances are there too.
	symbolPlacements = "nvmlDeviceGetGpuInstancePossiblePlacements_v2"
	symbolPlace      = "nvmlDeviceCreateGpuInstanceWithPlacement"
)

// Options of Open.
type Options struct {
	// Library is the path of libnvidia-ml.so.1; empty leaves it to the loader.
	Library string
	// CgroupV2 says why the node has no cgroup v2 hierarchy, nil when it has.
	CgroupV2 error
}

// Open loads NVML and asks it for what does not change while it is loaded. The
// interface that is returned along is for nvcdi.
func Open(o Options) (*Inventory, nvml.Interface, error) {
	var options []nvml.LibraryOption
	if o.Library != "" {
		options = append(options, nvml.WithLibraryPath(o.Library))
	}
	lib := nvml.New(options...)
	// Taken before it is loaded: a file that is replaced in between is noticed.
	loaded := FingerprintOf(o.Library)
	switch r := lib.Init(); r {
	case nvml.SUCCESS:
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return nil, nil, fmt.Errorf("loading NVML: %w: %w", r, device.ErrMismatch)
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return nil, nil, fmt.Errorf("loading NVML: %w: the driver's library is there, its kernel module is not loaded or its device nodes are not in sight. See that nvidia-smi works on the node", r)
	default:
		return nil, nil, fmt.Errorf("loading NVML: %w; see that the NVIDIA driver is installed and that --nvml-library and --driver-root name it", r)
	}
	inv := &Inventory{lib: lib, library: o.Library, loaded: loaded, symbols: map[string]bool{}, marks: map[string]mark{}, windows: map[string]*window{}, now: time.Now}
	for _, s := range []string{symbolSetLimits, symbolGetLimits, symbolMIG, symbolAffinity, symbolFields, symbolMemory,
		symbolCompute, symbolGraphics, symbolMPS, symbolSetMIG, symbolArch, symbolPlacements, symbolPlace, utilization.Symbol,
		symbolAncestor, symbolP2P, symbolLinkState, symbolLinkRemote, symbolLinkType, symbolFabric, symbolFabricV,
		symbolGPMSupport, symbolGPMAlloc, symbolGPMSample, symbolGPMMetrics} {
		inv.symbols[s] = lib.Extensions().LookupSymbol(s) == nil
	}
	if err := inv.readDriver(o.CgroupV2); err != nil {
		return nil, nil, err
	}
	// Without events the scans alone see what happens, some seconds later.
	if set, r := lib.EventSetCreate(); r == nvml.SUCCESS {
		inv.events = set
	}
	return inv, lib, nil
}

func (inv *Inventory) readDriver(cgroupV2 error) error {
	version, r := inv.lib.SystemGetDriverVersion()
	if r != nvml.SUCCESS {
		return fmt.Errorf("reading the driver's version: %w", r)
	}
	inv.driver.Version = version
	if v, r := inv.lib.SystemGetNVMLVersion(); r == nvml.SUCCESS {
		inv.driver.NVML = v
	}
	if v, r := inv.lib.SystemGetCudaDriverVersion(); r == nvml.SUCCESS {
		inv.driver.CUDA = fmt.Sprintf("%d.%d", v/1000, v%1000/10)
	}
	switch {
	case !inv.symbols[symbolSetLimits] || !inv.symbols[symbolGetLimits]:
		inv.driver.MemoryLimitsReason = fmt.Sprintf("driver %s has no memory limits; they come with R615", version)
	case cgroupV2 != nil:
		inv.driver.MemoryLimitsReason = cgroupV2.Error()
	default:
		inv.driver.MemoryLimits = true
	}
	return nil
}

// Memory asks the driver for the device's memory that programs can have.
func (inv *Inventory) Memory(uuid string) (v1alpha1.MiB, error) {
	u, err := inv.unit(uuid)
	if err != nil {
		return 0, err
	}
	memory, _, r := inv.memory(u.handle)
	if r != nvml.SUCCESS {
		return 0, r
	}
	return v1alpha1.MiBFromBytes(memory), nil
}

// memory is the device's memory in bytes, and what of it programs have, without what
// driver and firmware keep for themselves: shares of the whole would promise more than
// programs can have. A driver too old to tell the two apart (before branch 510) gives
// the whole.
func (inv *Inventory) memory(handle nvml.Device) (usable, used uint64, r nvml.Return) {
	if inv.symbols[symbolMemory] {
		if m, r := handle.GetMemoryInfo_v2(); r == nvml.SUCCESS && m.Reserved < m.Total {
			return m.Total - m.Reserved, m.Used, r
		}
	}
	m, r := handle.GetMemoryInfo()
	return m.Total, m.Used, r
}

// SetMemoryLimit sets the hard limit of a cgroup. The soft one stays 0: nothing
// is set aside for the container that others could not use.
func (inv *Inventory) SetMemoryLimit(uuid, cgroup string, limit v1alpha1.MiB) error {
	u, err := inv.limited(uuid)
	if err != nil {
		return err
	}
	return unsupported(u.handle.SetMemoryLimits_v1(cgroup, 0, limit.Bytes()))
}

// noLimit is NVML's way to say that there is none.
const noLimit = ^uint64(0)

// MemoryLimit reads the hard limit of a cgroup.
func (inv *Inventory) MemoryLimit(uuid, cgroup string) (v1alpha1.MiB, error) {
	u, err := inv.limited(uuid)
	if err != nil {
		return 0, err
	}
	limits, r := u.handle.GetMemoryLimits_v1(cgroup)
	if r == nvml.ERROR_NOT_FOUND {
		return 0, nil
	}
	if err := unsupported(r); err != nil {
		return 0, err
	}
	if limits.HardLimit == noLimit {
		return 0, nil
	}
	return v1alpha1.MiBFromBytes(limits.HardLimit), nil
}

func (inv *Inventory) limited(uuid string) (*unit, error) {
	if !inv.driver.MemoryLimits {
		return nil, fmt.Errorf("%w: %s", device.ErrUnsupported, inv.driver.MemoryLimitsReason)
	}
	return inv.unit(uuid)
}

func unsupported(r nvml.Return) error {
	switch r {
	case nvml.SUCCESS:
		return nil
	case nvml.ERROR_NOT_SUPPORTED:
		return device.ErrUnsupported
	}
	return r
}

var errUnknown = errors.New("not a device of this node")

// unit finds a device of the last scan.
func (inv *Inventory) unit(uuid string) (*unit, error) {
	inv.mu.Lock()
	defer inv.mu.Unlock()
	for _, u := range inv.units {
		if u.fixed.UUID == uuid {
			return u, nil
		}
	}
	return nil, errUnknown
}

// text is a C string in a fixed array.
func text(chars []int8) string {
	var s strings.Builder
	for _, c := range chars {
		if c == 0 {
			break
		}
		s.WriteByte(byte(c))
	}
	return s.String()
}

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
// loader chose the file, and only the driver's own word shows it.
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
