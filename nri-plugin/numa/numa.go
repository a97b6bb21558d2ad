// SPDX-License-Identifier: Apache-2.0

// Package numa owns what the node agent knows of the CPUs beside the GPUs. It knows the CPUs of each
// NUMA node of the machine, those of a container, and the pods whose GPUs have to
// follow their CPUs.
//
// It sets nothing: package hooks asks the runtime to, at a container's creation. Memory is
// never bound to a NUMA node. The kernel allocates locally first anyway, and a hard cpuset.mems
// can end a process while another node has memory left.
package numa

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/containerd/nri/pkg/api"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/cpuset"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/batch"
	"vernier.dev/vernier/nri-plugin/device"
)

// Nodes are the CPUs of each NUMA node that has some which are online.
type Nodes map[int32]cpuset.CPUSet

// Read reads them; sysfs is where that is mounted, as /sys. A kernel without NUMA has none.
// They are read each time they are asked for, because CPUs go offline and come back.
func Read(sysfs string) (Nodes, error) {
	nodes, folder := Nodes{}, filepath.Join(sysfs, "devices/system/node")
	entries, err := os.ReadDir(folder)
	if errors.Is(err, fs.ErrNotExist) {
		return nodes, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading the NUMA nodes: %w", err)
	}
	for _, e := range entries {
		number, is := strings.CutPrefix(e.Name(), "node")
		id, err := strconv.ParseInt(number, 10, 32)
		if !is || err != nil {
			continue // has_cpu, online, and the like
		}
		text, err := os.ReadFile(filepath.Join(folder, e.Name(), "cpulist"))
		if err != nil {
			return nil, fmt.Errorf("reading the CPUs of NUMA node %d: %w", id, err)
		}
		cpus, err := cpuset.Parse(strings.TrimSpace(string(text)))
		if err != nil {
			return nil, fmt.Errorf("reading the CPUs of NUMA node %d: %w", id, err)
		}
		if !cpus.IsEmpty() {
			nodes[int32(id)] = cpus
		}
	}
	return nodes, nil
}

// Of is the NUMA node of all of these CPUs, as far as they are online. It is false where
// they are of several, or of an unknown one.
func (n Nodes) Of(cpus cpuset.CPUSet) (int32, bool) {
	for id := range n {
		if n.Only(id, cpus) {
			return id, true
		}
	}
	return 0, false
}

// Only reports whether these CPUs are of that NUMA node and of no other, as far as they are
// online.
func (n Nodes) Only(node int32, cpus cpuset.CPUSet) bool {
	for id, own := range n {
		if cpus.Intersection(own).IsEmpty() == (id == node) {
			return false
		}
	}
	return !n[node].IsEmpty()
}

// CPUs are what a container has of the node's CPUs.
type CPUs struct {
	// Set that it is held to, empty for none.
	Set cpuset.CPUSet
	// Request, and Limit, which is 0 without one.
	Request, Limit batch.MilliCPU
}

// sharesPerCPU is the weight that the kubelet gives a container for each CPU of its request.
const sharesPerCPU = 1024

// CPUsOf reads what the runtime has, or is asked to set.
func CPUsOf(r *api.LinuxResources) (CPUs, error) {
	cpu := r.GetCpu()
	set, err := cpuset.Parse(cpu.GetCpus())
	if err != nil {
		return CPUs{}, fmt.Errorf("reading the CPUs that the container is held to: %w", err)
	}
	return CPUs{
		Set:     set,
		Request: batch.MilliCPU(cpu.GetShares().GetValue() * 1000 / sharesPerCPU),
		Limit:   batch.QuotaOf(r).CPU(),
	}, nil
}

// maxBound is the percent of a NUMA node's CPUs that the requests of the containers that are
// bound there add up to at most. The rest is for what runs on every node, as the kernel's own
// threads and the kubelet.
const maxBound = 90

// Refuses says why a container is not bound to these CPUs of a NUMA node, beside bound containers
// that request so much. It is empty where the container is.
func (c CPUs) Refuses(node cpuset.CPUSet, others batch.MilliCPU) string {
	all := batch.MilliCPU(node.Size()) * 1000
	switch sum := c.Request + others; {
	case c.Limit > all:
		return fmt.Sprintf("its limit of %g CPUs is more than the %d that the NUMA node has", c.Limit.Cores(), node.Size())
	case sum*100 > all*maxBound:
		return fmt.Sprintf("the requests of the containers that are bound there would be %g CPUs, more than %d %% of the %d that the NUMA node has", sum.Cores(), maxBound, node.Size())
	}
	return ""
}

// Off is the first of the devices that is of another NUMA node than that one; false without
// any. Of a device that the driver gives no NUMA node nothing is known.
func Off(node int32, uuids []string, now *device.Snapshot) (v1alpha1.DeviceStatus, bool) {
	for _, uuid := range uuids {
		if d, found := now.Device(uuid); found && d.NUMA != nil && *d.NUMA != node {
			return d, true
		}
	}
	return v1alpha1.DeviceStatus{}, false
}

// Misaligned are the pods whose GPUs have to follow their CPUs: what the ledger's
// status.misaligned shows. No container of such a pod is started until its slices are on
// devices of that NUMA node. The allocator can move them at any time. They are in memory
// only: after a restart of the agent the next creation enters the pod again.
type Misaligned struct {
	// Changed is called after a pod was entered or removed. Optional.
	Changed func()

	mu   sync.Mutex
	pods map[types.UID]follower
}

// follower is a pod whose GPUs follow the CPUs, of that NUMA node, of this container.
type follower struct {
	node      int32
	container string
}

// Add enters a pod, with the NUMA node that the CPUs of that container are of.
func (m *Misaligned) Add(pod types.UID, container string, node int32) {
	m.mu.Lock()
	if m.pods == nil {
		m.pods = map[types.UID]follower{}
	}
	m.pods[pod] = follower{node, container}
	m.mu.Unlock()
	m.changed()
}

// Compare removes the pod where it was entered for that container, which comes now with
// CPUs of other NUMA nodes too. The kubelet has given it others.
func (m *Misaligned) Compare(pod types.UID, container string, cpus cpuset.CPUSet, nodes Nodes) {
	m.mu.Lock()
	f, found := m.pods[pod]
	over := found && f.container == container && !nodes.Only(f.node, cpus)
	if over {
		delete(m.pods, pod)
	}
	m.mu.Unlock()
	if over {
		m.changed()
	}
}

func (m *Misaligned) changed() {
	if m.Changed != nil {
		m.Changed()
	}
}

// Find reports whether the pod is entered, and the NUMA node that its CPUs are of.
func (m *Misaligned) Find(pod types.UID) (int32, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f, found := m.pods[pod]
	return f.node, found
}

// Keep removes the pods for which keep is false, and returns the others, sorted; not more
// than a ledger has room for.
func (m *Misaligned) Keep(keep func(pod types.UID, node int32) bool) []v1alpha1.MisalignedPod {
	m.mu.Lock()
	defer m.mu.Unlock()
	var all []v1alpha1.MisalignedPod
	for pod, f := range m.pods {
		if keep(pod, f.node) {
			all = append(all, v1alpha1.MisalignedPod{Pod: pod, NUMA: f.node})
		} else {
			delete(m.pods, pod)
		}
	}
	slices.SortFunc(all, func(a, b v1alpha1.MisalignedPod) int { return cmp.Compare(a.Pod, b.Pod) })
	return all[:min(len(all), v1alpha1.MaxMisaligned)]
}
