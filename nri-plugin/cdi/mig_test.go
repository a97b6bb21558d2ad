// SPDX-License-Identifier: Apache-2.0

package cdi

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/go-logr/logr"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/inventory"
	"vernier.dev/vernier/test/simgpu"
)

// Instances are in the spec under their own UUIDs, with their own nodes only. The
// toolkit reads mig-minors at its absolute place in /proc, so this runs itself
// again in a mount namespace where the simulated file lies there.
func TestInstances(t *testing.T) {
	if !simgpu.InMountNamespace(t) {
		return
	}
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}, {Model: simgpu.A100, MIG: true}}})
	root := filepath.Join(t.TempDir(), "driver")
	if err := s.DriverRoot(root, true); err != nil {
		t.Fatal(err)
	}
	inv, lib, err := inventory.Open(inventory.Options{Library: s.NVML()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { lib.Shutdown() })
	now, err := inv.Scan()
	if err != nil {
		t.Fatal(err)
	}
	cut := now.Devices[1].UUID
	for _, at := range []v1alpha1.MIGPlace{{Profile: 19, Start: 6, Size: 1}, {Profile: 14, Start: 4, Size: 2}} {
		if err := inv.CreateInstance(cut, at); err != nil {
			t.Fatal(err)
		}
	}
	if now, err = inv.Scan(); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	w, err := New(lib, Options{Dir: dir, DriverRoot: root, HostDriverRoot: root, DevRoot: root, Log: logr.Discard()})
	if err != nil {
		t.Fatal(err)
	}

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

	if err := simgpu.MountProc(root); err != nil {
		t.Fatal(err)
	}
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
		if err := os.Remove(filepath.Join(root, path)); err != nil {
			t.Fatal(err)
		}
		break
	}
	w.Refine(&now)
	if d := now.Devices[1]; d.Healthy || !strings.Contains(d.Reason, "are missing; run nvidia-modprobe") {
		t.Errorf("without a node: %+v", d)
	}
}
