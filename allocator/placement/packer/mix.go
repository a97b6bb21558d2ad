// SPDX-License-Identifier: Apache-2.0

package packer

import "math"

// mix is the learnt frequency of classes. Later arrivals weigh more: what shares
// the devices with a pod is what arrives while it runs, so an arrival's weight
// halves over as many arrivals as the cluster has devices.
type mix struct {
	weight []float64
	// now is the weight of the next arrival. It grows instead of all others
	// shrinking.
	now float64
	// arrivals so far.
	arrivals int
}

const (
	// minHalfLife keeps small clusters from forgetting what is rare.
	minHalfLife = 2_000
	// maxWeight is where weights are scaled back.
	maxWeight = 1e100
)

func (m *mix) add(class, devices int) {
	m.arrivals++
	m.weight[class] += m.now
	m.now *= math.Exp2(1 / float64(max(devices, minHalfLife)))
	if m.now < maxWeight {
		return
	}
	for i := range m.weight {
		m.weight[i] /= m.now
	}
	m.now = 1
}

// prior is what is believed of sizes before anything has arrived: whole devices,
// halves and quarters. It counts as a few arrivals, and is forgotten once there
// were enough to go by.
var prior = []struct {
	size   int
	weight float64
}{{100, 4}, {50, 2}, {25, 2}}

const (
	priorWeight = 8
	enough      = 64
)

// parts are the frequencies of the classes, that of one of prior's weight (0 once
// enough has arrived), and what one arrival of now counts among all.
func (m *mix) parts() (classes []float64, believed, one float64) {
	sum := priorWeight * m.now
	for _, w := range m.weight {
		sum += w
	}
	one = m.now / sum
	if m.arrivals < enough {
		believed = one
	} else {
		sum -= priorWeight * m.now
	}
	classes = make([]float64, len(m.weight))
	for i, w := range m.weight {
		classes[i] = w / sum
	}
	return classes, believed, one
}
