// SPDX-License-Identifier: Apache-2.0

package podrequest

import (
	"fmt"

	"k8s.io/apimachinery/pkg/types"

	"vernier.dev/vernier/api/classes"
	api "vernier.dev/vernier/api/v1alpha1"
)

// userKeys are what a user may set.
var userKeys = []string{api.AnnotationMode, api.AnnotationPolicy, api.AnnotationTopology,
	api.AnnotationRDMA, api.AnnotationQoS, api.AnnotationBurst, api.AnnotationGPUModel, api.AnnotationGPUUUID, api.AnnotationSameGPU, api.AnnotationStart, api.AnnotationAdvice, api.AnnotationReservedFor}

// Wishes are what a user's annotations say. A field that cannot be read is zero, and Err says why.
type Wishes struct {
	Mode          api.Mode
	Policy        api.Policy
	Burst         api.Burst
	QoS           api.QoS
	Models, UUIDs api.AllowList
	// SameGPU: all slices of the pod are to be on one GPU.
	SameGPU bool
	// Topology is how near to each other the GPUs of the pod are to be.
	Topology api.TopologyRequest
	// classTopology: it is that of a class, so that another class's may take its place.
	classTopology bool
	// RDMA: containers with a share get the RDMA devices near their GPUs.
	RDMA bool
	// Start are the amounts of which containers begin with less than their shares.
	Start api.Resize
	// Advice is what becomes of advice; empty where the namespace says it.
	Advice api.AdviceUse
	// ReservedFor is the Workload of Kueue's whose reserved room the pod takes; empty for none.
	ReservedFor types.UID
	// errs are those of annotations that cannot be read, by key.
	errs map[string]error
}

// WishesOf reads the user's annotations.
func WishesOf(annotations map[string]string) (w Wishes) {
	parse(&w, annotations, api.AnnotationMode, api.ParseMode, &w.Mode)
	parse(&w, annotations, api.AnnotationPolicy, api.ParsePolicy, &w.Policy)
	parse(&w, annotations, api.AnnotationTopology, api.ParseTopology, &w.Topology)
	parse(&w, annotations, api.AnnotationRDMA, api.ParseRDMA, &w.RDMA)
	parse(&w, annotations, api.AnnotationQoS, api.ParseQoS, &w.QoS)
	parse(&w, annotations, api.AnnotationBurst, api.ParseBurst, &w.Burst)
	parse(&w, annotations, api.AnnotationGPUModel, api.ParseAllowList, &w.Models)
	parse(&w, annotations, api.AnnotationGPUUUID, api.ParseAllowList, &w.UUIDs)
	parse(&w, annotations, api.AnnotationSameGPU, api.ParseSameGPU, &w.SameGPU)
	parse(&w, annotations, api.AnnotationStart, api.ParseResize, &w.Start)
	parse(&w, annotations, api.AnnotationAdvice, api.ParseAdvice, &w.Advice)
	parse(&w, annotations, api.AnnotationReservedFor, api.ParseReservedFor, &w.ReservedFor)
	return w
}

// NamespaceAdvice is what becomes of advice in a namespace with these annotations. A value that cannot
// be read is show.
func NamespaceAdvice(annotations map[string]string) api.AdviceUse {
	if use := WishesOf(annotations).Advice; use != "" {
		return use
	}
	return api.AdviceShow
}

// parse reads one of the annotations; "" is the default of each.
func parse[T any](w *Wishes, annotations map[string]string, key string, parse func(string) (T, error), into *T) {
	text, err := annotations[key], error(nil)
	if len(text) > api.MaxAnnotationBytes {
		err = fmt.Errorf("has %d bytes, %d are allowed: shorten or remove it", len(text), api.MaxAnnotationBytes)
	} else {
		*into, err = parse(text)
	}
	if err != nil {
		if w.errs == nil {
			w.errs = map[string]error{}
		}
		w.errs[key] = err
	}
}

// Err is the error of the first annotation that cannot be read. It names the annotation.
func (w *Wishes) Err() error { return w.err(userKeys...) }

// NodeErr is the first such error of an annotation that decides what a node gives a container.
func (w *Wishes) NodeErr() error {
	return w.err(api.AnnotationBurst, api.AnnotationTopology, api.AnnotationRDMA)
}

func (w *Wishes) err(keys ...string) error {
	for _, key := range keys {
		if err := w.errs[key]; err != nil {
			return fmt.Errorf("annotation %s: %w", key, err)
		}
	}
	return nil
}

// Suits says why a container cannot have its share in the mode; nil where it can. The mode
// is in the annotation that the caller names.
func (w *Wishes) Suits(container string, share api.Share) error {
	switch {
	case w.Mode == api.ModeExclusive && !share.Whole():
		return fmt.Errorf("container %s asks for a part of a GPU. Use auto or limiter, or ask for %s 100 per GPU, and as much %s or none",
			container, api.ResourceCore, api.ResourceMemPercent)
	case w.Mode.OneDevice() && share.GPUs > 1:
		return fmt.Errorf("container %s asks for %d GPUs, and in mode %s a program sees one: ask for one GPU, or use auto",
			container, share.GPUs, w.Mode)
	}
	return nil
}

// Narrow is the wishes of a pod with a container of the class. The error says that the pod
// asks for what the class does not give.
func (w Wishes) Narrow(class *classes.Class) (Wishes, error) {
	switch {
	case class.Mode == api.ModeAuto || class.Mode == w.Mode:
	case w.Mode == api.ModeAuto:
		w.Mode = class.Mode
	default:
		return w, fmt.Errorf("GPUClass %s has mode %s, and %s or another class of the pod has %s: remove one of the two", class.Name, class.Mode, api.AnnotationMode, w.Mode)
	}
	switch {
	case class.Topology.Level == "", w.Topology.Implies(class.Topology):
	case w.Topology.Level == "", w.classTopology && class.Topology.Implies(w.Topology):
		w.Topology, w.classTopology = class.Topology, true
	default:
		return w, fmt.Errorf("GPUClass %s has topology %s, and %s or another class of the pod has %s, which is not as near: remove one of the two", class.Name, class.Topology, api.AnnotationTopology, w.Topology)
	}
	return w, nil
}
