// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/test/must"
	"vernier.dev/vernier/test/simgpu"
)

func open(t *testing.T, s *simgpu.Sim, o Options) *Inventory {
	t.Helper()
	o.Library = s.NVML()
	inv, lib, err := Open(o)
	must.Do(t, err)
	t.Cleanup(func() { lib.Shutdown() })
	return inv
}

func scan(t *testing.T, inv *Inventory) device.Snapshot {
	t.Helper()
	return must.Get(inv.Scan())(t)
}

// event waits for a critical event.
func event(t *testing.T, inv *Inventory) {
	t.Helper()
	for late := time.Now().Add(90 * time.Second); time.Now().Before(late); {
		if inv.WaitEvent(time.Second) {
			return
		}
	}
	t.Fatal("no event came")
}

func TestScan(t *testing.T) {
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{
		{Model: simgpu.A100, NUMA: 1}, {Model: simgpu.H100, MIG: true}, {Model: simgpu.T4},
	}})
	inv := open(t, s, Options{})
	got := scan(t, inv)
	if got.Driver.Version != simgpu.DriverNewest || got.Driver.NVML == "" || !strings.HasPrefix(got.Driver.CUDA, "13.") {
		t.Errorf("driver %+v", got.Driver)
	}
	if len(got.Devices) != 3 {
		t.Fatalf("%d devices, want 3", len(got.Devices))
	}
	for i, want := range []struct {
		model string
		mib   v1alpha1.MiB
		numa  int32
		mig   v1alpha1.MIGState
	}{
		{"A100", 81920 - 607, 1, v1alpha1.MIGDisabled},
		{"H100", 81559 - 396, 0, v1alpha1.MIGEnabled},
		{"T4", 15360 - 449, 0, v1alpha1.MIGUnsupported},
	} {
		d := got.Devices[i]
		if !strings.Contains(d.Model, want.model) || d.NUMA == nil || *d.NUMA != want.numa || d.MIG != want.mig {
			t.Errorf("device %d: %+v, want %+v", i, d, want)
		}
		if d.Mem != want.mib {
			t.Errorf("device %d: %d MiB, want %d", i, d.Mem, want.mib)
		}
		if int(d.Index) != i || int(d.Minor) != i || !strings.HasPrefix(d.UUID, "GPU-") || !strings.HasSuffix(d.PCI, ":00.0") {
			t.Errorf("device %d: %+v", i, d)
		}
		if !d.Healthy || d.Reason != "" {
			t.Errorf("device %d is unhealthy: %s", i, d.Reason)
		}
		if mem, err := inv.Memory(d.UUID); err != nil || mem != want.mib {
			t.Errorf("device %d: asked again: %d MiB, %v", i, mem, err)
		}
	}
	if usable := got.Usable(); len(usable) != 3 {
		t.Errorf("%d usable devices, want 3", len(usable))
	}
	if _, err := inv.Memory("GPU-unknown"); err == nil {
		t.Error("an unknown device has memory")
	}
}

// Whether the driver can hold a container to its memory is found out without
// calling what an older one lacks, which would end the process.
func TestMemoryLimitsAvailable(t *testing.T) {
	cases := map[string]struct {
		driver    string
		cgroups   error
		available bool
		reason    string
	}{
		"newest":       {simgpu.DriverNewest, nil, true, ""},
		"older driver": {simgpu.Driver535, nil, false, "R615"},
		"no cgroup v2": {simgpu.DriverNewest, errors.New("the node has no cgroup v2 hierarchy"), false, "cgroup v2"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := simgpu.New(t, simgpu.Config{Driver: c.driver, GPUs: []simgpu.GPU{{Model: simgpu.A100}}})
			inv := open(t, s, Options{CgroupV2: c.cgroups})
			now := scan(t, inv)
			if now.Driver.MemoryLimits != c.available || !strings.Contains(now.Driver.MemoryLimitsReason, c.reason) {
				t.Errorf("driver %+v, want %t because of %q", now.Driver, c.available, c.reason)
			}
			if c.available {
				return
			}
			if err := inv.SetMemoryLimit(now.Devices[0].UUID, "/", 1); !errors.Is(err, device.ErrUnsupported) {
				t.Errorf("setting a limit: %v, want %v", err, device.ErrUnsupported)
			}
		})
	}
}

// A limit that was set is the one that is read back, on that cgroup and device.
func TestMemoryLimit(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("cgroups need root")
	}
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 2}}})
	inv := open(t, s, Options{})
	now := scan(t, inv)
	cgroup, other := newCgroup(t), newCgroup(t)
	uuid := now.Devices[0].UUID
	must.Do(t, inv.SetMemoryLimit(uuid, cgroup, 20480))
	for name, c := range map[string]struct {
		uuid, cgroup string
		want         v1alpha1.MiB
	}{
		"set":          {uuid, cgroup, 20480},
		"other cgroup": {uuid, other, 0},
		"other device": {now.Devices[1].UUID, cgroup, 0},
	} {
		if got, err := inv.MemoryLimit(c.uuid, c.cgroup); err != nil || got != c.want {
			t.Errorf("%s: %d MiB, %v; want %d", name, got, err, c.want)
		}
	}
	if err := inv.SetMemoryLimit(uuid, cgroup+"-missing", 1); err == nil || errors.Is(err, device.ErrUnsupported) {
		t.Errorf("a cgroup that is not there: %v", err)
	}
}

func newCgroup(t *testing.T) string {
	t.Helper()
	for _, mount := range []string{"/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		if _, err := os.Stat(filepath.Join(mount, "cgroup.procs")); err != nil {
			continue
		}
		// Not of a name that begins as those of a cluster of test/cluster: its end, beside
		// this, takes all of them away.
		dir := must.Get(os.MkdirTemp(mount, "inventory-test-"))(t)
		t.Cleanup(func() { os.Remove(dir) })
		return dir
	}
	t.Skip("the machine has no cgroup v2 hierarchy")
	return ""
}

// A lost device is unhealthy for as long as it is lost.
func TestLost(t *testing.T) {
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 2}}})
	inv := open(t, s, Options{})
	uuid := scan(t, inv).Devices[1].UUID
	must.Do(t, s.Lose(uuid))
	event(t, inv)
	now := scan(t, inv)
	if d, _ := now.Device(uuid); d.Healthy || !strings.Contains(d.Reason, "off the bus") {
		t.Errorf("lost: %+v", d)
	}
	if !now.Devices[0].Healthy {
		t.Errorf("its neighbour is unhealthy: %+v", now.Devices[0])
	}
	if _, err := inv.Memory(uuid); err == nil {
		t.Error("a lost device answers")
	}
	must.Do(t, s.Recover(uuid))
	now = scan(t, inv)
	if d, _ := now.Device(uuid); !d.Healthy {
		t.Errorf("recovered: %+v", d)
	}
}

// Critical events make a device unhealthy, and only that one; faults of a program
// don't.
func TestEvents(t *testing.T) {
	cases := map[string]struct {
		cause func(*simgpu.Sim, string) error
		says  string
	}{
		"Xid 48": {func(s *simgpu.Sim, d string) error { return s.Xid(d, 48) }, "Xid 48"},
		"ECC":    {func(s *simgpu.Sim, d string) error { return s.ECC(d, false, 1) }, "ECC"},
		"Xid 48 after a program's fault": {func(s *simgpu.Sim, d string) error {
			return errors.Join(s.Xid("0", 31), s.Xid(d, 48))
		}, "Xid 48"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 2}}})
			inv := open(t, s, Options{})
			uuid := scan(t, inv).Devices[1].UUID
			must.Do(t, c.cause(s, uuid))
			event(t, inv)
			now := scan(t, inv)
			if d, _ := now.Device(uuid); d.Healthy || !strings.Contains(d.Reason, c.says) {
				t.Errorf("%+v, want a reason with %q", d, c.says)
			}
			if !now.Devices[0].Healthy {
				t.Errorf("its neighbour is unhealthy: %+v", now.Devices[0])
			}
		})
	}
}

// Xids that NVIDIA calls faults of applications leave the device in service; its device
// plugin passes over the same ones.
func TestHarmlessXids(t *testing.T) {
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}}})
	inv := open(t, s, Options{})
	uuid := scan(t, inv).Devices[0].UUID
	for _, xid := range []int{13, 31, 43, 45, 68, 109} {
		must.Do(t, s.Xid(uuid, xid))
		if inv.WaitEvent(time.Second) {
			t.Errorf("Xid %d is taken for critical", xid)
		}
	}
	if d := scan(t, inv).Devices[0]; !d.Healthy {
		t.Errorf("%+v", d)
	}
	must.Do(t, s.Xid(uuid, 95))
	event(t, inv)
}

// A driver that knows recovery takes the illness back when it asks for nothing
// and the device has been quiet for a while.
func TestMarkIsTakenBack(t *testing.T) {
	now := time.Unix(1000, 0)
	u := &unit{handle: healthyHandle{}, fixed: v1alpha1.DeviceStatus{UUID: "GPU-x"}}
	inv := &Inventory{
		symbols: map[string]bool{symbolFields: true}, now: func() time.Time { return now },
		marks: map[string]mark{"GPU-x": {device: "GPU-x", reason: "Xid 48", at: now}},
	}
	if got := inv.illness(u); got != "Xid 48" {
		t.Errorf("at once: %q", got)
	}
	now = now.Add(settled)
	if got := inv.illness(u); got != "" {
		t.Errorf("after %s: %q", settled, got)
	}
	u.handle = healthyHandle{action: nvml.GPU_RECOVERY_ACTION_GPU_RESET}
	if got := inv.illness(u); !strings.Contains(got, "reset the GPU") {
		t.Errorf("asked to reset: %q", got)
	}
}

// healthyHandle answers, and has a driver that knows recovery.
type healthyHandle struct {
	nvml.Device
	action nvml.DeviceGpuRecoveryAction
}

func (healthyHandle) GetMemoryInfo() (nvml.Memory, nvml.Return) {
	return nvml.Memory{Total: 1 << 30}, nvml.SUCCESS
}

func (h healthyHandle) GetFieldValues(values []nvml.FieldValue) nvml.Return {
	values[0].NvmlReturn = uint32(nvml.SUCCESS)
	values[0].Value[0] = byte(h.action)
	return nvml.SUCCESS
}

func TestNoLibrary(t *testing.T) {
	_, _, err := Open(Options{Library: filepath.Join(t.TempDir(), "libnvidia-ml.so.1")})
	if err == nil || !strings.Contains(err.Error(), "--nvml-library") {
		t.Errorf("%v", err)
	}
}

// A device that has fallen off the bus before the agent was started cannot say who
// it is: the others are served, and it is once it is back.
func TestLostFromTheStart(t *testing.T) {
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 3}}})
	must.Do(t, s.Lose("1"))
	inv := open(t, s, Options{})
	got := scan(t, inv)
	if len(got.Devices) != 2 || got.Devices[0].Index != 0 || got.Devices[1].Index != 2 || len(got.Usable()) != 2 {
		t.Errorf("devices %+v, want those of index 0 and 2", got.Devices)
	}
	if len(got.Unseen) != 1 || !strings.Contains(got.Unseen[0], "device 1") {
		t.Errorf("unseen %q, want device 1", got.Unseen)
	}
	must.Do(t, s.Xid(got.Devices[1].UUID, 48))
	event(t, inv)
	must.Do(t, s.Recover("1"))
	if got = scan(t, inv); len(got.Devices) != 3 || len(got.Unseen) != 0 || !got.Devices[1].Healthy || got.Devices[2].Healthy {
		t.Errorf("recovered: %+v", got)
	}
	must.Do(t, s.Xid("1", 48))
	event(t, inv)
	if got = scan(t, inv); got.Devices[1].Healthy {
		t.Error("its events are not received")
	}
	for _, device := range []string{"0", "1", "2"} {
		must.Do(t, s.Lose(device))
	}
	if _, err := open(t, s, Options{}).Scan(); err == nil {
		t.Error("a node whose devices are all lost is looked at without an error")
	}
}

// Another device in the place of a known one, another library file and another kernel
// module each need a process that loads NVML again.
func TestReplaced(t *testing.T) {
	for name, test := range map[string]struct {
		cause func(t *testing.T, s *simgpu.Sim, library string)
		says  string
	}{
		"device": {func(t *testing.T, s *simgpu.Sim, _ string) { must.Do(t, s.Replace("1")) }, "took the place of GPU-"},
		"library": {func(t *testing.T, _ *simgpu.Sim, library string) {
			must.Do(t, os.Rename(library, library+".old"))
			copyFile(t, library+".old", library)
		}, "was replaced"},
		"library gone": {func(t *testing.T, _ *simgpu.Sim, library string) { must.Do(t, os.Remove(library)) }, "was replaced"},
		"module":       {func(t *testing.T, s *simgpu.Sim, _ string) { must.Do(t, s.Module("616.1")) }, "kernel module"},
	} {
		t.Run(name, func(t *testing.T) {
			s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100, Count: 2}}})
			library := filepath.Join(t.TempDir(), "libnvidia-ml.so.1")
			copyFile(t, s.NVML(), library)
			inv, lib, err := Open(Options{Library: library})
			must.Do(t, err)
			t.Cleanup(func() { lib.Shutdown() })
			scan(t, inv)
			test.cause(t, s, library)
			if _, err := inv.Scan(); !errors.Is(err, device.ErrReplaced) || !strings.Contains(err.Error(), test.says) {
				t.Errorf("%v, want %v that says %q", err, device.ErrReplaced, test.says)
			}
		})
	}
}

// A library beside another version of the kernel module is not opened, and what to do
// is said.
func TestMismatch(t *testing.T) {
	s := simgpu.New(t, simgpu.Config{GPUs: []simgpu.GPU{{Model: simgpu.A100}}})
	must.Do(t, s.Module("616.1"))
	if _, _, err := Open(Options{Library: s.NVML()}); !errors.Is(err, device.ErrMismatch) || !strings.Contains(err.Error(), "version mismatch") {
		t.Errorf("%v, want %v", err, device.ErrMismatch)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	text := must.Get(os.ReadFile(from))(t)
	must.Do(t, os.WriteFile(to, text, 0o755))
}
