// SPDX-License-Identifier: Apache-2.0

package packer

// Scan finds what Place would choose by looking at every node: the same score
// without the index, for comparison. It books and learns nothing.
func (e *Engine) Scan(r Request) (id NodeID, devices uint64, ok bool) {
	c := e.class(r)
	best := int32(noFit)
	for i := range e.nodes {
		v := e.look(NodeID(i))
		s, d := e.score(v, c)
		if s == noFit {
			continue
		}
		s -= e.fleets[v.kind.fleet].toll * int32(r.GPUs)
		if !ok || s > best {
			best, id, devices, ok = s, NodeID(i), d, true
		}
	}
	return id, devices, ok
}
