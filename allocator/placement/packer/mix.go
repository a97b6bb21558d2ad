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

// Half-lives in arrivals are kept within these.
const (
	minHalfLife = 2_000
	maxWeight   = 1e100
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

// prior is what is believed before anything has arrived, worth a few arrivals:
// whole devices, halves and quarters.
var prior = []struct {
	size   int
	weight float64
}{{100, 4}, {50, 2}, {25, 2}}

// priorWeight is that of prior altogether, in arrivals.
const priorWeight = 8

// parts are the frequencies of the classes, and how many arrivals the belief in
// prior is worth relative to one of them. Together they add up to 1.
func (m *mix) parts() (classes []float64, unit float64) {
	sum := priorWeight * m.now
	for _, w := range m.weight {
		sum += w
	}
	classes = make([]float64, len(m.weight))
	for i, w := range m.weight {
		classes[i] = w / sum
	}
	return classes, m.now / sum
}
