// SPDX-License-Identifier: Apache-2.0

package feasible

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/labels"
	storagehelpers "k8s.io/component-helpers/storage/volume"
	"k8s.io/dynamic-resource-allocation/resourceclaim"

	"vernier.dev/vernier/api/v1alpha1"
)

// Undecided are what of the pod's volumes and resource claims the scheduler decides when
// it binds the pod. The words are equal where two pods may take it from each other.
// The filters do not know what a pod takes that is on its way to its node. By what the
// filters know, so that it also tells when they know what a bound pod took.
//
//   - A claim for a volume that waits for its first pod is where that one goes.
//   - Of a storage class without a provisioner there are so many volumes on a node.
//     Where there is a provisioner one more is made.
//   - Devices of other drivers are allocated to resource claims. Which drivers' is not
//     looked into: pods with such claims are on their way for milliseconds.
func (f *Filters) Undecided(pod *corev1.Pod) (all []string) {
	add := func(what string) {
		if !slices.Contains(all, what) {
			all = append(all, what)
		}
	}
	for i := range pod.Spec.Volumes {
		if claim, class := f.unboundClaim(pod, &pod.Spec.Volumes[i]); claim != "" {
			add("claim " + claim)
			if class != "" {
				add("volumes of class " + class)
			}
		}
	}
	if f.allocates(pod) {
		add("resource claims")
	}
	return all
}

// UnboundClaims says which claims for volumes of the pod are not bound, and who is to provide a
// volume; empty where all are.
func (f *Filters) UnboundClaims(pod *corev1.Pod) string {
	var all []string
	for i := range pod.Spec.Volumes {
		key, _ := f.unboundClaim(pod, &pod.Spec.Volumes[i])
		if key == "" {
			continue
		}
		namespace, name, _ := strings.Cut(key, "/")
		text := "PersistentVolumeClaim " + name + " is not bound"
		if c := f.known.claim(namespace, name); c != nil {
			class := storagehelpers.GetPersistentVolumeClaimClass(c)
			if s, err := f.factory.Storage().V1().StorageClasses().Lister().Get(class); err == nil {
				text += fmt.Sprintf(" (StorageClass %s, provisioner %s)", class, s.Provisioner)
			} else if class != "" {
				text += fmt.Sprintf(" (there is no StorageClass %s)", class)
			}
		}
		all = append(all, text)
	}
	return v1alpha1.NamesText(all, 3)
}

// unboundClaim is the claim of a volume whose place is not known yet, and its class where
// that makes no volumes.
func (f *Filters) unboundClaim(pod *corev1.Pod, of *corev1.Volume) (claim, class string) {
	name := ""
	switch {
	case of.PersistentVolumeClaim != nil:
		name = of.PersistentVolumeClaim.ClaimName
	case of.Ephemeral != nil:
		name = pod.Name + "-" + of.Name
	default:
		return "", ""
	}
	c := f.known.claim(pod.Namespace, name)
	if c == nil {
		return "", "" // no node will do
	}
	if c.Spec.VolumeName != "" {
		if v := f.known.volume(c.Spec.VolumeName); v == nil || v.Spec.ClaimRef != nil {
			return "", ""
		}
	}
	if name := storagehelpers.GetPersistentVolumeClaimClass(c); name != "" {
		s, err := f.factory.Storage().V1().StorageClasses().Lister().Get(name)
		if err == nil && s.Provisioner == storagehelpers.NotSupportedProvisioner {
			class = name
		}
	}
	return pod.Namespace + "/" + c.Name, class
}

// allocates reports whether the scheduler allocates devices of other drivers to the pod.
func (f *Filters) allocates(pod *corev1.Pod) bool {
	for i := range pod.Spec.ResourceClaims {
		name, _, err := resourceclaim.Name(pod, &pod.Spec.ResourceClaims[i])
		if err != nil || name == nil {
			continue // no node will do before it is made, or there is none to make
		}
		if c := f.known.devices(pod.Namespace, *name); c != nil && c.Status.Allocation == nil {
			return true
		}
	}
	if pod.Spec.NodeName == "" {
		return f.asksByClass(pod)
	}
	// The claim is made before the pod is bound, where the node has no other such devices.
	made := pod.Status.ExtendedResourceClaimStatus
	if made == nil {
		return false
	}
	c := f.known.devices(pod.Namespace, made.ResourceClaimName)
	return c == nil || c.Status.Allocation == nil
}

// asksByClass reports whether the pod asks for a device class as for an extended resource:
// its claim is made as it is bound. It is asked of each pod in each round, and nearly all
// ask for nothing of the kind.
func (f *Filters) asksByClass(pod *corev1.Pod) bool {
	for _, containers := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range containers {
			for name := range containers[i].Resources.Requests {
				domain, _, extended := strings.Cut(string(name), "/")
				if extended && domain != v1alpha1.Group && f.isOfClass(string(name)) {
					return true
				}
			}
		}
	}
	return false
}

// isOfClass reports whether a resource of that name is had of a device class.
func (f *Filters) isOfClass(resource string) bool {
	classes, err := f.factory.Resource().V1().DeviceClasses().Lister().List(labels.Everything())
	return err == nil && slices.ContainsFunc(classes, func(c *resourcev1.DeviceClass) bool {
		return resource == resourcev1.ResourceDeviceClassPrefix+c.Name ||
			c.Spec.ExtendedResourceName != nil && *c.Spec.ExtendedResourceName == resource
	})
}
