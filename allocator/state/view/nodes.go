// SPDX-License-Identifier: Apache-2.0

package view

import (
	"cmp"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/v1alpha1"
)

// Node is one GPU node and what is granted on it.
type Node struct {
	Name string `json:"name"`
	// Ready is whether slices are granted there: the node agent is ready, and reachable.
	// True, False or Unknown.
	Ready metav1.ConditionStatus `json:"ready"`
	// Note says why it is not ready.
	Note   string   `json:"note,omitempty"`
	GPUs   int      `json:"gpus"`
	Models []string `json:"models"`
	// Core and Mem: all that is granted, of the devices that the node sees.
	Core   Core   `json:"core"`
	Mem    Memory `json:"memMiB"`
	Slices int    `json:"slices"`
	// WaitingRelease counts slices of pods whose containers are gone, which the
	// allocator has still to take back.
	WaitingRelease int    `json:"waitingRelease"`
	Driver         Driver `json:"driver"`
	// Topology is which of its devices are near each other, by their places in the ledger: their
	// indexes, where the driver shows all devices.
	Topology *v1alpha1.TopologyStatus `json:"topology,omitempty"`
}

// Driver of a node.
type Driver struct {
	Version string `json:"version,omitempty"`
	CUDA    string `json:"cuda,omitempty"`
	// MemoryLimits reports whether the driver holds containers to a memory limit.
	MemoryLimits       bool   `json:"memoryLimits"`
	MemoryLimitsReason string `json:"memoryLimitsReason,omitempty"`
	// MPS reports whether slices can be in mode mps.
	MPS       bool   `json:"mps"`
	MPSReason string `json:"mpsReason,omitempty"`
	// GDR is how RDMA devices reach the memory of GPUs.
	GDR v1alpha1.GDRState `json:"gdr,omitempty"`
}

// Nodes lists the nodes that have a ledger, by name.
func Nodes(ledgers []v1alpha1.SliceLedger) []Node {
	nodes := make([]Node, 0, len(ledgers))
	for i := range ledgers {
		nodes = append(nodes, NodeOf(&ledgers[i]))
	}
	slices.SortFunc(nodes, func(a, b Node) int { return cmp.Compare(a.Name, b.Name) })
	return nodes
}

// NodeOf sums up one ledger.
func NodeOf(l *v1alpha1.SliceLedger) Node {
	drv := l.Status.Driver
	n := Node{
		Name: l.Name, Ready: metav1.ConditionUnknown, GPUs: len(l.Status.Devices), Models: []string{},
		Driver:   Driver{drv.Version, drv.CUDA, drv.MemoryLimits, drv.MemoryLimitsReason, drv.MPS, drv.MPSReason, drv.GDR},
		Topology: l.Status.Topology,
		Note:     "the node agent has not reported yet",
	}
	if c := l.Status.Readiness(); c != nil {
		n.Ready, n.Note = c.Status, ""
		if c.Status != metav1.ConditionTrue {
			n.Note = cmp.Or(c.Message, c.Reason)
		}
	}
	for _, d := range DevicesOf(l) {
		if d.Model != "" && !slices.Contains(n.Models, d.Model) {
			n.Models = append(n.Models, d.Model)
		}
		n.Core.Granted += d.Core.Granted
		n.Mem.Granted += d.Mem.Granted
		n.Slices += d.Slices
		if d.Health != HealthMissing {
			n.Core.Total += d.Core.Total
			n.Mem.Total += d.Mem.Total
		}
	}
	released := releasedOf(l)
	for _, d := range l.Spec.Devices {
		for _, s := range d.Slices {
			if released[s.Pod] {
				n.WaitingRelease++
			}
		}
	}
	return n
}

func releasedOf(l *v1alpha1.SliceLedger) map[types.UID]bool {
	released := make(map[types.UID]bool, len(l.Status.Released))
	for _, uid := range l.Status.Released {
		released[uid] = true
	}
	return released
}
