// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"encoding/hex"
	"fmt"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/nri-plugin/topology"
)

// topology is which of the devices are near each other, nil where nothing is known of that.
func (inv *Inventory) topology(units []*unit, devices []v1alpha1.DeviceStatus) *v1alpha1.TopologyStatus {
	t := &v1alpha1.TopologyStatus{
		NUMA: topology.NUMA(devices),
		PCIe: topology.Cliques(len(units), func(a, b int) bool { return inv.switched(units[a], units[b]) }),
	}
	all := make([]links, len(units))
	var fabrics []string
	for i, u := range units {
		all[i] = inv.links(u)
		if f := all[i].fabric.String(); f != "" && !slices.Contains(fabrics, f) {
			fabrics = append(fabrics, f)
		}
	}
	// Of a node in several, no other node is a neighbour as a whole.
	if len(fabrics) == 1 {
		t.Fabric = fabrics[0]
	}
	t.NVLink = topology.Cliques(len(units), func(a, b int) bool {
		return linked(&all[a], &all[b]) && inv.peers(units[a], units[b])
	})
	if len(t.NUMA)+len(t.PCIe)+len(t.NVLink) == 0 && t.Fabric == "" {
		return nil
	}
	return t
}

// switched reports whether there are only PCIe switches between two devices.
func (inv *Inventory) switched(a, b *unit) bool {
	if !inv.symbols[symbolAncestor] {
		return false
	}
	level, r := a.handle.GetTopologyCommonAncestor(b.handle)
	return r == nvml.SUCCESS && level <= nvml.TOPOLOGY_MULTIPLE
}

// peers reports whether the driver lets two devices reach each other by NVLink. Where an
// operator has made partitions of the fabric, only those in one do.
func (inv *Inventory) peers(a, b *unit) bool {
	if !inv.symbols[symbolP2P] {
		return false
	}
	status, r := a.handle.GetP2PStatus(b.handle, nvml.P2P_CAPS_INDEX_NVLINK)
	return r == nvml.SUCCESS && status == nvml.P2P_STATUS_OK
}

// place is where a device is on the PCI bus.
type place struct{ domain, bus, device uint32 }

func placeOf(p nvml.PciInfo) place { return place{p.Domain, p.Bus, p.Device} }

// links are what the active NVLinks of a device lead to.
type links struct {
	own      place
	remote   map[place]bool
	switched bool
	fabric   fabric
}

// linked reports whether NVLinks lead from each of two devices to the other: directly, or by
// switches of one fabric.
func linked(a, b *links) bool {
	direct := a.remote[b.own] && b.remote[a.own]
	return direct || a.switched && b.switched && a.fabric.completed && a.fabric == b.fabric
}

func (inv *Inventory) links(u *unit) links {
	l := links{remote: map[place]bool{}}
	pci, r := u.handle.GetPciInfo()
	if r != nvml.SUCCESS || !inv.symbols[symbolLinkState] || !inv.symbols[symbolLinkRemote] {
		return l
	}
	l.own = placeOf(pci)
	for link := range nvml.NVLINK_MAX_LINKS {
		state, r := u.handle.GetNvLinkState(link)
		switch {
		case r == nvml.SUCCESS && state == nvml.FEATURE_ENABLED:
		case r == nvml.SUCCESS, r == nvml.ERROR_NOT_SUPPORTED, r == nvml.ERROR_INVALID_ARGUMENT:
			continue // none, or none that is up
		default:
			// The device is in trouble. Where its firmware hangs each call takes long, and the
			// picture of all devices waits for it.
			return links{}
		}
		if inv.symbols[symbolLinkType] {
			if kind, r := u.handle.GetNvLinkRemoteDeviceType(link); r == nvml.SUCCESS && kind == nvml.NVLINK_DEVICE_TYPE_SWITCH {
				l.switched = true
				continue
			}
		}
		if remote, r := u.handle.GetNvLinkRemotePciInfo(link); r == nvml.SUCCESS {
			l.remote[placeOf(remote)] = true
		}
	}
	if l.switched {
		l.fabric = inv.fabric(u)
	}
	return l
}

// fabric is how a device is in a fabric of NVLink switches.
type fabric struct {
	// completed: the switches are set up for it.
	completed bool
	cluster   [16]uint8
	clique    uint32
}

// String is CLUSTERUUID.CLIQUE, empty for the fabric of one node alone, which has no UUID.
func (f fabric) String() string {
	if !f.completed || f.cluster == [16]uint8{} {
		return ""
	}
	text := hex.EncodeToString(f.cluster[:])
	return fmt.Sprintf("%s-%s-%s-%s-%s.%d", text[:8], text[8:12], text[12:16], text[16:20], text[20:], f.clique)
}

// fabric asks how a device is in the fabric. Devices before Hopper have switches without such
// a state: whether these are set up shows in what their peers can do.
func (inv *Inventory) fabric(u *unit) fabric {
	var f fabric
	var state uint8
	var status uint32
	var r nvml.Return
	switch {
	case inv.symbols[symbolFabricV]:
		info, got := u.handle.GetGpuFabricInfoV().V2()
		f.cluster, f.clique, state, status, r = info.ClusterUuid, info.CliqueId, info.State, info.Status, got
	case inv.symbols[symbolFabric]:
		info, got := u.handle.GetGpuFabricInfo()
		f.cluster, f.clique, state, status, r = info.ClusterUuid, info.CliqueId, info.State, info.Status, got
	default:
		r = nvml.ERROR_NOT_SUPPORTED
	}
	if r == nvml.ERROR_NOT_SUPPORTED || r == nvml.SUCCESS && state == nvml.GPU_FABRIC_STATE_NOT_SUPPORTED {
		return fabric{completed: true}
	}
	f.completed = r == nvml.SUCCESS && state == nvml.GPU_FABRIC_STATE_COMPLETED && nvml.Return(status) == nvml.SUCCESS
	return f
}
