// SPDX-License-Identifier: Apache-2.0

package rival

import "vernier.dev/vernier/test/bench/placement/trace"

// The largest machine of the trace's authors, which their scores are scaled by.
const (
	maxCPU = 128_000
	maxGPU = 8 * trace.Whole
)

// FirstFit takes the first node and its fullest device.
func FirstFit(n *Node, c *trace.Class) (float64, uint64) {
	return 0, n.Choose(c, n.Tightest)
}

// BestFit takes the node that is left with least, half CPU and half GPU, in whole
// percent, as in the simulator of the fragmentation gradient's authors.
func BestFit(n *Node, c *trace.Class) (float64, uint64) {
	cpu := float64(n.CPULeft-c.CPU) / maxCPU
	gpu := float64(int64(n.Total())-c.Demand()) / maxGPU
	return float64(int64((1 - 0.5*cpu - 0.5*gpu) * 100)), n.Choose(c, n.Tightest)
}

// Spread takes the emptiest node and its emptiest devices.
func Spread(n *Node, c *trace.Class) (float64, uint64) {
	return -n.used(), n.Choose(c, n.Emptiest)
}

// GPUShare is the extender of gpushare: the node whose GPUs are used most, in
// tenths, and on it the device that is left with least.
func GPUShare(n *Node, c *trace.Class) (float64, uint64) {
	after := n.used() + float64(c.Demand())/float64(max(len(n.Left), 1)*trace.Whole)
	return float64(int64(after * 10)), n.Choose(c, n.Tightest)
}

// HAMi is its default: the node that is used most, counting slices (of ten per
// device), compute and memory; on it the device used least.
func HAMi(n *Node, c *trace.Class) (float64, uint64) {
	return n.hami(), n.Choose(c, n.Emptiest)
}

// HAMiBinpack is HAMi with binpack for devices too.
func HAMiBinpack(n *Node, c *trace.Class) (float64, uint64) {
	return n.hami(), n.Choose(c, n.Tightest)
}

func (n *Node) hami() float64 {
	slices := 0
	for _, p := range n.Pods {
		slices += p
	}
	return 10 * (float64(slices)/float64(10*max(len(n.Pods), 1)) + 2*n.used())
}

// used is the part of the node's devices that is booked, 0 to 1.
func (n *Node) used() float64 {
	if len(n.Left) == 0 {
		return 0
	}
	return 1 - float64(n.Total())/float64(len(n.Left)*trace.Whole)
}
