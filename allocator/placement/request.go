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
	return demandOf(r, func(container, class string) (*classes.Class, error) {
		if c := known.Get(class); c != nil {
			return c, nil
		}
		return nil, fmt.Errorf("container %s asks for units of GPUClass %s: %w; the pod waits until there is, or create it again with other limits", container, class, ErrNoClass)
	})
}

// GrantedDemand is what a pod asks for to which devices have been granted, whatever has become of its
// classes: on these its containers may be, in the modes that they were placed in.
func GrantedDemand(r *podrequest.Request) (*Demand, error) {
	d, err := demandOf(r, func(_, class string) (*classes.Class, error) {
		return &classes.Class{Name: class, Mode: v1alpha1.ModeAuto}, nil
	})
	if err != nil {
		return nil, err
	}
	if placed, err := r.Placement(); err == nil {
		for i := range d.Containers {
			// Every other mode is one that auto can come to.
			if c := &d.Containers[i]; c.Class != "" && placed.Containers[c.Name].Mode == v1alpha1.ModeMPS {
				c.Mode = v1alpha1.ModeMPS
			}
		}
	}
	return d, nil
}

func demandOf(r *podrequest.Request, classOf func(container, class string) (*classes.Class, error)) (*Demand, error) {
	if err := r.Err(); err != nil {
		return nil, err
	}
	wishes, of := r.Wishes, make([]*classes.Class, len(r.Containers))
	for i, c := range r.Containers {
		if c.Class == "" {
			continue
		}
		class, err := classOf(c.Name, c.Class)
		if err == nil {
			// Admission has written the class's topology down, and compared the pod's with it.
			now := *class
			now.Topology = v1alpha1.TopologyRequest{}
			wishes, err = wishes.Narrow(&now)
		}
		if err != nil {
			return nil, err
		}
		of[i] = class
	}
	d := &Demand{Policy: wishes.Policy, Models: wishes.Models, UUIDs: wishes.UUIDs, SameGPU: wishes.SameGPU, Topology: wishes.Topology, Shares: r.Shares}
	for i, in := range r.Containers {
		share, asks := r.Shares[in.Name]
		if !asks {
			continue
		}
		if err := wishes.Suits(in.Name, share); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationMode, err)
		}
		if wishes.SameGPU && share.GPUs > 1 {
			return nil, fmt.Errorf("annotation %s: container %s asks for %d GPUs: ask for one, or remove the annotation", v1alpha1.AnnotationSameGPU, in.Name, share.GPUs)
		}
		c := Container{Name: in.Name, Share: share, Mode: wishes.Mode}
		switch {
		case in.Sidecar:
			c.Kind = Sidecar
		case in.Init:
			c.Kind = Init
		}
		if class := of[i]; class != nil {
			c.Class, c.Models = class.Name, class.Models
		}
		if c.Mode == v1alpha1.ModeAuto && share.Whole() {
			c.Mode = v1alpha1.ModeExclusive
		}
		d.Containers = append(d.Containers, c)
	}
	if len(d.Containers) != len(r.Shares) {
		return nil, fmt.Errorf("annotation %s: names a container that the pod does not have", v1alpha1.AnnotationShares)
	}
	return d, nil
}
