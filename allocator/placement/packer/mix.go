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

// parts are the frequencies of the classes, all 0 before anything has arrived.
func (m *mix) parts() []float64 {
	parts, sum := make([]float64, len(m.weight)), m.sum()
	for i, w := range m.weight {
		if w > 0 {
			parts[i] = w / sum
		}
	}
	return parts
}

// unseen is how frequent something is believed to be that would have been n of the
// first arrivals, less the more has arrived since.
func (m *mix) unseen(n float64) float64 { return n * m.now / (m.sum() + 2*n*m.now) }

func (m *mix) sum() (sum float64) {
	for _, w := range m.weight {
		sum += w
	}
	return sum
}
