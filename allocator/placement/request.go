// SPDX-License-Identifier: Apache-2.0

package placement

import (
	"errors"
	"fmt"

	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/podrequest"
	"vernier.dev/vernier/api/v1alpha1"
)

// ErrNoClass is wrapped by the error of a pod that asks for units of a GPUClass that there is not.
var ErrNoClass = errors.New("there is no such GPUClass")

// DemandOf is what a pod asks for, with what the classes of its containers say. Errors name the
// annotation or the container.
func DemandOf(r *podrequest.Request, known *classes.Set) (*Demand, error) {
	return demandOf(r, known.Get)
}

// GrantedDemand is what a pod asks for to which devices have been granted, whatever has become of its
// classes. On these its containers may be, in the modes that they were placed in.
func GrantedDemand(r *podrequest.Request) (*Demand, error) {
	d, err := demandOf(r, func(class string) *classes.Class {
		return &classes.Class{Name: class, Mode: v1alpha1.ModeAuto}
	})
	if err != nil {
		return nil, err
	}
	if placed, err := r.Placement(); err == nil {
		for i := range d.Containers {
			c := &d.Containers[i]
			was := placed.Containers[c.Name]
			// Every other mode is one that auto can come to.
			if c.Class != "" && was.Mode == v1alpha1.ModeMPS {
				c.Mode = v1alpha1.ModeMPS
			}
			c.resized(r.Shares[c.Name], was)
		}
	}
	return d, nil
}

// resized makes the container's share what its slices were resized to.
func (c *Container) resized(asked v1alpha1.Share, was v1alpha1.PlacedShare) {
	c.Asked, c.Share, c.Burstable = v1alpha1.Share{}, asked, false // it has what it was given then
	if !was.Resized {
		return
	}
	var core v1alpha1.Percent
	var mem v1alpha1.MiB
	for _, d := range was.Devices {
		core, mem = max(core, d.Core), max(mem, d.MemMiB)
	}
	c.AtLeast(asked, core, mem)
}

// AtLeast makes the container's share no less than that, and never more than what it asks for.
func (c *Container) AtLeast(asked v1alpha1.Share, core v1alpha1.Percent, mem v1alpha1.MiB) {
	if c.Asked.GPUs > 0 {
		core, mem = max(core, c.Share.Core), max(mem, c.Share.MemMiB)
	}
	c.Asked, c.Mode = asked, v1alpha1.ModeLimiter
	c.Share = v1alpha1.Share{GPUs: asked.GPUs, Core: min(core, asked.Core), MemMiB: mem}
}

func demandOf(r *podrequest.Request, classOf func(name string) *classes.Class) (*Demand, error) {
	if err := r.Err(); err != nil {
		return nil, err
	}
	d, wishes := &Demand{Shares: r.Shares}, r.Wishes
	for _, in := range r.Containers {
		c := Container{Name: in.Name, Share: r.Shares[in.Name], Burstable: wishes.QoS == v1alpha1.QoSBurstable}
		switch {
		case in.Sidecar:
			c.Kind = Sidecar
		case in.Init:
			c.Kind = Init
		}
		if in.Class != "" {
			class := classOf(in.Class)
			if class == nil {
				return nil, fmt.Errorf("container %s asks for units of GPUClass %s: %w; the pod waits until there is, or create it again with other limits", in.Name, in.Class, ErrNoClass)
			}
			// Admission has written the class's topology down, and compared the pod's with it.
			now, err := *class, error(nil)
			now.Topology = v1alpha1.TopologyRequest{}
			if wishes, err = wishes.Narrow(&now); err != nil {
				return nil, err
			}
			c.Class, c.Models = class.Name, class.Models
		}
		if _, asks := r.Shares[in.Name]; asks {
			d.Containers = append(d.Containers, c)
		}
	}
	if err := r.Start.Known(r.Shares); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationStart, err)
	}
	d.Policy, d.Models, d.UUIDs, d.SameGPU, d.Topology = wishes.Policy, wishes.Models, wishes.UUIDs, wishes.SameGPU, wishes.Topology
	for i := range d.Containers {
		c := &d.Containers[i]
		to, less := r.Start[c.Name]
		if less {
			if wishes.Mode != v1alpha1.ModeAuto && wishes.Mode != v1alpha1.ModeLimiter {
				return nil, fmt.Errorf("annotation %s: containers in mode %s can't begin with less than they ask for: use mode %s, or remove it", v1alpha1.AnnotationStart, wishes.Mode, v1alpha1.ModeLimiter)
			}
			c.Asked, c.Share = c.Share, to.From(c.Share)
		}
		if err := wishes.Suits(c.Name, c.Share); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationMode, err)
		}
		if d.SameGPU && c.Share.GPUs > 1 {
			return nil, fmt.Errorf("annotation %s: container %s asks for %d GPUs: ask for one, or remove the annotation", v1alpha1.AnnotationSameGPU, c.Name, c.Share.GPUs)
		}
		switch c.Mode = wishes.Mode; {
		case less, c.Burstable, c.Share.Idle > 0:
			c.Mode = v1alpha1.ModeLimiter // the one that can change what runs
		case c.Mode == v1alpha1.ModeAuto && c.Share.Whole():
			c.Mode = v1alpha1.ModeExclusive
		}
	}
	if len(d.Containers) != len(r.Shares) {
		return nil, fmt.Errorf("annotation %s: names a container that the pod does not have", v1alpha1.AnnotationShares)
	}
	return d, nil
}
