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
			// Every other mode is one that auto can come to.
			if c := &d.Containers[i]; c.Class != "" && placed.Containers[c.Name].Mode == v1alpha1.ModeMPS {
				c.Mode = v1alpha1.ModeMPS
			}
		}
	}
	return d, nil
}

func demandOf(r *podrequest.Request, classOf func(name string) *classes.Class) (*Demand, error) {
	if err := r.Err(); err != nil {
		return nil, err
	}
	d, wishes := &Demand{Shares: r.Shares}, r.Wishes
	for _, in := range r.Containers {
		c := Container{Name: in.Name, Share: r.Shares[in.Name]}
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
	d.Policy, d.Models, d.UUIDs, d.SameGPU, d.Topology = wishes.Policy, wishes.Models, wishes.UUIDs, wishes.SameGPU, wishes.Topology
	for i := range d.Containers {
		c := &d.Containers[i]
		if err := wishes.Suits(c.Name, c.Share); err != nil {
			return nil, fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationMode, err)
		}
		if d.SameGPU && c.Share.GPUs > 1 {
			return nil, fmt.Errorf("annotation %s: container %s asks for %d GPUs: ask for one, or remove the annotation", v1alpha1.AnnotationSameGPU, c.Name, c.Share.GPUs)
		}
		if c.Mode = wishes.Mode; c.Mode == v1alpha1.ModeAuto && c.Share.Whole() {
			c.Mode = v1alpha1.ModeExclusive
		}
	}
	if len(d.Containers) != len(r.Shares) {
		return nil, fmt.Errorf("annotation %s: names a container that the pod does not have", v1alpha1.AnnotationShares)
	}
	return d, nil
}
