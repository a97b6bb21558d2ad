// SPDX-License-Identifier: Apache-2.0

// Package podrequest owns the reading of what a pod or a template asks Vernier for: the
// resources of its containers, its annotations and its classes. Webhook, allocator, node agent
// and kubectl plugin read these here.
//
// It never sees a node, and decides nothing.
package podrequest

import (
	"cmp"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"

	"vernier.dev/vernier/api/v1alpha1"
)

// Request is what a pod asks for. It never changes. A pod may be edited past admission: what of
// it cannot be read is zero, and an error says why.
type Request struct {
	Wishes
	// Shares are what its containers ask for, by name, and SharesErr says why they cannot be
	// read. Marked reports whether the pod has the document that they are read from.
	Shares    map[string]v1alpha1.Share
	SharesErr error
	Marked    bool
	// Containers are all of the pod, in the order in which Kubernetes starts them. The
	// annotations alone have none.
	Containers []Container
	// Dialect is the system that the pod was written for; empty for Vernier itself.
	Dialect string

	placement string
}

// Container is a container of a pod, with a share or without.
type Container struct {
	Name string
	// Class is the GPUClass of which it asks for units; empty without one.
	Class string
	// Init: it runs before those that are not, and a Sidecar goes on beside these.
	Init, Sidecar bool
}

// Of reads an admitted pod.
func Of(pod *corev1.Pod) *Request {
	r := OfAnnotations(pod.Annotations)
	for i := range pod.Spec.InitContainers {
		c := &pod.Spec.InitContainers[i]
		always := c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways
		r.Containers = append(r.Containers, Container{Name: c.Name, Class: classIn(c), Init: true, Sidecar: always})
	}
	for i := range pod.Spec.Containers {
		c := &pod.Spec.Containers[i]
		r.Containers = append(r.Containers, Container{Name: c.Name, Class: classIn(c)})
	}
	return r
}

// OfAnnotations reads the annotations of an admitted pod, which are all that the runtime knows
// of what it asks for.
func OfAnnotations(annotations map[string]string) *Request {
	text := annotations[v1alpha1.AnnotationShares]
	r := &Request{Wishes: WishesOf(annotations), Marked: text != "", Dialect: annotations[v1alpha1.AnnotationDialect], placement: annotations[v1alpha1.AnnotationPlacement]}
	if text == "" {
		r.SharesErr = errUnmarked
		return r
	}
	if last := lastShares.Load(); last != nil && last.text == text {
		r.Shares = last.shares
		return r
	}
	doc, err := v1alpha1.ParseShares(text)
	if r.SharesErr = err; err == nil {
		r.Shares = doc.Containers
		lastShares.Store(&parsedShares{text: text, shares: r.Shares})
	}
	return r
}

// errUnmarked is the error of a pod without the document.
var _, errUnmarked = v1alpha1.ParseShares("")

// lastShares is the document that was read last: the containers of a pod carry the same one, and
// so do the replicas of a workload.
var lastShares atomic.Pointer[parsedShares]

// parsedShares never change.
type parsedShares struct {
	text   string
	shares map[string]v1alpha1.Share
}

// Err says why the pod cannot be placed as it is, whatever its classes say. It names the annotation.
func (r *Request) Err() error { return cmp.Or(r.SharesErr, r.Wishes.Err()) }

// Placement is where the pod's containers got their slices.
func (r *Request) Placement() (*v1alpha1.Placement, error) {
	return v1alpha1.ParsePlacement(r.placement)
}

// Misplaces reports whether the pod has a placement that does not have the container on the device.
// It is searched, not decoded, which would be a tenth of the node agent's whole answer: the
// document has one spelling, and any other has nothing on a device.
func (r *Request) Misplaces(container, uuid string) bool {
	_, placed, _ := strings.Cut(r.placement, `"`+container+`":{`)
	placed, _, _ = strings.Cut(placed, "]")
	return r.placement != "" && !strings.Contains(placed, `"`+uuid+`"`)
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
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			if class := classIn(&list[i]); class != "" {
				parts = append(parts, list[i].Name+"="+class) // like no name of a container
			}
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
