// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"slices"

	"vernier.dev/vernier/api/v1alpha1"
)

// Kind says when a container runs, relative to the others of its pod.
type Kind int

const (
	// App containers run together, after every init container.
	App Kind = iota
	// Init containers run one after the other, in their order, before the app
	// containers.
	Init
	// Sidecar is an init container that restarts always: it starts at its place in
	// the order and goes on beside everything that follows.
	Sidecar
)

// Container is one container's demand.
type Container struct {
	Name  string
	Kind  Kind
	Share v1alpha1.Share
	// Asked is what it asks for, where Share may be less; zero where they are the same.
	Asked v1alpha1.Share
	// Burstable: on over-committed devices its slices have the part of Share that is guaranteed there.
	Burstable bool
	// Mode that its slices are granted in, or auto: mig on a device in MIG mode,
	// limiter on any other, never mps. An exclusive share is whole, so the sums alone keep
	// everything else off its devices.
	Mode v1alpha1.Mode
	// Class is the GPUClass of which it asks for units, empty without one, and Models are the
	// devices of that. It may use the ones that the pod may use too.
	Class  string
	Models v1alpha1.AllowList
}

// Demand is what a pod asks for. Containers are in the order in which Kubernetes
// starts them: init containers and sidecars first.
type Demand struct {
	Containers []Container
	Policy     v1alpha1.Policy
	// Models and UUIDs restrict the devices.
	Models, UUIDs v1alpha1.AllowList
	// SameGPU puts all containers on one device. Each asks for one, then.
	SameGPU bool
	// Topology is how near to each other the devices of all containers are to be.
	Topology v1alpha1.TopologyRequest
	// Shares are those of the containers, by name.
	Shares map[string]v1alpha1.Share
}

// Devices is how much the pod asks for, in devices: what orders the pods of a set.
func (d *Demand) Devices() (sum float64) {
	for i := range d.Containers {
		s := &d.Containers[i].Share
		sum += float64(s.GPUs) * float64(max(s.Core, s.MemPercent)) / float64(v1alpha1.WholeGPU)
	}
	return sum
}

// Least is how much room the pod takes at the very least, in percent of a device and
// whatever the devices are. It is what its containers ask for, without init containers,
// which can live in the room of the others.
func (d *Demand) Least() (sum int64) {
	for i := range d.Containers {
		if c := &d.Containers[i]; c.Kind != Init {
			sum += int64(c.Share.GPUs) * int64(max(c.Share.Core, c.Share.MemPercent))
		}
	}
	return sum
}

// Idle reports whether the pod asks for an idle slice, which is all that it asks for.
func (d *Demand) Idle() bool {
	return slices.ContainsFunc(d.Containers, func(c Container) bool { return c.Share.Idle > 0 })
}

// Single reports whether the pod asks for a part of one device and nothing else.
func (d *Demand) Single() bool { return len(d.Containers) == 1 && d.Containers[0].Share.GPUs == 1 }

// MayCut reports whether a container of the pod may be on an instance of MIG, MustCut
// whether one may be on nothing else.
func (d *Demand) MayCut() bool {
	return slices.ContainsFunc(d.Containers, func(c Container) bool { return c.mayCut() && c.Share.GPUs == 1 })
}
func (d *Demand) MustCut() bool { return d.asks(v1alpha1.ModeMIG) }

// MPS reports whether the pod is to be on devices that MPS shares.
func (d *Demand) MPS() bool { return d.asks(v1alpha1.ModeMPS) }

func (d *Demand) asks(mode v1alpha1.Mode) bool {
	return slices.ContainsFunc(d.Containers, func(c Container) bool { return c.Mode == mode })
}

// span is the range of phases, both ends included, in which a container runs.
type span struct{ from, to int }

// spans numbers the phases of a pod: one for each init container, in order, and a
// last one for the app containers. Every container runs in one unbroken range.
func spans(containers []Container) (runs []span, phases int) {
	inits := 0
	for _, c := range containers {
		if c.Kind == Init {
			inits++
		}
	}
	runs = make([]span, len(containers))
	started := 0
	for i, c := range containers {
		switch c.Kind {
		case Init:
			runs[i] = span{started, started}
			started++
		case Sidecar:
			runs[i] = span{started, inits}
		default:
			runs[i] = span{inits, inits}
		}
	}
	return runs, inits + 1
}
