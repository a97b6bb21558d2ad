// SPDX-License-Identifier: Apache-2.0

// Package podrequest owns the reading of what an admitted pod asks for, from the document
// that the webhook wrote and the annotations beside it. The allocator decides by it, and
// the kubectl plugin foretells by it.
//
// It never sees a node, and decides nothing.
package podrequest

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/allocator/placement"
	"vernier.dev/vernier/api/v1alpha1"
	"vernier.dev/vernier/webhook/annotations"
)

// Of reads what the pod asks for. Errors name the annotation.
func Of(pod *corev1.Pod) (*placement.Demand, *v1alpha1.Shares, error) {
	shares, err := v1alpha1.ParseShares(pod.Annotations[v1alpha1.AnnotationShares])
	if err != nil {
		return nil, nil, err
	}
	wishes, err := annotations.Of(pod.Annotations)
	if err != nil {
		return nil, nil, err
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

// EquivalenceClass is a text that is the same for pods that fit on the same devices.
func EquivalenceClass(pod *corev1.Pod) string {
	parts := []string{pod.Annotations[v1alpha1.AnnotationShares]}
	for _, key := range []string{v1alpha1.AnnotationMode, v1alpha1.AnnotationPolicy, v1alpha1.AnnotationGPUModel, v1alpha1.AnnotationGPUUUID, v1alpha1.AnnotationSameGPU, v1alpha1.AnnotationTopology} {
		parts = append(parts, pod.Annotations[key])
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
