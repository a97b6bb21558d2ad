// SPDX-License-Identifier: Apache-2.0

package rdma

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
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
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (t tree) link(path, to string) {
	t.Helper()
	path = filepath.Join(t.dir, path)
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, path); err != nil {
		t.Fatal(err)
	}
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
	h.Refine(&s)
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
	if err := os.WriteFile(filepath.Join(h.Sys, "devices", inner, "0000:04:01.0/0000:07:00.0/infiniband/mlx5_0/ports/1/state"), []byte(down), 0o600); err != nil {
		t.Fatal(err)
	}
	h.Refine(&s)
	if got := s.Devices[0].NICs; !slices.Equal(got, []string{"mlx5_1"}) {
		t.Errorf("once the port of mlx5_0 is down: %v", got)
	}
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
		if h.Refine(&s); s.Driver.GDR != c.want {
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
	if err := os.Remove(filepath.Join(h.Dev, "infiniband/rdma_cm")); err != nil {
		t.Fatal(err)
	}
	fs.link("dev/infiniband/rdma_cm", "/dev/zero")
	got, err := h.Nodes([]string{"mlx5_0"})
	if want := []Node{{"/dev/infiniband/uverbs3", 1, 3}, {"/dev/infiniband/rdma_cm", 1, 5}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v, want %v", got, err, want)
	}
}
