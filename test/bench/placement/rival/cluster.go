// SPDX-License-Identifier: Apache-2.0

// Package rival holds the policies that ours is measured against, as their
// authors wrote them down: a score for every node, the best wins.
//
// It knows the whole trace where the original does (the fragmentation gradient is
// given the mix of pods), which ours is not.
package rival

import (
	"math/bits"
	"math/rand"

	"vernier.dev/vernier/test/bench/placement/trace"
)

// Node is a machine's free room.
type Node struct {
	*trace.Node
	CPULeft, MemLeft int64
	// Left is what is free on each device, in thousandths.
	Left []int
	// Pods is how many slices each device has.
	Pods []int
	// version counts the changes.
	version uint32
}

// Total is what is free on all devices.
func (n *Node) Total() (sum int) {
	for _, l := range n.Left {
		sum += l
	}
	return sum
}

// Fits tells whether the class can run here now.
func (n *Node) Fits(c *trace.Class) bool {
	if n.CPULeft < c.CPU || n.MemLeft < c.Mem || c.GPUs > 0 && !trace.Allows(c.Spec, n.Model) {
		return false
	}
	return n.have(c.GPUs, c.Milli)
}

func (n *Node) have(gpus, milli int) bool {
	for _, l := range n.Left {
		if gpus == 0 {
			break
		}
		if l >= milli {
			gpus--
		}
	}
	return gpus == 0
}

// Choose takes the class's devices in order of less, lowest index first among
// equals, as a set of bits.
func (n *Node) Choose(c *trace.Class, less func(a, b int) bool) (set uint64) {
	for range c.GPUs {
		best := -1
		for d, l := range n.Left {
			if l >= c.Milli && set>>d&1 == 0 && (best < 0 || less(d, best)) {
				best = d
			}
		}
		set |= 1 << best
	}
	return set
}

// Tightest prefers the device with least room.
func (n *Node) Tightest(a, b int) bool { return n.Left[a] < n.Left[b] }

// Emptiest prefers the device with most room.
func (n *Node) Emptiest(a, b int) bool { return n.Left[a] > n.Left[b] }

// take books the class on the devices, or gives it back with sign -1.
func (n *Node) take(c *trace.Class, devices uint64, sign int) {
	n.version++
	n.CPULeft -= int64(sign) * c.CPU
	n.MemLeft -= int64(sign) * c.Mem
	for ; devices != 0; devices &= devices - 1 {
		d := bits.TrailingZeros64(devices)
		n.Left[d] -= sign * c.Milli
		n.Pods[d] += sign
	}
}

// Policy scores a node on which the class fits, and says which devices it takes.
// The highest score wins.
type Policy func(n *Node, c *trace.Class) (score float64, devices uint64)

// Cluster places by scanning all nodes. Scores are remembered until the node
// changes.
type Cluster struct {
	policy  Policy
	nodes   []Node
	classes []trace.Class
	memo    []verdict
	ties    *rand.Rand
}

type verdict struct {
	version uint32
	fits    bool
	score   float64
	devices uint64
}

// NewCluster is an empty cluster. Equal scores go to the first node, or to a
// random one when ties is given.
func NewCluster(w *trace.Workload, policy Policy, ties *rand.Rand) *Cluster {
	c := &Cluster{policy: policy, classes: w.Classes, ties: ties, nodes: make([]Node, len(w.Nodes))}
	c.memo = make([]verdict, len(w.Nodes)*len(w.Classes))
	for i := range w.Nodes {
		n := &w.Nodes[i]
		c.nodes[i] = Node{Node: n, CPULeft: n.CPU, MemLeft: n.Mem, Left: make([]int, n.GPUs), Pods: make([]int, n.GPUs), version: 1}
		for d := range c.nodes[i].Left {
			c.nodes[i].Left[d] = trace.Whole
		}
	}
	return c
}

// Place books the class on the best node; false when it fits on none.
func (c *Cluster) Place(class int) (node int, devices uint64, ok bool) {
	best, equal := (*verdict)(nil), 0
	for i := range c.nodes {
		v := c.look(i, class)
		switch {
		case !v.fits:
			continue
		case best == nil || v.score > best.score:
			equal = 1
		case v.score == best.score && c.ties != nil:
			if equal++; c.ties.Intn(equal) > 0 {
				continue
			}
		default:
			continue
		}
		best, node = v, i
	}
	if best == nil {
		return 0, 0, false
	}
	c.nodes[node].take(&c.classes[class], best.devices, 1)
	return node, best.devices, true
}

// Release gives back what Place booked.
func (c *Cluster) Release(class, node int, devices uint64) {
	c.nodes[node].take(&c.classes[class], devices, -1)
}

func (c *Cluster) look(node, class int) *verdict {
	n, v := &c.nodes[node], &c.memo[node*len(c.classes)+class]
	if v.version != n.version {
		*v = verdict{version: n.version, fits: n.Fits(&c.classes[class])}
		if v.fits {
			v.score, v.devices = c.policy(n, &c.classes[class])
		}
	}
	return v
}
