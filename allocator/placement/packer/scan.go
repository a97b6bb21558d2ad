// SPDX-License-Identifier: Apache-2.0

package packer

// Scan finds what Best finds by looking at every node: the same score without the
// index, for comparison. Among equal nodes it takes the first, or asks another
// whether to take the n-th of them instead of one before it.
func (e *Engine) Scan(r Request, another func(n int) bool) (id NodeID, devices uint64, ok bool) {
	c := e.class(r)
	best, equal := int32(noFit), 0
	for i := range e.nodes {
		v := e.look(NodeID(i))
		s, d := e.score(v, c)
		if s == noFit {
			continue
		}
		s -= e.fleets[v.kind.fleet].toll * int32(r.GPUs)
		switch {
		case !ok || s > best:
			equal = 1
		case s == best && another != nil:
			if equal++; !another(equal) {
				continue
			}
		default:
			continue
		}
		best, id, devices, ok = s, NodeID(i), d, true
	}
	return id, devices, ok
}
