// SPDX-License-Identifier: Apache-2.0

// Package cdi owns the CDI spec of the node's GPUs: one file, in which every
// healthy device, or instance of MIG, is vernier.dev/gpu=<UUID>. The runtime reads it when we name a
// device in a container's adjustment; nobody else has a use for the names.
//
// It decides nothing: a device in the spec is given to no container by being
// there.
package cdi

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/lookup"
	"github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi"
	transformroot "github.com/NVIDIA/nvidia-container-toolkit/pkg/nvcdi/transform/root"
	"github.com/go-logr/logr"
	"tags.cncf.io/container-device-interface/specs-go"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/cdi/chain"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/vgpu-limiter/atomicfile"
)

// Options of New.
type Options struct {
	// Dir is where the runtime looks for specs.
	Dir string
	// DriverRoot is the root of the driver's files as this process sees it, and
	// HostDriverRoot as the runtime does.
	DriverRoot, HostDriverRoot string
	// DevRoot is the parent of the /dev that has the driver's nodes, the same
	// for both.
	DevRoot string
	// Hook is the runtime's path of vernier-cdi-hook, which makes the driver's
	// libraries known to the container's loader. Empty: the spec has no hooks,
	// and images must find the libraries without help.
	Hook string
	Log  logr.Logger
}

// Writer keeps the spec.
type Writer struct {
	options Options
	lib     nvcdi.Interface
}

// memoryLimitsHook would let a container set the driver's memory limit on itself
// by its environment, over ours.
const memoryLimitsHook = "apply-cuda-memory-limits"

// New makes a writer over an opened NVML.
func New(lib nvml.Interface, o Options) (*Writer, error) {
	namer, err := nvcdi.NewDeviceNamer(nvcdi.DeviceNameStrategyUUID)
	if err != nil {
		return nil, err
	}
	options := []nvcdi.Option{
		nvcdi.WithLogger(logger{o.Log}),
		nvcdi.WithNvmlLib(lib),
		nvcdi.WithMode(nvcdi.ModeNvml),
		nvcdi.WithDriverRoot(o.DriverRoot),
		nvcdi.WithDevRoot(o.DevRoot),
		nvcdi.WithDeviceNamers(namer),
		nvcdi.WithVendor(v1alpha1.CDIVendor),
		nvcdi.WithClass(v1alpha1.CDIClass),
		// The sandbox utilities change what is visible by rules of their own; the
		// sockets would put every container at an MPS server that happens to run.
		nvcdi.WithFeatureFlags(nvcdi.FeatureDisableNvsandboxUtils, nvcdi.FeatureDisableIPCDiscoverer),
		nvcdi.WithDisabledHooks(memoryLimitsHook),
	}
	if o.Hook == "" {
		options = append(options, nvcdi.WithDisabledHooks(nvcdi.AllHooks))
	} else {
		options = append(options, nvcdi.WithNVIDIACDIHookPath(o.Hook))
	}
	gen, err := nvcdi.New(options...)
	if err != nil {
		return nil, fmt.Errorf("setting up CDI: %w", err)
	}
	return &Writer{options: o, lib: gen}, nil
}

// Refine writes the spec for the usable devices of a snapshot, and marks those
// unhealthy that it could not describe in full. The generator leaves out what it
// does not find, and a container would start without its GPU.
func (w *Writer) Refine(s *device.Snapshot) {
	names := map[string][]string{} // device to what of it is in the spec
	var all []string
	for _, d := range s.Usable() {
		names[d.UUID] = named(&d)
		all = append(all, names[d.UUID]...)
	}
	if len(all) == 0 {
		return
	}
	spec, err := w.generate(all)
	if err == nil {
		err = w.save(spec)
	}
	if err != nil {
		w.failed(s, names, err)
		return
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		for _, name := range names[d.UUID] {
			if missing := lacks(spec, name, d); missing != "" {
				markUnhealthy(d, missing+"; run nvidia-modprobe or nvidia-smi on the node")
			}
		}
	}
}

// failed marks the devices of a spec that could not be made. Where instances are in
// it they are what is suspected first, and the other devices are tried without.
func (w *Writer) failed(s *device.Snapshot, names map[string][]string, err error) {
	cut := func(d v1alpha1.DeviceStatus) bool { return names[d.UUID] != nil && d.MIG == v1alpha1.MIGEnabled }
	some := slices.ContainsFunc(s.Devices, cut)
	for i := range s.Devices {
		if d := &s.Devices[i]; names[d.UUID] != nil && (!some || cut(*d)) {
			markUnhealthy(d, "no CDI spec: "+err.Error())
		}
	}
	if some {
		w.Refine(s)
	}
}

// named are the UUIDs of what can be given of a device: itself, or with MIG on the
// instances that it is cut into.
func named(d *v1alpha1.DeviceStatus) []string {
	if d.MIG != v1alpha1.MIGEnabled {
		return []string{d.UUID}
	}
	var uuids []string
	for _, i := range d.Instances {
		if i.UUID != "" {
			uuids = append(uuids, i.UUID)
		}
	}
	return uuids
}

// lacks says which of the driver's nodes the spec does not have for a name.
func lacks(spec *specs.Spec, name string, d *v1alpha1.DeviceStatus) string {
	paths := nodes(spec, name)
	if node := fmt.Sprintf("/dev/nvidia%d", d.Minor); !slices.Contains(paths, node) {
		return fmt.Sprintf("device node %s is missing", node)
	}
	caps := slices.DeleteFunc(paths, func(path string) bool { return !strings.HasPrefix(path, capabilities) })
	if name != d.UUID && len(caps) < 2 {
		return fmt.Sprintf("nodes of instance %s in %s are missing", name, capabilities)
	}
	return ""
}

// capabilities is where an instance has its two nodes: that of the GPU instance and
// that of the compute instance.
const capabilities = "/dev/nvidia-caps/"

func markUnhealthy(d *v1alpha1.DeviceStatus, reason string) { d.Healthy, d.Reason = false, reason }

func (w *Writer) generate(uuids []string) (*specs.Spec, error) {
	made, err := w.lib.GetSpec(uuids...)
	if err != nil {
		return nil, err
	}
	spec := made.Raw()
	spec.ContainerEdits.Hooks = chain.Join(spec.ContainerEdits.Hooks)
	if o := w.options; o.HostDriverRoot != o.DriverRoot {
		host := transformroot.New(transformroot.WithRoot(o.DriverRoot), transformroot.WithTargetRoot(o.HostDriverRoot))
		if err := host.Transform(spec); err != nil {
			return nil, fmt.Errorf("translating the driver's paths: %w", err)
		}
	}
	// The generator names its own version, which an older runtime may not read.
	spec.Version, err = specs.MinimumRequiredVersion(spec)
	return spec, err
}

// nodes are the paths of the driver's nodes that come with a name.
func nodes(spec *specs.Spec, name string) []string {
	var paths []string
	for _, d := range spec.Devices {
		if d.Name != name {
			continue
		}
		for _, node := range d.ContainerEdits.DeviceNodes {
			paths = append(paths, node.Path)
		}
	}
	return paths
}

// logger gives nvcdi's lines to ours; it reports every file that it looks for.
type logger struct{ logr.Logger }

func (l logger) Tracef(format string, args ...any)   { l.V(3).Info(fmt.Sprintf(format, args...)) }
func (l logger) Debugf(format string, args ...any)   { l.V(2).Info(fmt.Sprintf(format, args...)) }
func (l logger) Infof(format string, args ...any)    { l.V(2).Info(fmt.Sprintf(format, args...)) }
func (l logger) Warningf(format string, args ...any) { l.V(1).Info(fmt.Sprintf(format, args...)) }
func (l logger) Errorf(format string, args ...any)   { l.Logger.Info(fmt.Sprintf(format, args...)) }

// FindNVML looks for NVML below the root of the driver's files, in the way that
// its libraries are looked for when the spec is made. Empty: there is none, and
// the process's own loader may know better.
func FindNVML(driverRoot string) string {
	found, err := lookup.NewLibraryLocator(lookup.WithRoot(driverRoot)).Locate("libnvidia-ml.so.1")
	if err != nil || len(found) == 0 {
		return ""
	}
	return found[0]
}

// file is the spec's name: vendor and class, as the CDI library would name it.
const file = v1alpha1.CDIVendor + "-" + v1alpha1.CDIClass + ".json"

// save puts the spec into the directory, if it differs from what is there. The
// runtime reads the directory whenever it changes, so the file appears whole by
// a rename, under a name that is no spec's before.
func (w *Writer) save(spec *specs.Spec) error {
	text, err := json.MarshalIndent(spec, "", "  ")
	if err != nil {
		return err
	}
	path := filepath.Join(w.options.Dir, file)
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := os.MkdirAll(w.options.Dir, 0o755); err != nil {
		return fmt.Errorf("creating the CDI directory: %w", err)
	}
	if err := atomicfile.Write(path, bytes.NewReader(text), 0o644); err != nil {
		return fmt.Errorf("writing the CDI spec: %w", err)
	}
	return nil
}
