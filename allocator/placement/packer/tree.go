// SPDX-License-Identifier: Apache-2.0

package packer

// fan is how many entries of one level share an entry of the next.
const (
	fan     = 1 << fanBits
	fanBits = 4
)

// entry is the best node of a part of the cluster for one class.
type entry struct {
	score int32
	node  NodeID
}

// above tells whether e wins over f: the better score, the lower node among equals.
func (e entry) above(f entry) bool {
	return e.score > f.score || e.score == f.score && e.node < f.node
}

// tree keeps the best node of every class: a tournament in which each match is
// between fan entries and all classes play side by side. Levels are blocks of
// rows with one entry per class.
type tree struct {
	// width is the number of classes that there is room for.
	width  int
	scores []int32
	levels [][]entry
}

// minClasses is the room for classes to begin with.
const minClasses = 32

// add makes room for nodes; true when everything must be set again.
func (t *tree) add(nodes int) bool {
	if nodes*t.width <= len(t.scores) {
		return false
	}
	t.resize(max(fan, 2*nodes))
	return true
}

func (t *tree) resize(nodes int) {
	nodes = (nodes + fan - 1) / fan * fan
	t.scores = make([]int32, nodes*t.width)
	t.levels = nil
	for n := nodes; n > 1; {
		n = (n + fan - 1) / fan
		t.levels = append(t.levels, make([]entry, (n+fan-1)/fan*fan*t.width))
	}
	t.clear()
}

func (t *tree) clear() {
	for i := range t.scores {
		t.scores[i] = noFit
	}
	for _, l := range t.levels {
		for i := range l {
			l[i].score = noFit
		}
	}
}

// winner is the best node for the class.
func (t *tree) winner(class int) entry {
	if len(t.levels) == 0 {
		return entry{score: noFit}
	}
	return t.levels[len(t.levels)-1][class]
}

// set changes a node's score for the class.
func (t *tree) set(class int, id NodeID, score int32) {
	s := &t.scores[int(id)*t.width+class]
	if *s == score {
		return
	}
	*s = score
	now, child := entry{score, id}, int(id)
	for l, level := range t.levels {
		block := child / fan
		top := &level[block*t.width+class]
		switch {
		case now.above(*top):
			*top = now
		case int(top.node)>>(l*fanBits) == child && *top != now:
			*top = t.play(l, block, class)
		default:
			return
		}
		now, child = *top, block
	}
}

// play finds the best of a block.
func (t *tree) play(level, block, class int) entry {
	best := entry{score: noFit}
	at := block*fan*t.width + class
	for i := range fan {
		e := entry{}
		if level == 0 {
			e = entry{t.scores[at], NodeID(block*fan + i)}
		} else {
			e = t.levels[level-1][at]
		}
		if i == 0 || e.above(best) {
			best = e
		}
		at += t.width
	}
	return best
}
