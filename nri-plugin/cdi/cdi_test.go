// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-logr/logr"
	"tags.cncf.io/container-device-interface/specs-go"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/inventory"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

// machine has two A100, one of them in MIG mode, and the driver's files at root.
func machine(t *testing.T) (s *simgpu.Sim, root string, lib nvml.Interface, now device.Snapshot) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("device nodes need root")
	}
	s = simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 2}, {Model: simgpu.A100, MIG: true}}})
	root = filepath.Join(t.TempDir(), "driver")
	must.Do(t, s.DriverRoot(root, false))
	inv, lib, err := inventory.Open(inventory.Options{Library: s.NVML()})
	must.Do(t, err)
	t.Cleanup(func() { lib.Shutdown() })
	if now, err = inv.Scan(); err != nil {
		t.Fatal(err)
	}
	return s, root, lib, now
}

func written(t *testing.T, dir string) (spec specs.Spec, text string) {
	t.Helper()
	b := must.Get(os.ReadFile(filepath.Join(dir, "vernier.dev-gpu.json")))(t)
	must.Do(t, json.Unmarshal(b, &spec))
	return spec, string(b)
}

func TestSpec(t *testing.T) {
	_, root, lib, now := machine(t)
	dir := filepath.Join(t.TempDir(), "cdi")
	w := must.Get(New(lib, Options{
		Dir: dir, DriverRoot: root, HostDriverRoot: "/run/nvidia/driver", DevRoot: root, Hook: "/opt/hook", Log: logr.Discard(),
	}))(t)
	w.Refine(&now)
	for _, d := range now.Devices {
		if !d.Healthy {
			t.Errorf("device %d: %s", d.Index, d.Reason)
		}
	}
	spec, text := written(t, dir)
	if spec.Kind != v1alpha1.CDIKind {
		t.Errorf("kind %s, want %s", spec.Kind, v1alpha1.CDIKind)
	}
	// Containerd 2.2 reads no spec above 1.0.0, and whatever is in ours is older.
	if spec.Version > "1.0.0" {
		t.Errorf("version %s", spec.Version)
	}
	var names []string
	for _, d := range spec.Devices {
		names = append(names, d.Name)
	}
	if want := []string{now.Devices[0].UUID, now.Devices[1].UUID}; !slices.Equal(names, want) {
		t.Errorf("devices %v, want %v: none in MIG mode", names, want)
	}
	if got := spec.Devices[1].ContainerEdits.DeviceNodes[0].Path; got != "/dev/nvidia1" {
		t.Errorf("node %s, want /dev/nvidia1", got)
	}
	if strings.Contains(text, root) {
		t.Error("the spec names the driver's root as we see it")
	}
	if !slices.ContainsFunc(spec.ContainerEdits.Mounts, func(m *specs.Mount) bool {
		return strings.HasPrefix(m.HostPath, "/run/nvidia/driver/") && strings.HasPrefix(filepath.Base(m.ContainerPath), "libcuda.so.")
	}) {
		t.Errorf("no mount of libcuda from the runtime's driver root: %s", text)
	}
	if !slices.Contains(spec.ContainerEdits.Env, v1alpha1.EnvVisibleDevices+"="+v1alpha1.EnvVisibleDevicesVoid) {
		t.Errorf("environment %v", spec.ContainerEdits.Env)
	}
	hooks := slices.Clone(spec.ContainerEdits.Hooks)
	for _, d := range spec.Devices {
		hooks = append(hooks, d.ContainerEdits.Hooks...)
	}
	if len(hooks) != 1 {
		t.Errorf("%d hooks, want one that runs all: %s", len(hooks), text)
	}
	for _, h := range hooks {
		if h.Path != "/opt/hook" || slices.Contains(h.Args, memoryLimitsHook) || !slices.Contains(h.Args, "update-ldcache") {
			t.Errorf("hook %s %v", h.Path, h.Args)
		}
	}
}

func TestSpecWithoutHooks(t *testing.T) {
	_, root, lib, now := machine(t)
	dir := t.TempDir()
	w := must.Get(New(lib, Options{Dir: dir, DriverRoot: root, HostDriverRoot: root, DevRoot: root, Log: logr.Discard()}))(t)
	w.Refine(&now)
	if _, text := written(t, dir); strings.Contains(text, `"hooks"`) {
		t.Errorf("hooks without a program to run them: %s", text)
	}
}

// A device without its node would give a container that has no GPU.
func TestMissingNodeIsIll(t *testing.T) {
	_, root, lib, now := machine(t)
	must.Do(t, os.Remove(filepath.Join(root, "dev", "nvidia1")))
	w := must.Get(New(lib, Options{Dir: t.TempDir(), DriverRoot: root, HostDriverRoot: root, DevRoot: root, Log: logr.Discard()}))(t)
	w.Refine(&now)
	if d := now.Devices[1]; d.Healthy || !strings.Contains(d.Reason, "/dev/nvidia1 is missing") {
		t.Errorf("device without node: %+v", d)
	}
	if d := now.Devices[0]; !d.Healthy {
		t.Errorf("its neighbour: %+v", d)
	}
}

// A spec that cannot be written makes every device unhealthy: nothing could be given.
func TestUnwritableIsIll(t *testing.T) {
	_, root, lib, now := machine(t)
	file := filepath.Join(t.TempDir(), "file")
	must.Do(t, os.WriteFile(file, nil, 0o600))
	w := must.Get(New(lib, Options{Dir: filepath.Join(file, "cdi"), DriverRoot: root, HostDriverRoot: root, DevRoot: root, Log: logr.Discard()}))(t)
	w.Refine(&now)
	if d := now.Devices[0]; d.Healthy || !strings.Contains(d.Reason, "CDI") {
		t.Errorf("%+v", d)
	}
}

func TestFindNVML(t *testing.T) {
	_, root, _, _ := machine(t)
	if got := FindNVML(root); !strings.HasPrefix(got, root) || !strings.Contains(got, "libnvidia-ml.so.") {
		t.Errorf("found %q below %s", got, root)
	}
	if got := FindNVML(t.TempDir()); got != "" {
		t.Errorf("found %q in an empty root", got)
	}
}

// The agent that starts under another driver writes its specs anew: none of the old
// driver's files, which are gone, is left in them. A process keeps the NVML that it has
// loaded, so the agent under the old driver is a process of its own.
func TestAnotherDriver(t *testing.T) {
	if root := os.Getenv("TEST_DRIVER_ROOT"); root != "" { // that process
		refine(t, root, os.Getenv("TEST_CDI_DIR"), os.Getenv("TEST_NVML"))
		return
	}
	if os.Geteuid() != 0 {
		t.Skip("device nodes need root")
	}
	root, dir := filepath.Join(t.TempDir(), "driver"), filepath.Join(t.TempDir(), "cdi")
	install := func(driver string) (library string) {
		s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}}, Driver: driver})
		must.Do(t, errors.Join(os.RemoveAll(root), s.DriverRoot(root, false)))
		return s.NVML()
	}
	names := func(driver, other string) {
		t.Helper()
		if _, text := written(t, dir); !strings.Contains(text, "libcuda.so."+driver) || strings.Contains(text, other) {
			t.Errorf("the spec under driver %s:\n%s", driver, text)
		}
	}
	agent := exec.Command(os.Args[0], "-test.run=^TestAnotherDriver$")
	library := install(simgpu.Driver535)
	agent.Env = append(os.Environ(), "TEST_DRIVER_ROOT="+root, "TEST_CDI_DIR="+dir, "TEST_NVML="+library)
	if out, err := agent.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	names(simgpu.Driver535, simgpu.DriverNewest)
	refine(t, root, dir, install(simgpu.DriverNewest))
	names(simgpu.DriverNewest, simgpu.Driver535)
}

// refine writes the spec as a new agent does.
func refine(t *testing.T, root, dir, library string) {
	t.Helper()
	inv, lib, err := inventory.Open(inventory.Options{Library: library})
	must.Do(t, err)
	t.Cleanup(func() { lib.Shutdown() })
	now := must.Get(inv.Scan())(t)
	w := must.Get(New(lib, Options{Dir: dir, DriverRoot: root, HostDriverRoot: root, DevRoot: root, Log: logr.Discard()}))(t)
	w.Refine(&now)
}

// Instances are in the spec under their own UUIDs, with their own nodes only. The
// toolkit reads mig-minors at its absolute place in /proc, so this runs itself
// again in a mount namespace where the simulated file lies there.
func TestInstances(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}, {Model: simgpu.A100, MIG: true}}})
	root := filepath.Join(t.TempDir(), "driver")
	must.Do(t, s.DriverRoot(root, true))
	inv, lib, err := inventory.Open(inventory.Options{Library: s.NVML()})
	must.Do(t, err)
	t.Cleanup(func() { lib.Shutdown() })
	now := must.Get(inv.Scan())(t)
	cut := now.Devices[1].UUID
	for _, at := range []v1alpha1.MIGPlace{{Profile: 19, Start: 6, Size: 1}, {Profile: 14, Start: 4, Size: 2}} {
		must.Do(t, inv.CreateInstance(cut, at))
	}
	if now, err = inv.Scan(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w := must.Get(New(lib, Options{Dir: dir, DriverRoot: root, HostDriverRoot: root, DevRoot: root, Log: logr.Discard()}))(t)

	// Without the file the driver's instances cannot be given; a whole device can.
	bare := now
	bare.Devices = slices.Clone(now.Devices)
	w.Refine(&bare)
	if d := bare.Devices[1]; d.Healthy || !strings.Contains(d.Reason, "CDI") {
		t.Errorf("without mig-minors: %+v", d)
	}
	if spec, _ := written(t, dir); len(spec.Devices) != 1 || spec.Devices[0].Name != now.Devices[0].UUID || !bare.Devices[0].Healthy {
		t.Errorf("the other device: %+v, %+v", spec.Devices, bare.Devices[0])
	}

	must.Do(t, simgpu.MountProc(root))
	w.Refine(&now)
	spec, _ := written(t, dir)
	seen := map[string]bool{}
	for _, d := range spec.Devices[1:] {
		paths := nodes(&spec, d.Name)
		if !strings.HasPrefix(d.Name, "MIG-") || len(paths) != 3 || paths[0] != "/dev/nvidia1" {
			t.Errorf("%s: %v", d.Name, paths)
		}
		for _, path := range paths[1:] {
			if seen[path] || !strings.HasPrefix(path, capabilities) {
				t.Errorf("%s has %s, another's too", d.Name, path)
			}
			seen[path] = true
		}
	}
	if len(spec.Devices) != 3 || !now.Devices[1].Healthy {
		t.Errorf("%d names, %+v", len(spec.Devices), now.Devices[1])
	}

	// An instance whose nodes are missing would be none in the container.
	for path := range seen {
		must.Do(t, os.Remove(filepath.Join(root, path)))
		break
	}
	w.Refine(&now)
	if d := now.Devices[1]; d.Healthy || !strings.Contains(d.Reason, "are missing; run nvidia-modprobe") {
		t.Errorf("without a node: %+v", d)
	}
}
