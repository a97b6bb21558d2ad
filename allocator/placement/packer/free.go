// SPDX-License-Identifier: Apache-2.0

package packer

import "vernier.dev/vernier/api/v1alpha1"

// Free is what the engine takes to be free of the node. The devices are the engine's
// own: read only, until the next call.
func (e *Engine) Free(id NodeID) (cpu Milli, mem v1alpha1.MiB, devices []Free) {
	n := &e.nodes[id]
	return n.cpu, n.mem, e.free[n.first : int(n.first)+e.kinds[n.kind].Devices]
}

// Near is of which sets of the node the engine takes each of its devices to be, in the same way.
func (e *Engine) Near(id NodeID) []v1alpha1.Near {
	n := &e.nodes[id]
	return e.near[n.first : int(n.first)+e.kinds[n.kind].Devices]
}
