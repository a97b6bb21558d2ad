// SPDX-License-Identifier: Apache-2.0

// Package gpu checks what Vernier believes of NVIDIA's driver on a real one, with
// tag gpu: the inventory, the CDI spec, the memory limits that the driver says it
// has, and libvgpu.so in front of libcuda. Without the tag the same checks run on
// the simulated GPU, so that they are known to work when a real one is there.
//
// It changes nothing on the card: no limit is set, no mode switched, no device
// reset. It allocates some hundred MiB for a moment.
package gpu

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/go-logr/logr"
	"golang.org/x/sys/unix"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/cdi"
	"vernier.dev/vernier/nri-plugin/cgroup"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/nri-plugin/inventory"
	"vernier.dev/vernier/test/must"
)

// machine is where the driver is.
type machine struct {
	nvml       string // path of libnvidia-ml.so.1; empty leaves it to the loader
	driverRoot string // root of the driver's files
	devRoot    string // parent of the /dev with its nodes
	env        []string
}

// look opens NVML as the node agent does, and scans.
func look(t *testing.T) (machine, *inventory.Inventory, nvml.Interface, device.Snapshot) {
	t.Helper()
	m := find(t)
	_, noCgroups := cgroup.New("/proc")
	inv, lib, err := inventory.Open(inventory.Options{Library: m.nvml, CgroupV2: noCgroups})
	if err != nil {
		t.Fatalf("this machine has no NVIDIA GPU that can be used: %v", err)
	}
	t.Cleanup(func() { lib.Shutdown() })
	now := must.Get(inv.Scan())(t)
	if len(now.Devices) == 0 {
		t.Fatal("the driver is there and this machine has no NVIDIA GPU: run this on one that has")
	}
	return m, inv, lib, now
}

func TestInventory(t *testing.T) {
	m, inv, _, now := look(t)
	t.Logf("driver %s", text(t, now.Driver))
	if now.Driver.Version == "" || now.Driver.NVML == "" || now.Driver.CUDA == "" {
		t.Error("NVML does not tell the versions of driver, NVML and CUDA")
	}
	seen := map[string]bool{}
	for i, d := range now.Devices {
		t.Logf("device %s", text(t, d))
		if int(d.Index) != i || !strings.HasPrefix(d.UUID, "GPU-") || len(d.UUID) != 40 || seen[d.UUID] || d.Model == "" || d.PCI == "" {
			t.Errorf("device %d is not told apart from others: %+v", i, d)
		}
		seen[d.UUID] = true
		if !d.Healthy && d.Reason == "" {
			t.Errorf("device %d is ill without a reason", i)
		}
		const least, most = 1 << 10, 4 << 20
		if d.Mem < least || d.Mem > most {
			t.Errorf("device %d has %d MiB: want %d to %d", i, d.Mem, least, most)
		}
		if again, err := inv.Memory(d.UUID); err != nil || !near(again, d.Mem) {
			t.Errorf("device %d: %d MiB, asked again: %d, %v", i, d.Mem, again, err)
		}
		var st unix.Stat_t
		node := filepath.Join(m.devRoot, "dev", "nvidia"+strconv.Itoa(int(d.Minor)))
		switch err := unix.Stat(node, &st); {
		case err != nil:
			t.Errorf("device %d: %s: %v; run nvidia-modprobe or nvidia-smi", i, node, err)
		case st.Mode&unix.S_IFMT != unix.S_IFCHR || unix.Minor(st.Rdev) != uint32(d.Minor):
			t.Errorf("device %d: %s is not the device node of minor number %d", i, node, d.Minor)
		}
	}
}

func text(t *testing.T, v any) string {
	t.Helper()
	b := must.Get(json.Marshal(v))(t)
	return string(b)
}

// near allows for what the driver reserves now and then.
func near(a, b v1alpha1.MiB) bool { return max(a, b)-min(a, b) <= max(a, b)/50 }

func TestCDI(t *testing.T) {
	m, _, lib, now := look(t)
	dir := t.TempDir()
	w := must.Get(cdi.New(lib, cdi.Options{
		Dir: dir, DriverRoot: m.driverRoot, HostDriverRoot: m.driverRoot, DevRoot: m.devRoot,
		Hook: "/usr/bin/nvidia-cdi-hook", Log: logr.Discard(),
	}))(t)
	usable := len(now.Usable())
	w.Refine(&now)
	if refined := now.Usable(); len(refined) != usable {
		t.Errorf("%d of %d usable devices are described in full: %+v", len(refined), usable, now.Devices)
	}
	spec, err := ReadSpec(dir)
	if err != nil {
		t.Fatalf("no spec: %v", err)
	}
	must.Report(t, CheckSpec(spec, usable))
}

// What devices did between two looks is known where NVML's performance monitoring is, and
// possible.
func TestActivity(t *testing.T) {
	_, inv, _, now := look(t)
	known := 0
	for _, d := range now.Devices {
		_, err := inv.Activity(d.UUID)
		if errors.Is(err, device.ErrUnsupported) {
			t.Logf("device %s, %s: no performance monitoring", d.UUID, d.Model)
			continue
		}
		// The second look is worth something a second after the first.
		var activity device.Activity
		var took time.Duration
		for late := time.Now().Add(10 * time.Second); err == nil && activity == nil && time.Now().Before(late); {
			began := time.Now()
			activity, err = inv.Activity(d.UUID)
			took = time.Since(began)
		}
		if err != nil || activity == nil {
			t.Errorf("device %s: %v, %v", d.UUID, activity, err)
			continue
		}
		known++
		t.Logf("device %s, %s: read in %v", d.UUID, d.Model, took)
		for _, f := range []struct {
			figure device.Figure
			name   string
			most   float64
		}{
			{device.SMActive, "SM active", 1}, {device.SMOccupancy, "SM occupancy", 1}, {device.DRAMActive, "DRAM active", 1},
			{device.PCIeTransmit, "PCIe sent, bytes/s", 1e12}, {device.PCIeReceive, "PCIe received, bytes/s", 1e12},
			{device.NVLinkTransmit, "NVLink sent, bytes/s", 1e13}, {device.NVLinkReceive, "NVLink received, bytes/s", 1e13},
		} {
			value, is := activity[f.figure]
			t.Logf("device %s: %s: %g %t", d.UUID, f.name, value, is)
			if value < 0 || value > f.most {
				t.Errorf("device %s: %s: %g, want 0 to %g", d.UUID, f.name, value, f.most)
			}
		}
	}
	if known == 0 {
		t.Skip("no device of this machine has performance monitoring (GPM): it comes with Hopper, outside MIG mode")
	}
}

// firstWithLimits is the driver branch that brought memory limits by cgroup.
const firstWithLimits = 615

// What the driver says of memory limits fits its version; where it has them, one
// can be read. None is set.
func TestMemoryLimits(t *testing.T) {
	_, inv, _, now := look(t)
	branch, _, _ := strings.Cut(now.Driver.Version, ".")
	n, err := strconv.Atoi(branch)
	if err != nil {
		t.Fatalf("driver version %q", now.Driver.Version)
	}
	t.Logf("driver %s: memory limits %t %s", now.Driver.Version, now.Driver.MemoryLimits, now.Driver.MemoryLimitsReason)
	if !now.Driver.MemoryLimits {
		if now.Driver.MemoryLimitsReason == "" {
			t.Error("no reason is told")
		}
		_, noCgroups := cgroup.New("/proc")
		if n >= firstWithLimits && noCgroups == nil {
			t.Errorf("driver branch %d has memory limits and this node cgroup v2; we say: %s", n, now.Driver.MemoryLimitsReason)
		}
		return
	}
	if n < firstWithLimits {
		t.Errorf("driver branch %d has no memory limits; we say that it has", n)
	}
	own := ownCgroup(t)
	for _, d := range now.Usable() {
		limit, err := inv.MemoryLimit(d.UUID, own)
		t.Logf("device %s: limit of %s: %d MiB, %v", d.UUID, own, limit, err)
		if err != nil {
			t.Errorf("device %s: %v", d.UUID, err)
		}
	}
}

// ownCgroup is this process's directory in the v2 hierarchy.
func ownCgroup(t *testing.T) string {
	t.Helper()
	own := must.Get(os.ReadFile("/proc/self/cgroup"))(t)
	for _, mount := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(mount, "cgroup.controllers")); err != nil {
			continue
		}
		for _, line := range strings.Split(string(own), "\n") {
			if path, v2 := strings.CutPrefix(line, "0::"); v2 {
				return filepath.Join(mount, path)
			}
		}
	}
	t.Fatal("no cgroup v2 hierarchy is mounted below /sys/fs/cgroup")
	return ""
}
