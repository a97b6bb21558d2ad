// SPDX-License-Identifier: Apache-2.0

// Package podrequest owns the reading of what an admitted pod asks for, from the document
// that the webhook wrote and the annotations beside it. The allocator decides by it, and
// the kubectl plugin foretells by it.
//
// It never sees a node, and decides nothing.
package podrequest

import (
	"cmp"
	"errors"
	"fmt"
	"iter"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/classes"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/annotations"
)

// ErrNoClass is wrapped by the error of a pod that asks for units of a GPUClass that there is not.
var ErrNoClass = errors.New("there is no such GPUClass")

// Of reads what the pod asks for, and from known what the classes of its containers say. Errors
// name the annotation or the container.
func Of(pod *corev1.Pod, known *classes.Set) (*placement.Demand, *v1alpha1.Shares, error) {
	return read(pod, func(container, class string) (*classes.Class, error) {
		if c := known.Get(class); c != nil {
			return c, nil
		}
		return nil, fmt.Errorf("container %s asks for units of GPUClass %s: %w; the pod waits until there is, or create it again with other limits", container, class, ErrNoClass)
	})
}

// Granted reads what a pod asks for to which devices have been granted, whatever has become of its
// classes: on these its containers may be, in the modes that they were placed in.
func Granted(pod *corev1.Pod) (*placement.Demand, *v1alpha1.Shares, error) {
	d, shares, err := read(pod, func(_, class string) (*classes.Class, error) {
		return &classes.Class{Name: class, Mode: v1alpha1.ModeAuto}, nil
	})
	if err != nil {
		return nil, nil, err
	}
	if placed, err := v1alpha1.ParsePlacement(pod.Annotations[v1alpha1.AnnotationPlacement]); err == nil {
		for i := range d.Containers {
			// Every other mode is one that auto can come to.
			if c := &d.Containers[i]; c.Class != "" && placed.Containers[c.Name].Mode == v1alpha1.ModeMPS {
				c.Mode = v1alpha1.ModeMPS
			}
		}
	}
	return d, shares, nil
}

func read(pod *corev1.Pod, classOf func(container, class string) (*classes.Class, error)) (*placement.Demand, *v1alpha1.Shares, error) {
	shares, err := v1alpha1.ParseShares(pod.Annotations[v1alpha1.AnnotationShares])
	if err != nil {
		return nil, nil, err
	}
	wishes, err := annotations.Of(pod.Annotations)
	if err != nil {
		return nil, nil, err
	}
	of := map[string]*classes.Class{}
	for c := range containers(pod) {
		name := classIn(c)
		if name == "" {
			continue
		}
		class, err := classOf(c.Name, name)
		if err == nil {
			// Admission has written the class's topology down, and compared the pod's with it.
			now := *class
			now.Topology = v1alpha1.TopologyRequest{}
			err = wishes.Narrow(&now)
		}
		if err != nil {
			return nil, nil, err
		}
		of[c.Name] = class
	}
	d := &placement.Demand{Policy: wishes.Policy, Models: wishes.Models, UUIDs: wishes.UUIDs, SameGPU: wishes.SameGPU, Topology: wishes.Topology}
	add := func(name string, kind placement.Kind) error {
		share, asks := shares.Containers[name]
		if !asks {
			return nil
		}
		if err := wishes.Suits(name, share); err != nil {
			return fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationMode, err)
		}
		if wishes.SameGPU && share.GPUs > 1 {
			return fmt.Errorf("annotation %s: container %s asks for %d GPUs: ask for one, or remove the annotation", v1alpha1.AnnotationSameGPU, name, share.GPUs)
		}
		c := placement.Container{Name: name, Kind: kind, Share: share, Mode: wishes.Mode}
		if class := of[name]; class != nil {
			c.Class, c.Models = class.Name, class.Models
		}
		if c.Mode == v1alpha1.ModeAuto && share.Whole() {
			c.Mode = v1alpha1.ModeExclusive
		}
		d.Containers = append(d.Containers, c)
		return nil
	}
	for i := range pod.Spec.InitContainers {
		c, kind := &pod.Spec.InitContainers[i], placement.Init
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			kind = placement.Sidecar
		}
		if err := add(c.Name, kind); err != nil {
			return nil, nil, err
		}
	}
	for i := range pod.Spec.Containers {
		if err := add(pod.Spec.Containers[i].Name, placement.App); err != nil {
			return nil, nil, err
		}
	}
	if len(d.Containers) != len(shares.Containers) {
		return nil, nil, fmt.Errorf("annotation %s: names a container that the pod does not have", v1alpha1.AnnotationShares)
	}
	return d, shares, nil
}

// containers are the pod's, init containers first.
func containers(pod *corev1.Pod) iter.Seq[*corev1.Container] {
	return func(yield func(*corev1.Container) bool) {
		for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
			for i := range list {
				if !yield(&list[i]) {
					return
				}
			}
		}
	}
}

// classIn is the class of which the container asks for units; empty without one. A pod that the
// API server has not seen has limits alone.
func classIn(c *corev1.Container) string {
	return cmp.Or(v1alpha1.ClassIn(c.Resources.Requests), v1alpha1.ClassIn(c.Resources.Limits))
}

// EquivalenceClass is a text that is the same for pods that fit on the same devices.
func EquivalenceClass(pod *corev1.Pod) string {
	parts := []string{pod.Annotations[v1alpha1.AnnotationShares]}
	for _, key := range []string{v1alpha1.AnnotationMode, v1alpha1.AnnotationPolicy, v1alpha1.AnnotationGPUModel, v1alpha1.AnnotationGPUUUID, v1alpha1.AnnotationSameGPU, v1alpha1.AnnotationTopology} {
		parts = append(parts, pod.Annotations[key])
	}
	for c := range containers(pod) {
		if class := classIn(c); class != "" {
			parts = append(parts, c.Name+"="+class) // like no name of a container
		}
	}
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		parts = append(parts, c.Name)
		if c.RestartPolicy != nil {
			parts = append(parts, string(*c.RestartPolicy))
		}
	}
	return strings.Join(parts, "\x00")
}
