// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
	"vernier.dev/vernier/test/must"
)

// tree is a node's sysfs, procfs and /dev in a folder.
type tree struct {
	*testing.T
	dir string
}

func newTree(t *testing.T) (tree, Host) {
	dir := t.TempDir()
	return tree{t, dir}, Host{Sys: filepath.Join(dir, "sys"), Proc: filepath.Join(dir, "proc"), Dev: filepath.Join(dir, "dev")}
}

func (t tree) file(path, text string) {
	t.Helper()
	path = filepath.Join(t.dir, path)
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o750))
	must.Do(t, os.WriteFile(path, []byte(text), 0o600))
}

func (t tree) link(path, to string) {
	t.Helper()
	path = filepath.Join(t.dir, path)
	must.Do(t, os.MkdirAll(filepath.Dir(path), 0o750))
	must.Do(t, os.Symlink(to, path))
}

// pci puts a PCI function below others, as in "pci0000:00/0000:00:01.0/0000:01:00.0".
func (t tree) pci(path, numa string) {
	t.Helper()
	t.file(filepath.Join("sys/devices", path, "numa_node"), numa+"\n")
	t.link(filepath.Join("sys/bus/pci/devices", filepath.Base(path)), "../../../devices/"+path)
}

// nic puts an RDMA device on a PCI function, with a port for each state.
func (t tree) nic(name, path, numa string, states ...string) {
	t.Helper()
	t.pci(path, numa)
	at := filepath.Join("devices", path, "infiniband", name)
	for i, state := range states {
		t.file(filepath.Join("sys", at, "ports", string(rune('1'+i)), "state"), state+"\n")
	}
	t.link(filepath.Join("sys", at, "device"), "../../../"+filepath.Base(path))
	t.link("sys/class/infiniband/"+name, "../../"+at)
}

const (
	up   = "4: ACTIVE"
	down = "1: DOWN"

	// A switch with two ports below a root port, and another one below one of these.
	outer = "pci0000:00/0000:00:01.0/0000:01:00.0/"
	inner = outer + "0000:02:00.0/0000:03:00.0/"
)

func TestNICsNear(t *testing.T) {
	fs, h := newTree(t)
	fs.pci(inner+"0000:04:00.0/0000:05:00.0", "0")
	fs.pci(outer+"0000:02:01.0/0000:0a:00.0", "0")
	fs.pci("pci0000:80/0000:80:01.0/0000:81:00.0", "1")
	fs.pci("pci10000:00/10000:00:01.0/10000:01:00.0", "0")
	fs.nic("mlx5_0", inner+"0000:04:01.0/0000:07:00.0", "0", up)
	fs.nic("mlx5_1", inner+"0000:04:02.0/0000:08:00.0", "0", down, up)
	fs.nic("mlx5_2", outer+"0000:02:02.0/0000:09:00.0", "0", up)
	fs.nic("mlx5_3", "pci0000:80/0000:80:02.0/0000:82:00.0", "1", up)
	fs.nic("mlx5_4", "pci0000:80/0000:80:03.0/0000:83:00.0", "1", down)
	fs.nic("mlx5_5", "pci0000:80/0000:80:04.0/0000:84:00.0", "1", up)
	fs.file("sys/devices/pci0000:80/0000:80:04.0/0000:84:00.0/physfn", "")
	fs.nic("mlx5_6", "pci0000:80/0000:80:05.0/0000:85:00.0/mlx5_core.sf.2", "1", up)
	fs.file("sys/devices/pci0000:80/0000:80:05.0/0000:85:00.0/mlx5_core.sf.2/sfnum", "88\n")
	fs.link("sys/class/infiniband/rxe0", "../../devices/virtual/infiniband/rxe0")
	fs.file("sys/devices/virtual/infiniband/rxe0/ports/1/state", up)
	node := func(n int32) *int32 { return &n }
	s := device.Snapshot{Devices: []v1alpha1.DeviceStatus{
		{PCI: "00000000:05:00.0", NUMA: node(0)},
		{PCI: "00000000:0A:00.0", NUMA: node(0)},
		{PCI: "00000000:81:00.0", NUMA: node(1)},
		{PCI: "00000000:81:00.0"},
		{PCI: "00000000:99:00.0", NUMA: node(2)},
		{PCI: "00010000:01:00.0", NUMA: node(0)},
		{NUMA: node(-1)},
	}}
	w := Watch{Host: h, patience: time.Minute}
	w.Refine(&s)
	for i, want := range []struct{ what, nics string }{
		{"behind the inner switch", "mlx5_0,mlx5_1"},
		{"behind the outer switch: all below it are as near", "mlx5_0,mlx5_1,mlx5_2"},
		{"no switch: of its NUMA node, without those that are down and functions of others", "mlx5_3"},
		{"no switch, and its NUMA node is unknown", ""},
		{"a NUMA node without any", ""},
		{"another PCI domain: of its NUMA node", "mlx5_0,mlx5_1,mlx5_2"},
		{"devices without a NUMA node are not near each other", ""},
	} {
		if got := strings.Join(s.Devices[i].NICs, ","); got != want.nics {
			t.Errorf("%s: %q, want %q", want.what, got, want.nics)
		}
	}
	w.near(t, "the port of mlx5_0 is down", []string{"mlx5_1"}, func() { fs.file(portOf0, down) })
}

// portOf0 is a port of mlx5_0.
const portOf0 = "sys/devices/" + inner + "0000:04:01.0/0000:07:00.0/infiniband/mlx5_0/ports/1/state"

// two are RDMA devices behind one switch with the device of near.
func two(t *testing.T) (tree, *Watch) {
	fs, h := newTree(t)
	fs.pci(inner+"0000:04:00.0/0000:05:00.0", "0")
	fs.nic("mlx5_0", inner+"0000:04:01.0/0000:07:00.0", "0", up)
	fs.nic("mlx5_1", inner+"0000:04:02.0/0000:08:00.0", "0", up)
	return fs, &Watch{Host: h, patience: time.Minute}
}

// near looks once something was done.
func (w *Watch) near(t *testing.T, what string, want []string, do func()) {
	t.Helper()
	do()
	s := device.Snapshot{Devices: []v1alpha1.DeviceStatus{{PCI: "00000000:05:00.0"}}}
	if w.Refine(&s); !slices.Equal(s.Devices[0].NICs, want) {
		t.Errorf("%s: %v, want %v", what, s.Devices[0].NICs, want)
	}
}

// A port that comes and goes does not come back with each look.
func TestNICsSettle(t *testing.T) {
	fs, w := two(t)
	both, one := []string{"mlx5_0", "mlx5_1"}, []string{"mlx5_1"}
	passes := func(d time.Duration) { w.down["mlx5_0"] = w.down["mlx5_0"].Add(-d) }
	w.near(t, "first", both, func() {})
	w.near(t, "down", one, func() { fs.file(portOf0, down) })
	w.near(t, "up again", one, func() { fs.file(portOf0, up) })
	w.near(t, "not for long enough", one, func() { passes(settled / 2) })
	w.near(t, "down once more", one, func() { fs.file(portOf0, down) })
	w.near(t, "so it begins again", one, func() { fs.file(portOf0, up); passes(settled / 2) })
	w.near(t, "for long enough", both, func() { passes(settled / 2) })
	if len(w.down) != 0 {
		t.Errorf("remembers %v", w.down)
	}
}

// A device that hangs when it is asked for its ports does not hold up the look at the GPUs.
func TestNICsHang(t *testing.T) {
	fs, w := two(t)
	w.near(t, "first", []string{"mlx5_0", "mlx5_1"}, func() {})
	pipe := filepath.Join(fs.dir, portOf0)
	w.near(t, "one hangs", []string{"mlx5_0", "mlx5_1"}, func() {
		w.patience = 1
		must.Do(t, errors.Join(os.Remove(pipe), unix.Mkfifo(pipe, 0o600)))
	})
	w.near(t, "it still does", []string{"mlx5_0", "mlx5_1"}, func() {})
	w.near(t, "it answers", []string{"mlx5_1"}, func() {
		w.patience = time.Minute
		fs.file(portOf0, down)
	})
}

func TestNICsBounded(t *testing.T) {
	var all []nic
	for range 2 * maxNICs {
		all = append(all, nic{numa: 1})
	}
	if got := near(all, nil, new(int32)); len(got) != 0 {
		t.Errorf("of another NUMA node: %d", len(got))
	}
	one := int32(1)
	if got := near(all, nil, &one); len(got) != maxNICs {
		t.Errorf("%d, want %d", len(got), maxNICs)
	}
}

func TestGDR(t *testing.T) {
	const (
		open   = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build\n"
		closed = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  570.86.15  Thu Jan 23 22:51:21 UTC 2025\n"
	)
	for name, c := range map[string]struct {
		kernel, driver string
		peermem        bool
		want           v1alpha1.GDRState
	}{
		"open modules":                       {"6.8.0-45-generic\n", open, true, v1alpha1.GDRDMABuf},
		"first kernel":                       {"5.12.0\n", open, false, v1alpha1.GDRDMABuf},
		"older kernel":                       {"5.4.0-42-generic\n", open, false, v1alpha1.GDRNone},
		"older kernel and NVIDIA's module":   {"5.4.0-42-generic\n", open, true, v1alpha1.GDRPeerMem},
		"closed modules":                     {"6.8.0\n", closed, false, v1alpha1.GDRNone},
		"closed modules and NVIDIA's module": {"6.8.0\n", closed, true, v1alpha1.GDRPeerMem},
		"nothing is known":                   {"", "", false, v1alpha1.GDRNone},
	} {
		fs, h := newTree(t)
		fs.file("proc/sys/kernel/osrelease", c.kernel)
		fs.file("proc/driver/nvidia/version", c.driver)
		if c.peermem {
			fs.file("sys/module/nvidia_peermem/refcnt", "0")
		}
		var s device.Snapshot
		w := Watch{Host: h}
		if w.Refine(&s); s.Driver.GDR != c.want {
			t.Errorf("%s: %s, want %s", name, s.Driver.GDR, c.want)
		}
	}
}

func TestNodes(t *testing.T) {
	fs, h := newTree(t)
	says := func(text string, names ...string) {
		t.Helper()
		if _, err := h.Nodes(names); err == nil || !strings.Contains(err.Error(), text) {
			t.Errorf("%v, want %q", err, text)
		}
	}
	says("RDMA device mlx5_0 has no device node; load kernel module ib_uverbs", "mlx5_0")
	fs.file("sys/class/infiniband_verbs/uverbs3/ibdev", "mlx5_0\n")
	fs.file("sys/class/infiniband_verbs/abi_version", "6\n")
	says("device node /dev/infiniband/uverbs3 is missing", "mlx5_0")
	fs.link("dev/infiniband/uverbs3", "/dev/null")
	says("/dev/infiniband/rdma_cm is missing: no such file or directory; load kernel module rdma_ucm", "mlx5_0")
	fs.file("dev/infiniband/rdma_cm", "")
	says("/dev/infiniband/rdma_cm is no device node", "mlx5_0")
	must.Do(t, os.Remove(filepath.Join(h.Dev, "infiniband/rdma_cm")))
	fs.link("dev/infiniband/rdma_cm", "/dev/zero")
	got, err := h.Nodes([]string{"mlx5_0"})
	if want := []Node{{"/dev/infiniband/uverbs3", 1, 3}, {"/dev/infiniband/rdma_cm", 1, 5}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}
