// SPDX-License-Identifier: Apache-2.0

// Package rdma owns what the kernel says of the node's RDMA devices: those near
// each GPU, how they reach its memory, and their device nodes.
//
// It only reads. Virtual functions and network devices are other systems' to give.
package rdma

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/version"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/device"
)

// maxNICs bounds the RDMA devices of one GPU, as the ledger does.
const maxNICs = 16

// Host is where the node's files are.
type Host struct {
	// Sys is sysfs as the node's own network namespace sees it: with RDMA devices in
	// exclusive namespaces, another one shows none of them.
	Sys string
	// Proc is procfs.
	Proc string
	// Dev has the device nodes.
	Dev string
	// Inject: an administrator lets pods have device nodes of RDMA devices, with which a program
	// reaches the network as the node does, past network policies.
	Inject bool
}

// nic is an RDMA device.
type nic struct {
	name string
	path []string
	numa int32
	// up: a port of it is.
	up bool
}

const (
	// patience is how long a look at the RDMA devices may take. The kernel asks a device for
	// the state of its ports, and waits a minute for one whose firmware hangs.
	patience = time.Second
	// settled is how long an RDMA device that was down has to be up before it counts: what a
	// bad cable does again and again is not worth a write of the ledger each time.
	settled = 30 * time.Second
)

// Watch follows the RDMA devices of a node. All but Host fills itself. It is not for several at
// once.
type Watch struct {
	Host Host

	patience time.Duration
	// known are the devices that are up, by the last look that has ended.
	known []nic
	// look has what is found, nil while nobody looks.
	look chan []nic
	// down is when a device was last seen so.
	down map[string]time.Time
}

// Refine adds to each device of a fresh snapshot the RDMA devices near it, and to the driver
// how they reach the memory of GPUs. Where an RDMA device does not answer, what was known of
// all of them holds until it does.
func (w *Watch) Refine(s *device.Snapshot) {
	s.Driver.GDR = w.Host.gdr()
	if w.look == nil {
		look := make(chan []nic, 1)
		w.look = look
		go func() { look <- w.Host.nics() }()
	}
	select {
	case all := <-w.look:
		w.look, w.known = nil, w.settle(all, time.Now())
	case <-time.After(cmp.Or(w.patience, patience)):
	}
	for i := range s.Devices {
		d := &s.Devices[i]
		d.NICs = near(w.known, w.Host.pciPath(d.PCI), d.NUMA)
	}
}

// settle keeps the devices that are up, and were not down lately.
func (w *Watch) settle(all []nic, now time.Time) []nic {
	down := map[string]time.Time{}
	all = slices.DeleteFunc(all, func(n nic) bool {
		since, was := w.down[n.name]
		switch {
		case !n.up:
			since = now
		case !was || now.Sub(since) >= settled:
			return false
		}
		down[n.name] = since
		return true
	})
	w.down = down
	return all
}

// near are those behind the PCIe switch that is nearest to the device, else those of its NUMA
// node.
func near(nics []nic, path []string, numa *int32) []string {
	most := 0
	for _, n := range nics {
		most = max(most, shared(path, n.path))
	}
	var names []string
	for _, n := range nics {
		if most > 0 && shared(path, n.path) == most || most == 0 && numa != nil && n.numa == *numa && n.numa >= 0 {
			names = append(names, n.name)
		}
	}
	return names[:min(len(names), maxNICs)]
}

// shared counts the bridges that two paths have in common, from the root port on. Below one
// root port there is more than one device only where a switch is.
func shared(a, b []string) int {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return max(n-1, 0)
}

// nics are the node's own RDMA devices, by name.
func (h Host) nics() []nic {
	class := filepath.Join(h.Sys, "class/infiniband")
	entries, err := os.ReadDir(class)
	if err != nil {
		return nil
	}
	var all []nic
	for _, e := range entries {
		at := filepath.Join(class, e.Name())
		// A virtual function or a subfunction is given to pods by what made it.
		if exists(at, "device/physfn") || exists(at, "device/sfnum") {
			continue
		}
		// Not by EvalSymlinks, which leaves a root that is /proc/1/root.
		link, err := os.Readlink(at)
		if err != nil {
			continue
		}
		n := nic{name: e.Name(), path: bridges(link), numa: -1, up: active(at)}
		if node, err := strconv.ParseInt(read(at, "device/numa_node"), 10, 32); err == nil {
			n.numa = int32(node)
		}
		all = append(all, n)
	}
	return all
}

// stateActive begins what the kernel says of a port that is up.
const stateActive = "4:"

// active reports whether a port of the RDMA device is up.
func active(at string) bool {
	ports, err := os.ReadDir(filepath.Join(at, "ports"))
	return err == nil && slices.ContainsFunc(ports, func(p fs.DirEntry) bool {
		return strings.HasPrefix(read(at, "ports", p.Name(), "state"), stateActive)
	})
}

// pciPath is the path of a device by NVML's spelling of its bus id, nil where the kernel does
// not show it.
func (h Host) pciPath(busID string) []string {
	domain, rest, _ := strings.Cut(strings.ToLower(busID), ":")
	number, err := strconv.ParseUint(domain, 16, 32)
	if err != nil {
		return nil
	}
	link, err := os.Readlink(filepath.Join(h.Sys, "bus/pci/devices", fmt.Sprintf("%04x:%s", number, rest)))
	if err != nil {
		return nil
	}
	return bridges(link)
}

var pciAddress = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// bridges are the PCI functions on the way to a device, the host bridge first.
func bridges(link string) []string {
	parts := strings.Split(link, "/")
	first := slices.IndexFunc(parts, pciAddress.MatchString)
	if first < 1 {
		return nil
	}
	last := first
	for last < len(parts) && pciAddress.MatchString(parts[last]) {
		last++
	}
	return parts[first-1 : last]
}

// firstDMABuf is the first kernel whose RDMA takes memory of other devices.
var firstDMABuf = version.MustParseGeneric("5.12")

// gdr is how RDMA devices reach the memory of GPUs. By the kernel's own buffers they do where
// the kernel and the driver's modules can: NVIDIA's open ones.
func (h Host) gdr() v1alpha1.GDRState {
	kernel, err := version.ParseGeneric(read(h.Proc, "sys/kernel/osrelease"))
	if err == nil && !kernel.LessThan(firstDMABuf) && strings.Contains(read(h.Proc, "driver/nvidia/version"), "Open Kernel Module") {
		return v1alpha1.GDRDMABuf
	}
	if exists(h.Sys, "module/nvidia_peermem") {
		return v1alpha1.GDRPeerMem
	}
	return v1alpha1.GDRNone
}

// Node is a device node.
type Node struct {
	// Path is where programs look for it.
	Path         string
	Major, Minor int64
}

// Nodes are the device nodes with which programs use these RDMA devices, and that of the
// connection manager. One that is missing is an error.
func (h Host) Nodes(names []string) ([]Node, error) {
	class := filepath.Join(h.Sys, "class/infiniband_verbs")
	entries, err := os.ReadDir(class)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	verbs := map[string]string{}
	for _, e := range entries {
		verbs[read(class, e.Name(), "ibdev")] = e.Name()
	}
	nodes := make([]Node, 0, len(names)+1)
	for _, name := range names {
		if verbs[name] == "" {
			return nil, fmt.Errorf("RDMA device %s has no device node; load kernel module ib_uverbs on the node", name)
		}
		node, err := h.node(verbs[name])
		if err != nil {
			return nil, fmt.Errorf("RDMA device %s: %w; see that udev runs on the node", name, err)
		}
		nodes = append(nodes, node)
	}
	manager, err := h.node("rdma_cm")
	if err != nil {
		return nil, fmt.Errorf("%w; load kernel module rdma_ucm on the node", err)
	}
	return append(nodes, manager), nil
}

func (h Host) node(file string) (Node, error) {
	var s unix.Stat_t
	path := filepath.Join("/dev/infiniband", file)
	if err := unix.Stat(filepath.Join(h.Dev, "infiniband", file), &s); err != nil {
		return Node{}, fmt.Errorf("device node %s is missing: %w", path, err)
	}
	if s.Mode&unix.S_IFMT != unix.S_IFCHR {
		return Node{}, fmt.Errorf("%s is no device node", path)
	}
	return Node{Path: path, Major: int64(unix.Major(s.Rdev)), Minor: int64(unix.Minor(s.Rdev))}, nil
}

func exists(parts ...string) bool {
	_, err := os.Lstat(filepath.Join(parts...))
	return err == nil
}

// read is a file's text, empty where there is none.
func read(parts ...string) string {
	text, err := os.ReadFile(filepath.Join(parts...))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(text))
}
