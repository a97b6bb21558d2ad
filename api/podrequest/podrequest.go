// SPDX-License-Identifier: Apache-2.0

// Package podrequest owns the reading of what a pod or a template asks for: container
// resources, annotations, classes and group. Webhook, allocator, node agent and
// kubectl plugin read these here.
//
// It never sees a node, and decides nothing.
package podrequest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

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
	// Group is the pods that it belongs to; the zero value where it is alone.
	Group Group
	// Dialect is the system that the pod was written for; empty for Vernier itself.
	Dialect string

	placement string
}

// Container is a container of a pod, with a share or without.
type Container struct {
	Name string
	// Class is the GPUClass of which it asks for Units; empty without one.
	Class string
	Units int64
	// Init: it runs before those that are not, and a Sidecar goes on beside these.
	Init, Sidecar bool
}

// Of reads an admitted pod.
func Of(pod *corev1.Pod) *Request {
	r := OfAnnotations(pod.Annotations)
	r.Containers = containersOf(&pod.Spec)
	r.Group, _ = GroupOf(pod)
	return r
}

// OfAnnotations reads the annotations of an admitted pod, which are all that the runtime knows
// of what it asks for.
func OfAnnotations(annotations map[string]string) *Request {
	text := annotations[v1alpha1.AnnotationShares]
	r := &Request{Wishes: WishesOf(annotations), Marked: text != "", Dialect: annotations[v1alpha1.AnnotationDialect], placement: annotations[v1alpha1.AnnotationPlacement]}
	if r.Shares, r.SharesErr = parseShares(text); r.Idle() {
		r.QoS = v1alpha1.QoSOpportunistic
	}
	return r
}

// lastShares is the document that was read last: the containers of a pod carry the same one, and
// so do the replicas of a workload. It never changes.
var lastShares atomic.Pointer[parsedShares]

type parsedShares struct {
	text   string
	shares map[string]v1alpha1.Share
}

// errNoShares is the error of a pod without the document, as most are.
var _, errNoShares = v1alpha1.ParseShares("")

func parseShares(text string) (map[string]v1alpha1.Share, error) {
	if text == "" {
		return nil, errNoShares
	}
	if last := lastShares.Load(); last != nil && last.text == text {
		return last.shares, nil
	}
	doc, err := v1alpha1.ParseShares(text)
	if err != nil {
		return nil, err
	}
	lastShares.Store(&parsedShares{text, doc.Containers})
	return doc.Containers, nil
}

// SharesOf, TopologyOf, StartOf and ContainersOf read one thing of a pod, where many pods are read for it
// alone. A field that cannot be read is zero.
func SharesOf(pod *corev1.Pod) map[string]v1alpha1.Share {
	shares, _ := parseShares(pod.Annotations[v1alpha1.AnnotationShares])
	return shares
}

func TopologyOf(pod *corev1.Pod) v1alpha1.TopologyRequest {
	var w Wishes
	parse(&w, pod.Annotations, v1alpha1.AnnotationTopology, v1alpha1.ParseTopology, &w.Topology)
	return w.Topology
}

func StartOf(pod *corev1.Pod) v1alpha1.Resize {
	start, _ := v1alpha1.ParseResize(pod.Annotations[v1alpha1.AnnotationStart])
	return start
}

// ReservedFor is the Workload of Kueue's whose reserved room the pod takes; empty for none.
func ReservedFor(pod *corev1.Pod) types.UID {
	uid, _ := v1alpha1.ParseReservedFor(pod.Annotations[v1alpha1.AnnotationReservedFor])
	return uid
}

// Burstable reports whether the pod's quotas may be over-committed.
func Burstable(pod *corev1.Pod) bool {
	return pod.Annotations[v1alpha1.AnnotationQoS] == string(v1alpha1.QoSBurstable)
}

func ContainersOf(pod *corev1.Pod) []Container { return containersOf(&pod.Spec) }

// Err says why the pod cannot be placed as it is, whatever its classes say. It names the annotation.
func (r *Request) Err() error { return cmp.Or(r.SharesErr, r.Wishes.Err()) }

// OnIdle reports whether the pod asks for an idle slice. Its containers' resources are looked at, since
// that is asked of every pod.
func OnIdle(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool {
		idle := c.Resources.Requests[v1alpha1.ResourceIdleCore]
		return !idle.IsZero()
	})
}

// Idle reports whether the request is for an idle slice.
func (r *Request) Idle() bool { return OfIdle(r.Shares) }

// OfIdle reports whether one of the shares is an idle slice.
func OfIdle(shares map[string]v1alpha1.Share) bool {
	for _, share := range shares {
		if share.Idle > 0 {
			return true
		}
	}
	return false
}

// Placement is where the pod's containers got their slices.
func (r *Request) Placement() (*v1alpha1.Placement, error) {
	return v1alpha1.ParsePlacement(r.placement)
}

// PlacementOf is that of a pod of which nothing else is read.
func PlacementOf(pod *corev1.Pod) (*v1alpha1.Placement, error) {
	return v1alpha1.ParsePlacement(pod.Annotations[v1alpha1.AnnotationPlacement])
}

// ResizeOf is what a running pod's shares are to be, empty where nothing else is asked for. SameResize
// reports whether two versions of a pod ask for the same.
func ResizeOf(pod *corev1.Pod) (v1alpha1.Resize, error) {
	to, err := v1alpha1.ParseResize(pod.Annotations[v1alpha1.AnnotationResize])
	if err != nil {
		err = fmt.Errorf("annotation %s: %w", v1alpha1.AnnotationResize, err)
	}
	return to, err
}

func SameResize(was, is *corev1.Pod) bool {
	return was.Annotations[v1alpha1.AnnotationResize] == is.Annotations[v1alpha1.AnnotationResize]
}

// Marked reports whether the pod has the document of its shares, Placed whether it has that of
// its placement.
func Marked(pod *corev1.Pod) bool { return pod.Annotations[v1alpha1.AnnotationShares] != "" }
func Placed(pod *corev1.Pod) bool { return pod.Annotations[v1alpha1.AnnotationPlacement] != "" }

// Misplaces reports whether the pod has a placement that does not have the container on the device.
// It is searched, not decoded, which would be a tenth of the node agent's whole answer. The
// document has one spelling, and any other has nothing on a device.
func (r *Request) Misplaces(container, uuid string) bool {
	_, placed, _ := strings.Cut(r.placement, `"`+container+`":{`)
	placed, _, _ = strings.Cut(placed, "]")
	return r.placement != "" && !strings.Contains(placed, `"`+uuid+`"`)
}

func containersOf(spec *corev1.PodSpec) []Container {
	all := make([]Container, 0, len(spec.InitContainers)+len(spec.Containers))
	add := func(c *corev1.Container, init bool) {
		of := Container{Name: c.Name, Init: init, Sidecar: init && ptr.Deref(c.RestartPolicy, "") == corev1.ContainerRestartPolicyAlways}
		// A pod that the API server has not seen has limits alone.
		for _, list := range []corev1.ResourceList{c.Resources.Requests, c.Resources.Limits} {
			if of.Class == "" {
				of.Class, of.Units = unitsIn(list)
			}
		}
		all = append(all, of)
	}
	for i := range spec.InitContainers {
		add(&spec.InitContainers[i], true)
	}
	for i := range spec.Containers {
		add(&spec.Containers[i], false)
	}
	return all
}

// unitsIn is the class of which a list asks for units, and how many; empty without one. Admission
// refuses a container that asks for two: of these it is the first by name.
func unitsIn(list corev1.ResourceList) (class string, units int64) {
	for _, name := range v1alpha1.Asked(list) {
		if c := v1alpha1.ClassOf(name); c != "" && (class == "" || c < class) {
			amount := list[name]
			class, units = c, amount.Value()
		}
	}
	return class, units
}

// DefaultRequests has the containers of a pod that was not created request their limits, as the API
// server does. The scheduler's filters read requests only.
func DefaultRequests(pod *corev1.Pod) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			r := &list[i].Resources
			for name, amount := range r.Limits {
				if _, requested := r.Requests[name]; !requested {
					if r.Requests == nil {
						r.Requests = corev1.ResourceList{}
					}
					r.Requests[name] = amount
				}
			}
		}
	}
}

// EquivalenceClass is a text that is the same for pods that fit on the same devices.
func EquivalenceClass(pod *corev1.Pod) string {
	var parts []string
	for _, key := range []string{v1alpha1.AnnotationShares, v1alpha1.AnnotationMode, v1alpha1.AnnotationPolicy, v1alpha1.AnnotationGPUModel, v1alpha1.AnnotationGPUUUID, v1alpha1.AnnotationSameGPU, v1alpha1.AnnotationTopology, v1alpha1.AnnotationStart, v1alpha1.AnnotationQoS} {
		parts = append(parts, pod.Annotations[key])
	}
	for _, c := range containersOf(&pod.Spec) {
		if c.Init || c.Class != "" {
			parts = append(parts, fmt.Sprint(c.Name, "=", c.Class, c.Init, c.Sidecar))
		}
	}
	return strings.Join(parts, "\x00")
}
