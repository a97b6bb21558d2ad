// SPDX-License-Identifier: Apache-2.0

package v1alpha1

import (
	"fmt"
	"math/bits"
	"slices"
	"strconv"
	"strings"
)

// TopologyLevel is how near to each other the GPUs of a pod are.
type TopologyLevel string

// Levels of topology.
const (
	// TopologyNVLink: each is linked to each of the others by NVLink.
	TopologyNVLink TopologyLevel = "nvlink"
	// TopologyPCIe: they are below one host bridge, with only PCIe switches between them.
	TopologyPCIe TopologyLevel = "pcie"
	// TopologyNUMA: they are on one NUMA node.
	TopologyNUMA TopologyLevel = "numa"
	// TopologyRDMA: each has an RDMA device near it. It says nothing of the others.
	TopologyRDMA TopologyLevel = "rdma"
	// TopologyNode: they are on one node, as the GPUs of every pod are. No request names it;
	// it is what a placement achieved where nothing nearer was to be had.
	TopologyNode TopologyLevel = "node"
)

// TopologyRequest is what AnnotationTopology says, of all GPUs of the pod together. The zero
// value asks for nothing.
// +kubebuilder:object:generate=false
type TopologyRequest struct {
	// Level is nvlink, pcie, numa or rdma; empty without a request.
	Level TopologyLevel
	// Required: the pod waits where Level is not to be had. Otherwise it takes the nearest
	// that is.
	Required bool
}

const topologyRequired = ":required"

// ParseTopology reads the value of AnnotationTopology.
func ParseTopology(text string) (TopologyRequest, error) {
	level, required := strings.CutSuffix(text, topologyRequired)
	r := TopologyRequest{TopologyLevel(level), required}
	switch r.Level {
	case TopologyNUMA, TopologyPCIe, TopologyNVLink, TopologyRDMA:
		return r, nil
	case "":
		if !required {
			return r, nil
		}
	}
	return TopologyRequest{}, fmt.Errorf("%q is unknown: use numa, pcie, nvlink or rdma, and add %q where a pod is to wait for it", text, topologyRequired)
}

// String is the request as ParseTopology reads it.
func (r TopologyRequest) String() string {
	if r.Required {
		return string(r.Level) + topologyRequired
	}
	return string(r.Level)
}

// Levels are those to try in turn, the one that is asked for first: nvlink, pcie, numa, and
// at last the node. A required one is alone, and so is rdma with node after it.
func (r TopologyRequest) Levels() []TopologyLevel {
	all := []TopologyLevel{TopologyNVLink, TopologyPCIe, TopologyNUMA, TopologyNode}
	switch {
	case r.Level == "":
		return nil
	case r.Required:
		return []TopologyLevel{r.Level}
	case r.Level == TopologyRDMA:
		return []TopologyLevel{TopologyRDMA, TopologyNode}
	}
	return all[slices.Index(all, r.Level):]
}

// Implies reports whether GPUs that are as r asks are also as other asks.
func (r TopologyRequest) Implies(other TopologyRequest) bool {
	return slices.Contains(TopologyRequest{Level: r.Level}.Levels(), other.Level) && (r.Required || !other.Required)
}

// Text is what of a pod's GPUs the level says, for people.
func (l TopologyLevel) Text() string {
	switch l {
	case TopologyNVLink:
		return "GPUs linked to each other by NVLink"
	case TopologyPCIe:
		return "GPUs with only PCIe switches between them"
	case TopologyNUMA:
		return "GPUs of one NUMA node"
	case TopologyRDMA:
		return "GPUs near an RDMA device"
	}
	return "GPUs of one node"
}

// DeviceSet is a set of devices by their positions in status.devices, as ranges: "0-3,6".
type DeviceSet string

// DeviceSetOf is the set of these positions, in any order.
func DeviceSetOf(positions []int) DeviceSet {
	sorted := slices.Compact(slices.Sorted(slices.Values(positions)))
	var b strings.Builder
	for i := 0; i < len(sorted); {
		j := i
		for j+1 < len(sorted) && sorted[j+1] == sorted[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(sorted[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(sorted[j]))
		}
		i = j + 1
	}
	return DeviceSet(b.String())
}

// mask has a bit for each position. It allocates nothing: every view of a ledger reads its sets.
func (s DeviceSet) mask() (mask uint32, err error) {
	next := 0
	for part := range strings.SplitSeq(string(s), ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.Atoi(from)
		last := first
		if err == nil && isRange {
			last, err = strconv.Atoi(to)
		}
		if err != nil || first < next || last < first || last >= MaxDevices {
			return 0, fmt.Errorf("%q is no set of devices, such as 0-3,6: %w", s, ErrRange)
		}
		for p := first; p <= last; p++ {
			mask |= 1 << p
		}
		next = last + 1
	}
	return mask, nil
}

// TopologyStatus says which of the node's devices are near each other, as sets of positions in the
// list of devices. A level of which the driver says nothing has no sets. A device without
// neighbours is in a set of NUMA, if it has a node, and in none of PCIe and NVLink.
type TopologyStatus struct {
	// NUMA are the devices of each NUMA node.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	NUMA []DeviceSet `json:"numa,omitempty"`
	// PCIe are those with only PCIe switches between them.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	PCIe []DeviceSet `json:"pcie,omitempty"`
	// NVLink are the largest sets in which each is linked to each by NVLink, the larger ones
	// first. A device may be in several.
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=32
	// +optional
	NVLink []DeviceSet `json:"nvlink,omitempty"`
	// Fabric is the NVLink fabric that the devices are of, as CLUSTERUUID.CLIQUE: nodes with
	// the same are linked to each other. It is absent where the fabric ends at the node, and where
	// its devices are of several.
	// +kubebuilder:validation:MaxLength=64
	// +optional
	Fabric string `json:"fabric,omitempty"`
}

// Near is of which sets of its node a device is, a bit for each, in the order of
// TopologyStatus. Devices are within a set of a level if they have a bit of it in common.
// +kubebuilder:object:generate=false
type Near struct{ NUMA, PCIe, NVLink, RDMA uint32 }

// At are the bits of a level. All devices are on one node.
func (n Near) At(level TopologyLevel) uint32 {
	switch level {
	case TopologyNUMA:
		return n.NUMA
	case TopologyPCIe:
		return n.PCIe
	case TopologyNVLink:
		return n.NVLink
	case TopologyRDMA:
		return n.RDMA
	}
	return 1
}

// And are the sets of both, Or the sets of any.
func (n Near) And(m Near) Near {
	return Near{n.NUMA & m.NUMA, n.PCIe & m.PCIe, n.NVLink & m.NVLink, n.RDMA & m.RDMA}
}
func (n Near) Or(m Near) Near {
	return Near{n.NUMA | m.NUMA, n.PCIe | m.PCIe, n.NVLink | m.NVLink, n.RDMA | m.RDMA}
}

// Near is of which sets each device is, by its position. Sets that are malformed, or of
// devices that there are not, are left out. A device in MIG mode has no NVLink: what runs on
// an instance of it reaches no other GPU.
func (s *SliceLedgerStatus) Near() (near [MaxDevices]Near) {
	for i := range s.Devices[:min(len(s.Devices), MaxDevices)] {
		if len(s.Devices[i].NICs) > 0 {
			near[i].RDMA = 1
		}
	}
	t := s.Topology
	if t == nil {
		return near
	}
	add := func(sets []DeviceSet, of func(*Near) *uint32) {
		for k, set := range sets[:min(len(sets), 32)] {
			mask, err := set.mask()
			if err != nil || bits.Len32(mask) > len(s.Devices) {
				continue
			}
			for ; mask != 0; mask &= mask - 1 {
				*of(&near[bits.TrailingZeros32(mask)]) |= 1 << k
			}
		}
	}
	add(t.NUMA, func(n *Near) *uint32 { return &n.NUMA })
	add(t.PCIe, func(n *Near) *uint32 { return &n.PCIe })
	add(t.NVLink, func(n *Near) *uint32 { return &n.NVLink })
	for i := range s.Devices[:min(len(s.Devices), MaxDevices)] {
		if s.Devices[i].MIG == MIGEnabled {
			near[i].NVLink = 0
		}
	}
	return near
}

// Within reports whether devices are near each other at the level. One device is near itself,
// with an RDMA device or not.
func (l TopologyLevel) Within(near ...Near) bool {
	if len(near) == 1 && l != TopologyRDMA {
		return true
	}
	common := ^uint32(0)
	for _, n := range near {
		common &= n.At(l)
	}
	return common != 0
}

// ParseRDMA reads the value of AnnotationRDMA: true for near, false when absent.
func ParseRDMA(text string) (bool, error) { return isSet(text, "near") }
