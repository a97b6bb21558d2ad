// SPDX-License-Identifier: Apache-2.0

package packer

// tree keeps the best node of every class: a tournament whose matches are between
// fan entries each, in which all classes play side by side. A level is blocks of
// rows with one entry per class.
type tree struct {
	// width is the number of classes that there is room for.
	width  int
	scores []int32
	levels [][]entry
}

const (
	fan     = 1 << fanBits
	fanBits = 3
	// minClasses is the room for classes to begin with.
	minClasses = 32
)

// entry is the best node of a part of the fleet for one class: its score, and below
// that the complement of its slot. So the greater wins: the better score, the lower
// slot among equals, found without a branch that a processor could guess wrong.
type entry int64

func newEntry(score, slot int32) entry { return entry(score)<<32 | entry(^uint32(slot)) }

func (e entry) score() int32 { return int32(e >> 32) }
func (e entry) slot() int32  { return int32(^uint32(e)) }

// nobody is the winner where the class has no room.
const nobody = entry(noFit)<<32 | entry(^uint32(0))

// grow makes room for nodes; true when everything must be set again.
func (t *tree) grow(nodes, classes int) bool {
	if t.width > 0 && nodes*t.width <= len(t.scores) {
		return false
	}
	t.resize(2*nodes, max(t.width, minClasses, classes))
	return true
}

// widen makes room for classes; true when everything must be set again.
func (t *tree) widen(classes int) bool {
	if classes <= t.width {
		return false
	}
	t.resize(len(t.scores)/max(t.width, 1), max(minClasses, 2*t.width))
	return true
}

func (t *tree) resize(nodes, width int) {
	nodes = (nodes + fan - 1) / fan * fan
	t.width = width
	t.scores = make([]int32, nodes*width)
	t.levels = nil
	for n := nodes; n > 1; {
		n = (n + fan - 1) / fan
		t.levels = append(t.levels, make([]entry, (n+fan-1)/fan*fan*width))
	}
	t.clear()
}

func (t *tree) clear() {
	for i := range t.scores {
		t.scores[i] = noFit
	}
	for _, l := range t.levels {
		for i := range l {
			l[i] = nobody
		}
	}
}

// winner is the best node for the class.
func (t *tree) winner(class int) entry {
	if len(t.levels) == 0 {
		return nobody
	}
	return t.levels[len(t.levels)-1][class]
}

// set changes a node's score for the class.
func (t *tree) set(class int, slot, score int32) {
	s := &t.scores[int(slot)*t.width+class]
	if *s == score {
		return
	}
	*s = score
	now, child := newEntry(score, slot), int(slot)
	for l, level := range t.levels {
		block := child / fan
		top := &level[block*t.width+class]
		switch {
		case now > *top:
			*top = now
		case int(top.slot())>>(l*fanBits) == child && *top != now:
			*top = t.play(l, block, class)
		default:
			return
		}
		now, child = *top, block
	}
}

// play finds the best of a block.
func (t *tree) play(level, block, class int) entry {
	at := block*fan*t.width + class
	if level == 0 {
		slot := int32(block * fan)
		best := newEntry(t.scores[at], slot)
		for i := int32(1); i < fan; i++ {
			at += t.width
			best = max(best, newEntry(t.scores[at], slot+i))
		}
		return best
	}
	below := t.levels[level-1]
	best := below[at]
	for range fan - 1 {
		at += t.width
		best = max(best, below[at])
	}
	return best
}
